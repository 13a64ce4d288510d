"""Settings of the study `diff`."""

from __future__ import annotations

from headwise.errors import HeadwiseError
from headwise.scores.difference import check_pairable
from headwise.studies.score.settings import ScoreSettings
from headwise.studies.settings import shared


class DiffSettings(ScoreSettings):
    """Settings of the study `diff`: those of `score`, and two models."""

    models: shared.Models = ()
    """The base model, then the tuned one: bundled aliases, hub ids, folders (also of an adapter) or GGUF files."""
    positions: shared.Positions = "all"
    """Token positions that gates act on: `all`, from the `last` prompt token on, numbers, or the names of spans."""

    def before_run(self) -> None:
        super().before_run()
        for name in self.methods:
            check_pairable(name, self.method_options)
        if len(self.models) != 2:
            given = (
                f"{len(self.models)} are given ({', '.join(self.models)})" if self.models else "none is given"
            )
            raise HeadwiseError(
                f"the study 'diff' compares two models, and {given}; name the base model, then the tuned one: "
                "headwise diff BASE TUNED TASK, or models: [BASE, TUNED] in a study file"
            )
        if self.models[0] == self.models[1]:
            raise HeadwiseError(
                f"base and tuned are both {self.models[0]!r}; diff compares two models, such as a model and its "
                "fine-tuned version"
            )
