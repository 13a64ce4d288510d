"""A user's own data as a task: files, hub datasets, columns and ready mappings.

Begin with `load_task.py`, which refuses what cannot be an example. `readers.py` turns a file into rows (`rows.py`),
`sources.py` what is no file; `rows_to_examples.py` maps the columns of a row to the fields of an example, `mappings/`
knows public data sets. May import: errors, hub, settings, `headwise.tasks`.
"""
