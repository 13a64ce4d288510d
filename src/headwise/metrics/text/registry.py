"""What a metric of generated text is, and those that are known by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headwise.errors import HeadwiseError, unknown
from headwise.registry import Registry
from headwise.several import several

Gold = str | Sequence[str]
"""The right answer, or several of which the best counts."""


@dataclass(frozen=True)
class TextMetric:
    """A number from 0 to 1 per text; more is better."""

    name: str
    about: str
    against: tuple[str, ...]
    """What texts may be compared with, the default first: `gold` (the right answer), `full` (what the whole
    model wrote), `both` (needs the two at once)."""
    per_pair: Callable[..., np.ndarray]
    """From texts and as many others (for `both`: gold and full texts) to a value each."""
    packages: tuple[str, ...] = ()
    """Importable modules it needs beyond headwise's own requirements."""
    weights: tuple[str, ...] = ()
    """Bundled models it needs."""
    check: Callable[[], None] | None = None
    """Whatever else must be there: raises with what is missing."""

    def ready(self) -> None:
        """Raise, before any text is generated, if something this metric needs is missing."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise HeadwiseError(
                f"the metric {self.name!r} needs {', '.join(name.replace('_', '-') for name in missing)}; "
                "install it with: pip install 'headwise[similarity]'"
            )
        for alias in self.weights:
            from headwise.model.load import bundled

            bundled.fetch(alias)
        if self.check is not None:
            self.check()

    def values(
        self,
        texts: Sequence[str],
        *,
        gold: Sequence[Gold] | None = None,
        full: Sequence[str] | None = None,
        against: str | None = None,
    ) -> np.ndarray:
        """The metric of each text `[n]`, compared with its gold answer or the full model's text."""
        texts = several(texts)
        against = against or self.against[0]
        if against not in self.against:
            raise unknown(f"comparison of the metric {self.name!r}", against, self.against)
        for name, others in (("gold", gold), ("full", full)):
            count = None if others is None else len(several(others))
            if against in (name, "both") and count != len(texts):
                raise HeadwiseError(
                    f"the metric {self.name!r} compares {len(texts)} texts with as many {name} texts; got "
                    f"{'none' if count is None else count}"
                )
        self.ready()
        if against == "full":
            return self.per_pair(texts, several(full))
        return self._best(texts, several(gold), several(full) if against == "both" else None)

    def _best(self, texts: list[str], gold: Sequence[Gold], full: list[str] | None) -> np.ndarray:
        """Every right answer of a text is tried, and the best counts."""
        answers = [several(right) for right in gold]
        if [] in answers:
            raise HeadwiseError(f"text {answers.index([]) + 1} has no gold answer to compare with")
        owners = [number for number, each in enumerate(answers) for _ in each]
        others = [[answer for each in answers for answer in each]]
        if full is not None:
            others.append([full[number] for number in owners])
        best = np.full(len(texts), -np.inf)
        np.maximum.at(best, owners, self.per_pair([texts[number] for number in owners], *others))
        return best


TEXT_METRICS: Registry[TextMetric] = Registry("text metric", "headwise.metrics.text.*")


def register_text(
    name: str,
    *,
    about: str,
    against: tuple[str, ...] = ("full", "gold"),
    packages: tuple[str, ...] = (),
    weights: tuple[str, ...] = (),
    check: Callable[[], None] | None = None,
) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Make a function from texts and their counterparts to values known under `name`."""

    def add(per_pair: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        TEXT_METRICS.add(name, TextMetric(name, about, against, per_pair, packages, weights, check))
        return per_pair

    return add


def text_metrics() -> dict[str, TextMetric]:
    """Every registered metric of generated text, by name."""
    return TEXT_METRICS.all()


def text_metric(name: str) -> TextMetric:
    """The text metric of this name."""
    return TEXT_METRICS.get(name)
