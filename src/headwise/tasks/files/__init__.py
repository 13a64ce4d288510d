"""A user's own data as a task: files, hub datasets, columns and ready mappings.

Begin with `load_task.py`. `readers.py` turns a file into rows (`rows.py`), `rows_to_examples.py` maps the columns of a
row to the fields of an example, `mappings/` knows public data sets, `checks.py` refuses what cannot be an example. May
import: errors, hub, `headwise.tasks`.
"""
