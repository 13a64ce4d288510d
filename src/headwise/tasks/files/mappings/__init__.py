"""Ready mappings for public data sets, one file each; begin with `registry.py`.

The order of these imports is the order in which a file without `mapping` is recognised.
"""

from headwise.tasks.files.mappings import (  # noqa: I001
    cogqa,  # noqa: F401
    blimp,  # noqa: F401
    math500,  # noqa: F401
    gsm8k,  # noqa: F401
    commonsense_qa,  # noqa: F401
    bigbench,  # noqa: F401
    words,  # noqa: F401
    text,  # noqa: F401
)
from headwise.tasks.files.mappings.registry import ReadyMapping, recognise, register, registered

__all__ = ["ReadyMapping", "recognise", "register", "registered"]
