"""What the page may ask for: every field checked, every size limited."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headwise.heads import Head, ones
from headwise.model.model import Model
from headwise.settings import sentence

MOST_TOKENS = 8192
"""Longest prompt, in tokens; a model with a shorter context takes fewer."""
MOST_NEW = 256
"""Longest continuation, in tokens."""
MOST_BYTES = 1_000_000
"""Largest request. A prompt of `MOST_TOKENS` tokens has about 40,000 bytes in English."""

Gate = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)], Annotated[float, Field(ge=0, le=2)]]
"""Layer, head, gate."""


class TabRequest(BaseModel):
    """Something that one tab of the browser asks for."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    tab: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
    """Names the tab: a newer request of the same kind cancels the older one."""


class Gated(TabRequest):
    """Gates on heads, and the ablation type."""

    gates: Annotated[list[Gate], Field(max_length=65_536)] = []
    """Heads whose gate is not 1."""
    reference: Literal["zero", "mean", "patch", "window"] = "mean"

    def gate_array(self, model: Model) -> np.ndarray:
        """Gates `[L, H]`."""
        model.check_heads(Head(layer, head) for layer, head, _ in self.gates)
        gates = ones(model.shape)
        for layer, head, gate in self.gates:
            gates[layer, head] = gate
        return gates


class OfPrompt(Gated):
    """Something about one prompt under gates."""

    prompt: str
    counterfactual: str = ""
    chat: bool = False
    """Put the prompts into the chat template of the model."""


class Run(OfPrompt):
    """The next token and the continuation."""

    new_tokens: Annotated[int, Field(ge=1, le=MOST_NEW)] = 32


class Attribution(OfPrompt):
    """The gradient of log p(target) with respect to every gate."""

    target: Annotated[int, Field(ge=0)] | None = None
    """A token id; by default the most likely next token."""


class OpenHead(OfPrompt):
    """One head on this prompt."""

    head: Annotated[str, Field(max_length=16)]
    query: Annotated[int, Field(ge=0)] | None = None
    """The token whose row of attention is wanted; by default the last one."""
    only_row: bool = False
    """Leave out everything but the row of attention."""


class Control(Gated):
    """Random heads of the same layers, with the same gates."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class Check(Gated):
    """The effect of the gates on held-out examples of a task."""

    task: Annotated[str, Field(max_length=400)]
    n: Annotated[int, Field(ge=4, le=512)] = 32


class Card(TabRequest):
    """The card of a head on a task."""

    head: Annotated[str, Field(max_length=16)]
    task: Annotated[str, Field(max_length=400)]
    n: Annotated[int, Field(ge=4, le=32)] = 16


Kind = TypeVar("Kind", bound=TabRequest)


def parsed(kind: type[Kind], body: bytes) -> Kind:
    """A request of this kind; raises a `HeadwiseError` that names what is wrong with it."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise sentence(kind, error) from None
