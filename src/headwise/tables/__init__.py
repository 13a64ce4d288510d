"""Tables and results as plain data: what runs store, charts draw and reports read. Begin with `codec.py`.

`codec.py` turns every result class into JSON and arrays and back; `columns.py` makes Arrow tables of frames, with the
columns that every run's tables begin with; `frames.py` has what data code and charts share: rows by groups, tables of
heads as names and grids, significant rows. May import: errors, files, registry, stats.
"""
