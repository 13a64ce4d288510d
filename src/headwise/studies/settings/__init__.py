"""Settings of studies: `resolve.py` (file, flags, defaults), `plain_yaml.py` (YAML from other people), `described.py`
(help).

May import: errors.
"""
