"""The kinds of reference that are known by name, and what each may be computed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from torch import Tensor

from headwise.heads import Head
from headwise.model.tokens.encode import Row, encode_rows
from headwise.registry import Registry
from headwise.settings import Text, one_of

if TYPE_CHECKING:
    from headwise.model.model import Model
    from headwise.tasks.examples import Task


@dataclass(frozen=True)
class ReferenceSource:
    """What a reference may be computed from."""

    model: Model
    task: Task
    rows: list[Row]
    """The rows of the task, one or more per example."""
    reference_task: Task | None
    """The examples behind a mean; None for the task itself."""
    seed: int
    batch_tokens: int
    components: tuple[Head, ...] = ()
    """MLPs and the input that are gated beside heads."""

    @property
    def reference_rows(self) -> list[Row]:
        """The rows of the reference task, or else of the task itself."""
        if self.reference_task is None:
            return self.rows
        return encode_rows(self.model.text, self.reference_task.examples, "target")


Reference = dict[Any, Tensor] | list[str] | None
"""What replaces ablated heads: outputs of each layer, `[H, D]` or by position `[T, H, D]`; or for each example a donor
prompt of equal length, whose head outputs replace those at the same positions; None for zero. Outputs of an MLP or of
the embeddings stand under the component, as those of one head: `Head(12, -1)` -> `[1, width]` or `[T, 1, width]`."""
Compute = Callable[[ReferenceSource], Reference]

REFERENCES: Registry[Compute] = Registry("reference", "headwise.model.measure.references.*")


def register(name: str) -> Callable[[Compute], Compute]:
    """Make a function that computes a reference known under `name`."""

    def add(compute: Compute) -> Compute:
        REFERENCES.add(name, compute)
        return compute

    return add


ReferenceName = Annotated[Text, one_of("reference", REFERENCES.all)]
