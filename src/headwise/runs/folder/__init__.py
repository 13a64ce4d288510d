"""The run folder: begin with `folder.py`. `info.py` is run.json, `tables.py` the Parquet tables, `hold.py` the
lock. May import: errors, files, `runs.store`.
"""
