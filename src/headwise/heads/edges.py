"""Direct edges between components, how they are written, and their scores. Nothing here knows what a model is.

A sender is a head, an MLP or the embeddings. A receiver is one input of a later component: the query of a head (Q), the
key or value of a key/value head (K, V), the input of an MLP, or the final logits.

N edges, E examples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headwise.errors import HeadwiseError, quoted
from headwise.heads.head import Head, head_list, ranking
from headwise.names import MLP, component_kind, method_name
from headwise.tables.codec import Saved, stored

if TYPE_CHECKING:
    import pandas as pd

SLOTS = ("Q", "K", "V", "MLP", "logits")
"""What a receiver reads the residual stream with."""
_RECEIVER = re.compile(
    r"L([0-9]{1,6})H([0-9]{1,6})\.Q|L([0-9]{1,6})KV([0-9]{1,6})\.([KV])|MLP([0-9]{1,6})|(logits)"
)


@stored
class Receiver(NamedTuple):
    """One input of a component.

    Written `L23H3.Q` for the query of a head; `L23KV1.K` and `L23KV1.V` for the key and the value of key/value head 1,
    which in grouped-query attention several heads share; `MLP23`; `logits`.

    >>> [str(Receiver.parse(text)) for text in ("L23H3.Q", "L23KV1.K", "MLP23", "logits")]
    ['L23H3.Q', 'L23KV1.K', 'MLP23', 'logits']
    """

    layer: int
    """-1 for the logits."""
    head: int
    """Of K and V the number of the key/value head; -1 for MLPs and logits."""
    slot: str

    def __str__(self) -> str:
        if self.slot == "logits":
            return "logits"
        if self.slot == "MLP":
            return f"MLP{self.layer}"
        return f"L{self.layer}{'H' if self.slot == 'Q' else 'KV'}{self.head}.{self.slot}"

    @classmethod
    def parse(cls, text: str) -> Receiver:
        match = _RECEIVER.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise HeadwiseError(
                f"{quoted(text)} is not a receiver; receivers are written like 'L23H3.Q' (query of a head), 'L23KV1.K' "
                "or 'L23KV1.V' (key or value of a key/value head), 'MLP23' or 'logits'"
            )
        if match[7]:
            return LOGITS
        if match[6]:
            return cls(int(match[6]), -1, "MLP")
        if match[1]:
            return cls(int(match[1]), int(match[2]), "Q")
        return cls(int(match[3]), int(match[4]), match[5])


LOGITS = Receiver(-1, -1, "logits")


@stored
class Edge(NamedTuple):
    """A direct edge: what a sender adds to the residual stream, as one receiver reads it.

    >>> edge = Edge.parse("L10H2->L23H3.Q")
    >>> edge.sender, str(edge)
    (Head(layer=10, head=2), 'L10H2->L23H3.Q')
    """

    sender: Head
    receiver: Receiver
    span: str = ""
    """The positions it is restricted to, by name; empty for all."""

    def __str__(self) -> str:
        return f"{self.sender}->{self.receiver}" + (f" @ {self.span}" if self.span else "")

    @classmethod
    def parse(cls, text: str) -> Edge:
        whole, _, span = text.partition(" @ ") if isinstance(text, str) else ("", "", "")
        sender, arrow, receiver = whole.replace("→", "->").partition("->")
        if not arrow:
            raise HeadwiseError(f"{quoted(text)} is not an edge; edges are written like 'L10H2->L23H3.Q'")
        return cls(Head.parse(sender), Receiver.parse(receiver), span.strip())


def edge_list(edges: Any) -> list[Edge]:
    """Edges from "L10H2->L23H3.Q" or (sender, receiver), in their order."""
    listed = [edges] if isinstance(edges, str | Edge) else list(edges)
    return [Edge.parse(edge) if isinstance(edge, str) else Edge(*edge) for edge in listed]


MOST_RESAMPLED = 5000
"""Edges up to which intervals are bootstrapped and tests flip signs; more are tested by Student's t, because a test
that flips signs needs 20 flips for each edge."""


@stored
@dataclass(frozen=True, repr=False)
class Edges(Saved):
    """One number per direct edge: positive where the edge helps (metric with it minus metric with it replaced)."""

    edges: list[Edge]
    examples: np.ndarray  # E, N
    """In the metric's unit."""
    model: str
    task: str
    method: str
    metric: str = ""
    sharing: Mapping[int, int] = field(default_factory=dict)
    """Layer -> how many heads share one key/value head."""
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Further information from the method: reference, seed, completeness gap, forward rows."""
    groups: Sequence[str | None] | None = None
    """The group of every example, where some share one: intervals and tests then count groups, not examples."""
    tests: Mapping[str, np.ndarray] = field(default_factory=dict)
    """`lo`, `hi`, `p` and `q`, each `[N]`, of edges that were chosen from more: q then corrects for all of these."""

    @cached_property
    def values(self) -> np.ndarray:
        """`[N]`: the mean over the examples."""
        return np.asarray(self.examples.mean(axis=0))

    @property
    def reference(self) -> str:
        """The ablation type: what replaces a sender's contribution."""
        return str(self.details.get("reference") or "")

    @cached_property
    def stderr(self) -> np.ndarray:
        """`[N]`: the standard error of the mean."""
        from headwise.stats.resampling import group_codes, standard_error

        return np.asarray(standard_error(self.examples, group_codes(self.groups, len(self.examples))))

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.examples)

    def __len__(self) -> int:
        return len(self.edges)

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.edges)

    def __getitem__(self, edge: Edge | str) -> float:
        """The score of one edge, such as `edges["L10H2->L23H3.Q"]`."""
        wanted = edge_list(edge)[0]
        if wanted not in self.edges:
            raise HeadwiseError(
                f"the edge {wanted} was not scored; these have {len(self)} edges, such as {self._some()}"
            )
        return float(self.values[self.edges.index(wanted)])

    # ---- some of the edges -------------------------------------------------------------------------------

    def into(self, receiver: Head | Receiver | str | Sequence[Head | Receiver | str]) -> Edges:
        """The edges into one or several components, largest first: of a head its Q, and the K and V of its group.

        `L23H3` is a head; `L23H3.Q`, `L23KV1.K`, `MLP23` and `logits` are single receivers.
        """
        wanted = {one for name in one_or_several(receiver) for one in self.receivers_of(name)}
        return self._chosen(lambda edge: edge.receiver in wanted, f"into {receiver}")

    def out_of(self, sender: Head | str | Sequence[Head | str]) -> Edges:
        """The edges out of heads (`L10H2`), MLPs (`MLP3`) or the embeddings (`input`), largest first."""
        wanted = head_list(sender)
        return self._chosen(lambda edge: edge.sender in wanted, f"out of {sender}")

    def top(self, k: int, by: str = "absolute") -> Edges:
        """The first k edges. `by`: `absolute`, `signed` (helps most first) or `hinders`."""
        return self._take(ranking(self.values, by)[:k])

    def significant(self, level: float = 0.05) -> Edges:
        """The edges with q below the level, largest first."""
        return self._take([n for n in ranking(self.values, "absolute") if self._tests["q"][n] < level])

    def receivers_of(self, receiver: Head | Receiver | str) -> list[Receiver]:
        """The inputs of a component: a head has its own Q, and K and V of its key/value head."""
        return inputs_of(receiver, self.sharing)

    def _chosen(self, fits: Callable[[Edge], bool], which: str) -> Edges:
        numbers = [n for n in ranking(self.values, "absolute") if fits(self.edges[n])]
        if not numbers:
            raise HeadwiseError(
                f"no edge {which} was scored; these have {len(self)} edges, such as {self._some()}"
            )
        return self._take(numbers)

    def _take(self, numbers: Sequence[int] | np.ndarray) -> Edges:
        some = np.asarray(numbers, dtype=int)
        return replace(
            self,
            edges=[self.edges[n] for n in some],
            examples=self.examples[:, some],
            tests={name: column[some] for name, column in self._tests.items()},
        )

    def _some(self) -> str:
        return ", ".join(str(edge) for edge in self.edges[:2])

    # ---- tables and files --------------------------------------------------------------------------------

    @cached_property
    def _tests(self) -> Mapping[str, np.ndarray]:
        from headwise import stats

        if self.tests:
            return self.tests
        if len(self) <= MOST_RESAMPLED:
            lo, hi = stats.effect_interval(self.examples, groups=self.groups, metric=self.metric)
            p = stats.sign_flip(self.examples, groups=self.groups)
        else:
            lo, hi, p = _student(self.values, self.stderr, self.n)
        return {"lo": lo, "hi": hi, "p": p, "q": stats.benjamini_hochberg(p)}

    def table(self) -> pd.DataFrame:
        """One row per edge, in the order of `edges`, with interval, p-value and q-value.

        `heads` names the heads that share the receiver's K or V. q corrects for all edges that were scored together.
        """
        import pandas as pd

        names = {"model": self.model, "task": self.task, "method": self.method}
        senders, receivers = [e.sender for e in self.edges], [e.receiver for e in self.edges]
        named = {
            "sender": [str(sender) for sender in senders],
            "receiver": [str(receiver) for receiver in receivers],
            "slot": [receiver.slot for receiver in receivers],
            "span": [edge.span for edge in self.edges],
            "heads": [" ".join(map(str, self._readers(receiver))) for receiver in receivers],
        }
        numbers = {
            "sender_layer": [sender.layer for sender in senders],
            "sender_head": [sender.head for sender in senders],
            "receiver_layer": [receiver.layer for receiver in receivers],
            "receiver_head": [receiver.head for receiver in receivers],
        }
        score = {"score": self.values, "stderr": self.stderr, "n": self.n, **self._tests}
        meaning = {"metric": self.metric, "reference": self.reference}
        return pd.DataFrame({**names, **named, **numbers, **score, **meaning})

    def example_table(self) -> pd.DataFrame:
        """The values behind the scores: one row per edge and example."""
        from headwise.tables.frames import long_table

        edges = [str(edge) for edge in self.edges]
        axes: list[dict[str, Any]] = [{"edge": edges}, {"example": range(self.n)}]
        return long_table({}, axes, {"value": self.examples.T}).assign(model=self.model, task=self.task)

    def measured_tables(self) -> dict[str, pd.DataFrame]:
        """What must be finite; none where all is."""
        return {} if np.isfinite(self.examples).all() else {"edge_examples": self.example_table()}

    def _readers(self, receiver: Receiver) -> list[Head]:
        """The heads that attend with a receiver."""
        if receiver.slot == "Q":
            return [Head(receiver.layer, receiver.head)]
        if receiver.slot in ("K", "V"):
            size = self.sharing.get(receiver.layer, 1)
            return [Head(receiver.layer, receiver.head * size + i) for i in range(size)]
        return []

    def _checked(self) -> Edges:
        """These edges, if there is a value for each."""
        if self.examples.ndim != 2 or self.examples.shape[1] != len(self.edges):
            raise ValueError(f"{len(self.edges)} edges and values of shape {self.examples.shape}")
        return self

    # ---- display -----------------------------------------------------------------------------------------

    def plot(self, **options: Any) -> Any:
        """Draw the circuit of the significant edges as a layered graph; returns the matplotlib figure."""
        from headwise.charts.static import figure
        from headwise.charts.wiring import wiring_chart

        if not self.edges:
            raise HeadwiseError("there is no edge to draw; draw the edges that these were chosen from")
        return figure(wiring_chart(self.table(), **options))

    def __repr__(self) -> str:
        first = ", ".join(
            f"{self.edges[n]} {self.values[n]:+.3g}" for n in ranking(self.values, "absolute")[:3]
        )
        name = method_name(self.method, self.reference)
        return (
            f"Edges({name} on {self.task}, {self.model}: {len(self)} edges, n = {self.n}; largest: {first})"
        )

    def _repr_html_(self) -> str:
        """In a notebook, the largest edges."""
        from headwise.display import html_table

        rows = (
            (str(self.edges[n]), f"{self.values[n]:+.3g}", f"{self.stderr[n]:.2g}")
            for n in ranking(self.values, "absolute")[:12]
        )
        name = method_name(self.method, self.reference)
        title = f"{name} edges of {self.model} on {self.task}: the largest of {len(self)}, n = {self.n}"
        return html_table(title, ["edge", f"effect ({self.metric})", "standard error"], rows)


def one_or_several(receivers: Any) -> list[Any]:
    """Receivers as a list; one needs none."""
    if isinstance(receivers, str | Head | Receiver):
        return [receivers]
    if not isinstance(receivers, Iterable):
        raise HeadwiseError(f"receivers are given as a list such as ['L23H3.Q'], not as {quoted(receivers)}")
    return list(receivers)


def inputs_of(receiver: Any, sharing: Mapping[int, int]) -> list[Receiver]:
    """The receivers that a name means; `L23H3` means the head's Q and the K and V of its key/value head.

    sharing: layer -> how many heads share one key/value head.

    >>> [str(one) for one in inputs_of("L23H3", {23: 3})]
    ['L23H3.Q', 'L23KV1.K', 'L23KV1.V']
    """
    if isinstance(receiver, Receiver):
        return [receiver]
    if isinstance(receiver, str):
        text = receiver.strip()
        if "." in text or text == "logits" or text.startswith("MLP"):
            return [Receiver.parse(text)]
        receiver = Head.parse(text)
    (head,) = head_list([receiver])
    if head.head == MLP:
        return [Receiver(head.layer, -1, "MLP")]
    if component_kind(head.head) == "kv_head":
        return [Receiver(*head.cell, slot) for slot in "KV"]
    if head.head < 0:
        raise HeadwiseError(f"{quoted(str(head))} reads nothing, so no edge leads into it")
    shared = head.head // sharing.get(head.layer, 1)
    return [Receiver(head.layer, head.head, "Q"), *(Receiver(head.layer, shared, slot) for slot in "KV")]


def _student(mean: np.ndarray, stderr: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """95 % interval and two-sided p of a mean by Student's t; where all examples agree on 0, p is 1."""
    from scipy.stats import t

    half = t.ppf(0.975, max(n - 1, 1)) * stderr
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(stderr > 0, np.abs(mean) / stderr, np.where(mean == 0, 0.0, np.inf))
    return mean - half, mean + half, 2 * t.sf(ratio, max(n - 1, 1))
