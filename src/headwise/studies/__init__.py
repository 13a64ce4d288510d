"""The questions: one file per study, and the registry."""

from headwise.studies.base import (Study, register, run, studies, study)

__all__ = ["Study", "register", "run", "studies", "study"]
