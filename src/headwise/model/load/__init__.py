"""From a name, a folder or a file to a verified `Model`, and back to a checkpoint. Begin with `load.py`.

`checkpoint.py` looks at weights before anything is built, `gguf.py` converts, `bundled.py` fetches pinned weights,
`companions.py` has the sparse models that come with headwise,
`export.py` writes a mask into the weights. May import: errors, hub, heads, the other rooms of `model`.
"""
