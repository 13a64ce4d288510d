"""One forward pass: begin with `run.py` (`Pass` and `run`, what is changed in a model and in which order).

`gate.py` is where a head's gate is applied; `blocks.py` computes equal rows once; `schedule.py` decides what runs
together; `out_of_memory.py` does work in halves where it does not fit; `decode.py` is a batch that grows by one token
per step, with its KV cache. `compiled.py` and `cuda_graph.py` make the same pass faster. May import: errors,
`model.sites`.
"""
