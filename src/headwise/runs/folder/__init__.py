"""The run folder: begin with `folder.py`. `info.py` is run.json, `hold.py` the lock. May import: errors, files,
`runs.store`.
"""
