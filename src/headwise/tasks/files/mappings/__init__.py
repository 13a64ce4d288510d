"""Ready mappings for public data sets, one file each; begin with `registry.py`.

The order of these imports is the order in which a file without `mapping` is recognised.
"""

from headwise.tasks.files.mappings import cogqa, blimp, math500, gsm8k  # noqa: F401, I001
from headwise.tasks.files.mappings import commonsense_qa, bigbench, words, pairs, eap_ig, chat  # noqa: F401
from headwise.tasks.files.mappings import questions, text  # noqa: F401
from headwise.tasks.files.mappings.registry import ReadyMapping, recognise, register, registered

__all__ = ["ReadyMapping", "recognise", "register", "registered"]
