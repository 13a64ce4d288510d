"""What replaces an ablated head (the reference), computed from the ungated model: one registered function per kind.

`means.py` has `zero`, `mean` and `position_mean`, `donors.py` has `patch` and `resample`; a new kind is a new file
here, or a plug-in (docs/plugins.md). Begin with `registry.py`. May import: errors, registry, settings, tasks,
`model.tokens`, `model.forward`.
"""
