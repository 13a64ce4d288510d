"""Tables and results as plain data: what runs store, charts draw and reports read. Begin with `codec.py`.

`codec.py` turns every result class into JSON and arrays and back; `columns.py` makes Arrow tables of frames, with the
columns that every run's tables begin with. May import: errors, files, bounded.
"""
