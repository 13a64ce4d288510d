"""Settings of studies: `shared.py` (settings of every study, and types of fields), `resolve.py` (study files, flags,
defaults).

May import: what a study may.
"""
