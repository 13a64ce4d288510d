"""Ready mappings for public data sets; begin with `registry.py`.

The order of these imports, and that in the files, is the order in which a file without `mapping` is recognised.
"""

from headwise.tasks.files.mappings import questions, pairs, eap_ig, plain  # noqa: I001
