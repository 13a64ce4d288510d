"""`Certificate`: what `hw.certify` says of a set of heads. Its verdict and its sentence follow from its lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from headwise.certificates.checks import (
    COMPLETE,
    FAIL,
    FAMILIES,
    MINIMAL,
    NAMES,
    NECESSARY,
    NOT_TESTED,
    NOTHING,
    PASS,
    SUFFICIENT,
    TRACKS,
    UNDECIDED,
    overall,
)
from headwise.heads import Order
from headwise.names import ablation_name
from headwise.tables.codec import Saved, stored

CERTIFIED, LIMITED, REJECTED = "certified", "certified with limits", "rejected"
VERDICTS = (CERTIFIED, LIMITED, UNDECIDED, REJECTED)


def verdict_of(states: dict[int, str]) -> str:
    """The verdict that the states of checks 1 to 6 give.

    >>> verdict_of({1: "pass", 2: "not tested", 3: "fail", 4: "pass", 5: "pass", 6: "pass"})
    'certified with limits'
    """
    first = [states.get(check, NOT_TESTED) for check in (SUFFICIENT, FAMILIES, NECESSARY)]
    if FAIL in first:
        return REJECTED
    if UNDECIDED in first or first[0] != PASS or first[2] != PASS:
        return UNDECIDED
    return CERTIFIED if all(states.get(check) == PASS for check in range(1, 7)) else LIMITED


@stored
@dataclass(frozen=True, kw_only=True)
class Certificate(Saved):
    """Whether a set of heads is a circuit of a behaviour: every check with number, interval, threshold and state."""

    model: str
    task: str
    metric: str
    reference: str
    heads: Order
    total: int
    """Heads (or components) of the model."""
    n: int
    """Examples, none of which found the heads."""
    lines: pd.DataFrame
    """check, name, measure, value, lo, hi, threshold, n, state, note, needed (the threshold in signs)."""
    levels: pd.DataFrame
    """Explained effect of every family: facet, level, n, value, lo, hi, state, note."""
    changes: pd.DataFrame
    """Explained effect that the set loses without each of its heads: component, layer, head, change, lo, hi (for all
    heads together), adds (nothing, something, undecided); `refits`: the share of half-samples that find it again."""
    examples: pd.DataFrame
    """example, full, kept, none, same_answer, family: the metric with all heads, with the set alone, with none."""
    core: Order = field(default_factory=list)
    """Heads of the set that at least 90 % of the half-samples of the finding examples find again (check 8)."""
    shell: Order = field(default_factory=list)
    """Those that 50 to 90 % find again; from the rest the certificate abstains."""
    alternatives: list[Order] = field(default_factory=list)
    """Other circuits of the same size (check 10)."""
    details: dict[str, Any] = field(default_factory=dict, compare=False)
    """Forward rows spent."""

    @property
    def states(self) -> dict[int, str]:
        """The state of every check, by number; one that was left out is not tested."""
        checks = self.lines["check"].to_numpy()
        return {check: overall(self.lines["state"][checks == check]) for check in NAMES}

    @property
    def verdict(self) -> str:
        """certified; certified with limits; undecided; rejected."""
        return verdict_of(self.states)

    @property
    def passengers(self) -> list[str]:
        """Heads that add nothing: the explained effect of the set is surely the same without each of them."""
        return [str(name) for name in self.changes.loc[self.changes["adds"] == NOTHING, "component"]]

    def line(self, check: int, part: int = 0) -> pd.Series:
        """One line of a check."""
        return self.lines[self.lines["check"] == check].iloc[part]

    @property
    def sentence(self) -> str:
        """What was found, in one sentence with its numbers."""
        states, first = self.states, self.line(SUFFICIENT)
        size = f"{len(self.heads)} of {self.total} heads"
        where = f"of {self.task} in {self.model} under {ablation_name(self.reference)}"
        effect = f"explained effect {with_interval(first)}, n = {self.n}"
        if self.verdict == REJECTED:
            checks = (SUFFICIENT, FAMILIES, TRACKS, NECESSARY)
            failed = "; ".join(self._problem(check) for check in checks if states[check] == FAIL)
            return f"{size} are not a circuit {where}: {failed} (n = {self.n})."
        if self.verdict == UNDECIDED:
            open_ = [c for c in (SUFFICIENT, FAMILIES, NECESSARY) if states[c] not in (PASS, NOT_TESTED)]
            missing = "; ".join(self._problem(check) for check in open_) or "no check decides"
            return f"Whether {size} are a circuit {where} is undecided: {missing}; more examples can tell."
        families = f", {self._passed_families}" if states[FAMILIES] == PASS else ""
        if self.verdict == CERTIFIED:
            return f"{size} are a circuit {where}: {effect}{families}; all six checks pass."
        limits = [c for c in (FAMILIES, TRACKS, COMPLETE, MINIMAL) if states[c] != PASS]
        named = "; ".join(self._problem(check) for check in limits)
        return f"{size} are a circuit {where} with limits: {effect}{families}, but {named}."

    @property
    def _passed_families(self) -> str:
        """The families of which check 2 says that they pass."""
        line, total = self.line(FAMILIES), len(self.levels)
        judged = int((self.levels["state"] != NOT_TESTED).sum())
        farthest = f"{line['note'].split(',')[0]}, {with_interval(line)}"
        if judged == 1:
            return f"the only one of {total} families that could be judged ({farthest})"
        which = (
            "all families ("
            if judged == total
            else f"all families that could be judged ({judged} of {total}; "
        )
        return f"{which}farthest from 1: {farthest})"

    def _problem(self, check: int) -> str:
        """What is wrong with a check that did not pass, in words."""
        rows = self.lines[self.lines["check"] == check]
        state = self.states[check]
        if state == NOT_TESTED:
            return f"{NAMES[check]} is not tested ({'; '.join(rows['note']) or 'left out'})"
        line = rows[rows["state"] == state].iloc[0]
        value, family = with_interval(line), f"the family {str(line['note']).split(',')[0]}"
        if (self.levels["state"] != NOT_TESTED).sum() == 1:
            family += f", the only one of {len(self.levels)} that could be judged,"
        words = {
            SUFFICIENT: f"alone they explain {value} of the mean effect",
            FAMILIES: f"{family} has an explained effect of {value}",
            TRACKS: f"single prompts are not followed ({line['measure']} {value})",
            NECESSARY: f"without them the model loses only {value} of the effect"
            if line["measure"] != "p against layer-matched random sets"
            else f"random heads of the same layers matter as much (p = {line['value']:.2g})",
            COMPLETE: f"something is missing (model and circuit differ by {value} when both lose the same heads)",
            MINIMAL: f"{line['value']:.0f} of them add nothing"
            if line["value"]
            else "some of them may add nothing",
        }[check]
        return words + (" (undecided)" if state == UNDECIDED else "")

    def table(self) -> pd.DataFrame:
        """Every line of every check; `reference` and `metric` say what was measured."""
        names: dict[str, Any] = {
            "model": self.model,
            "task": self.task,
            "k": len(self.heads),
            "metric": self.metric,
        }
        return self.lines.assign(**names, reference=self.reference, verdict=self.verdict)

    def measured_tables(self) -> dict[str, pd.DataFrame]:
        """What must be finite: the metric of every example; none where all are."""
        finite = np.isfinite(self.examples[["full", "kept", "none"]].to_numpy()).all()
        return {} if finite else {"followed": self.examples}

    def failures(self, most: int = 10) -> pd.DataFrame:
        """The examples that the set follows least, largest error first."""
        error = (self.examples["kept"] - self.examples["full"]).abs()
        return self.examples.assign(error=error).nlargest(most, "error")

    def __repr__(self) -> str:
        return "\n".join([f"Certificate: {self.verdict}. {self.sentence}", *in_words(self.lines)])

    def _repr_html_(self) -> str:
        from headwise.display import html_table

        columns = ["check", "state", "measure", "value [95 % CI]", "needed", "n", "note"]
        rows = [
            [
                f"{row['check']} {row['name']}",
                row["state"],
                row["measure"],
                with_interval(row),
                row["needed"],
                row["n"],
                row["note"],
            ]
            for row in self.lines.to_dict("records")
        ]
        return html_table(f"{self.verdict}: {self.sentence}", columns, rows)

    def plot(self) -> Any:
        """The certificate as one figure: checks, families, and model against circuit; returns the matplotlib figure."""
        from headwise.charts.certificate import certificate_chart
        from headwise.charts.static import figure

        return figure(
            certificate_chart(
                self.table(), self.levels, self.examples, self.sentence, [*map(str, self.heads)]
            )
        )


def in_words(lines: pd.DataFrame) -> list[str]:
    """Every line of every check as a line of text."""
    return [
        f"  {row['check']:>2} {row['name']:<22} {row['state']:<11} {row['measure']}"
        + (f": {value}" if (value := with_interval(row)) else "")
        + (f" (needed: {row['needed']})" if row["needed"] else "")
        + (f"; {row['note']}" if row["note"] else "")
        for row in lines.to_dict("records")
    ]


def plain(value: float) -> str:
    """A number in few digits; nothing for NaN."""
    return "" if np.isnan(value) else f"{value:.3g}"


def with_interval(line: Any) -> str:
    """Value and interval of a line: "0.91 [0.85, 0.97]"."""
    if np.isnan(line["lo"]):
        return plain(line["value"])
    return f"{line['value']:.2f} [{line['lo']:.2f}, {line['hi']:.2f}]"
