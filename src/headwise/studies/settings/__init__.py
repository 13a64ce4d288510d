"""Settings of studies: `shared.py` (settings of every study, and types of fields), `resolve.py` (file, flags,
defaults), `plain_yaml.py` (YAML from other people).

May import: what a study may.
"""
