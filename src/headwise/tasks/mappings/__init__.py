"""Ready mappings for public data sets, one file each. The order of these imports is the order of guessing."""

from headwise.tasks.mappings import cogqa, blimp, math500, gsm8k, commonsense_qa, bigbench, words, text  # noqa: F401, I001
from headwise.tasks.mappings.registry import ReadyMapping, recognise, register, registered

__all__ = ["ReadyMapping", "recognise", "register", "registered"]
