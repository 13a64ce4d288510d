"""What n can show, said before anything is computed."""

from __future__ import annotations

import logging

from headwise import stats
from headwise.errors import warn_once
from headwise.stats.resampling import independent
from headwise.tasks.examples import Task

log = logging.getLogger(__name__)


def note_too_few(task: Task, tests: int, what: str = "head") -> None:
    """Log, once for each sentence, what the task's examples are too few to show."""
    if sentence := stats.too_few(independent(task.shared_groups(), len(task)), tests, what):
        warn_once(log, sentence)
