"""From a name, a folder or a file to a verified `Model`, and back to a checkpoint. Begin with `load.py`.

`checkpoint.py` looks at weights before anything is built, `gguf.py` converts, `converted.py` keeps conversions in the
cache of `cache.py`, `hub.py` and `bundled.py` fetch (also the sparse models that come with headwise), `export.py`
writes a mask into the weights, `shrink.py` cuts heads out of them. May import: errors, files, hub, heads, the other
rooms of `model`.
"""
