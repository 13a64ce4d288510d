"""Where the heads of a model are, and how they are reached.

Begin with `head_hooks.py`; `attention_function.py` is our function in transformers' registry, `sites.py` finds and
numbers the layers, `patch.py` is the only file that changes a model's modules, `probe.py` tells what a module is and
where it lives, and has the few tokens it is tried on. May import: errors.
"""
