"""Ready mappings for public data sets, one file each. The order of these imports is the order of guessing."""

from headwise.tasks.files.mappings import cogqa
from headwise.tasks.files.mappings import blimp
from headwise.tasks.files.mappings import math500
from headwise.tasks.files.mappings import gsm8k
from headwise.tasks.files.mappings import commonsense_qa
from headwise.tasks.files.mappings import bigbench
from headwise.tasks.files.mappings import words
from headwise.tasks.files.mappings import text# noqa: F401, I001
from headwise.tasks.files.mappings.registry import (ReadyMapping, recognise, register, registered)

__all__ = ["ReadyMapping", "recognise", "register", "registered"]
