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
        gold, full = (None if one is None else several(one) for one in (gold, full))
        against = against or self.against[0]
        if against not in self.against:
            raise unknown(f"comparison of the metric {self.name!r}", against, self.against)
        needed = {"gold": gold} if against == "gold" else {"full": full}
        needed = {"gold": gold, "full": full} if against == "both" else needed
        for name, given in needed.items():
            if given is None or len(given) != len(texts):
                found = "none" if given is None else str(len(given))
                raise HeadwiseError(
                    f"the metric {self.name!r} compares {len(texts)} texts with as many {name} texts; got {found}"
                )
        self.ready()
        if against == "full":
            assert full is not None
            return self.per_pair(list(texts), list(full))
        assert gold is not None
        return self._best(list(texts), gold, list(full) if against == "both" and full is not None else None)

    def _best(self, texts: list[str], gold: Sequence[Gold], full: list[str] | None) -> np.ndarray:
        """Every right answer of a text is tried, and the best counts."""
        several = [[one] if isinstance(one, str) else list(one) for one in gold]
        for number, answers in enumerate(several):
            if not answers:
                raise HeadwiseError(f"text {number + 1} has no gold answer to compare with")
        owners = [number for number, answers in enumerate(several) for _ in answers]
        others = [[answer for answers in several for answer in answers]]
        if full is not None:
            others.append([full[number] for number in owners])
        tried = self.per_pair([texts[number] for number in owners], *others)
        best = np.full(len(texts), -np.inf)
        np.maximum.at(best, owners, tried)
        return best


TEXT_METRICS: Registry[TextMetric] = Registry("text metric", "headwise.metrics.text.*")


def register_text(
    name: str,
    *,
    about: str,
    against: tuple[str, ...],
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
