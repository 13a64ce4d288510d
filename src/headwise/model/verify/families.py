"""In which of transformers' causal families every head can be ablated, and how: tried, not declared.

The table that ships was made by trying a tiny random model of every family (`survey`) with the transformers
version it names; `headwise list families --live` tries again with the version at hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from headwise.errors import HeadwiseError

_TABLE = "families.json"
LARGEST = 30_000_000
"""Parameters; a family whose shrunk configuration stays larger is not tried."""


@dataclass(frozen=True)
class Family:
    """What trying one family gave."""

    name: str
    status: str
    """`reached`, `refused` (tried, and an identity does not hold), or `untried` (no tiny model could be built)."""
    how: str
    """The mechanism that reaches it, or the reason why not."""
    shares: bool = False
    """Whether variants with the same gates in blocks 0 to k may share one run of those blocks."""
    edges: str = ""
    """`yes`, or why direct edges between its components cannot be measured; empty where its heads are not reached."""


def names() -> list[str]:
    """The causal families that the installed transformers registers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def attempt(name: str) -> Family:
    """Build a tiny random model of the family and verify the identities on every layer of it."""
    from headwise.model.model import Model
    from headwise.model.verify.proof import verify
    from headwise.model.verify.tiny import parameter_count, tiny_model

    try:
        size = parameter_count(name)
        if size > LARGEST:
            return Family(
                name, "untried", f"its smallest configuration has {size / 1e6:.0f} million parameters"
            )
        model = tiny_model(name)
    except Exception as error:  # whatever a family's own code raises on a tiny configuration
        return Family(name, "untried", f"no tiny configuration could be built: {_line(error)}")
    try:
        hooks, proof, capabilities = verify(model, every_layer=True)
    except HeadwiseError as error:
        kind = "untried" if "does not run on plain token ids" in str(error) else "refused"
        return Family(name, kind, _line(error))
    layers = len({site.block for site in hooks.sites})
    mechanism = hooks.mechanism
    if layers < len(hooks.blocks):
        mechanism += f", in the {layers} of {len(hooks.blocks)} layers that have attention"
    edges = _edges(Model(model, None, name, hooks, proof, capabilities, 64))
    return Family(name, "reached", mechanism, capabilities.share_rows, edges)


def _edges(model: Any) -> str:
    from headwise.model.edges.parts import take_apart

    try:
        take_apart(model)
        return "yes"
    except HeadwiseError as error:
        return str(error).partition("cannot be measured: ")[2].partition("; score its")[0]


def survey(advance: Callable[[int], None] = lambda steps: None) -> Iterator[Family]:
    """Try every family."""
    for name in names():
        yield attempt(name)
        advance(1)


def shipped() -> tuple[str, list[Family]]:
    """The table that ships, and the transformers version it was made with."""
    table = json.loads(resources.files("headwise.model.verify").joinpath(_TABLE).read_text(encoding="utf-8"))
    return table["transformers"], [Family(**entry) for entry in table["families"]]


def table_text(families: list[Family]) -> str:
    """The table as it ships."""
    import transformers

    rows = ",\n".join("  " + json.dumps(asdict(family), ensure_ascii=False) for family in families)
    return f'{{"transformers": "{transformers.__version__}", "families": [\n{rows}\n]}}\n'


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "…"


def _write_table() -> None:
    from headwise.progress import progress

    with progress("Trying families", len(names())) as advance:
        text = table_text(list(survey(advance)))
    resources.files("headwise.model.verify").joinpath(_TABLE).write_text(text, encoding="utf-8")  # type: ignore[attr-defined]


if __name__ == "__main__":
    _write_table()
