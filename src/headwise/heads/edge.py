"""Direct edges between components of a model: how they are written and read. Nothing here knows what a model is.

A sender is a head, an MLP or the embeddings. A receiver is one input of a later component: the query of a head (Q), the
key or value of a key/value head (K, V), the input of an MLP, or the final logits.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from headwise.errors import HeadwiseError, quoted
from headwise.heads.head import Head
from headwise.tables.codec import stored

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
        return (
            cls(int(match[1]), int(match[2]), "Q")
            if match[1]
            else cls(int(match[3]), int(match[4]), match[5])
        )


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
