"""Settings of studies: `shared.py` (what every study can be told, and types of fields), `resolve.py` (file, flags,
defaults), `plain_yaml.py` (YAML from other people), `described.py` (help).

May import: what a study may.
"""
