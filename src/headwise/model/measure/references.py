"""What replaces an ablated head (the reference), computed from the ungated model: one registered function per kind.

`zero`, `mean` and `position_mean` are the same for every example; `patch` and `resample` come from another prompt, the
donor; `window` is the head's own output with a short view. A new kind is a new function here, or a plug-in
(docs/plugins.md).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import AfterValidator
from torch import Tensor

from headwise.errors import HeadwiseError, hint
from headwise.heads import Head
from headwise.model.forward.short_view import ShortView
from headwise.model.tokens.encode import Row, encode_rows
from headwise.names import WINDOW, reference_name, window_of
from headwise.registry import Registry
from headwise.settings import Text

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
    window: tuple[int, int] | None = None
    """Of the reference `window`: how many of the last tokens a head sees, and how many of the first."""

    @property
    def reference_rows(self) -> list[Row]:
        """The rows of the reference task, or else of the task itself."""
        if self.reference_task is None:
            return self.rows
        return encode_rows(self.model.text, self.reference_task.examples, "target")


Reference = dict[Any, Tensor] | list[str] | ShortView | None
"""What replaces ablated heads: outputs of each layer, `[H, D]` or by position `[T, H, D]`; or for each example a donor
prompt of equal length, whose head outputs replace those at the same positions; None for zero; a short view, which each
pass computes for itself. Outputs of an MLP or of the embeddings stand under the component, as those of one head:
`Head(12, -1)` -> `[1, width]` or `[T, 1, width]`."""
Compute = Callable[[ReferenceSource], Reference]

REFERENCES: Registry[Compute] = Registry("reference", "headwise.model.measure.references")


def register(name: str) -> Callable[[Compute], Compute]:
    """Make a function that computes a reference known under `name`."""
    return REFERENCES.decorator(name, lambda compute: compute)


def _known(name: str) -> str:
    """A reference as results name it: `window` has its sizes."""
    reference_named(name)
    return reference_name(name)


def reference_named(name: str) -> Compute:
    """The function that computes a reference."""
    return REFERENCES.get(WINDOW if window_of(name) else name)


ReferenceName = Annotated[Text, AfterValidator(_known)]


# ---- the same for every example: zero, and mean head outputs ---------------------------------------------


@register("zero")
def zero(source: ReferenceSource) -> None:
    """Zero ablation."""


@register("mean")
def mean(source: ReferenceSource) -> dict[Any, Tensor]:
    """The mean over all real tokens of the reference examples."""
    return _mean(source, source.reference_rows, by_position=False)


@register("position_mean")
def position_mean(source: ReferenceSource) -> dict[Any, Tensor]:
    """The mean at each position, for reference examples of equal length."""
    rows = source.reference_rows
    lengths = {len(row.ids) for row in rows}
    if len(lengths) > 1:
        raise HeadwiseError(
            f"the reference 'position_mean' needs examples of equal length; these have {min(lengths)} to "
            f"{max(lengths)} tokens (use 'mean', or a task of equal length)"
        )
    prompts, means = ({row.start for row in some} for some in (source.rows, rows))
    if prompts != means or max(len(row.ids) for row in source.rows) > max(lengths):
        raise HeadwiseError(
            f"the reference 'position_mean' needs prompts as long as those of its reference examples: up to "
            f"{max(prompts)} and {max(means)} tokens (use 'mean', or reference examples of the same length)"
        )
    return _mean(source, rows, by_position=True)


def _mean(source: ReferenceSource, rows: list[Row], *, by_position: bool) -> dict[Any, Tensor]:
    ids, settings = [row.ids for row in rows], (by_position, source.batch_tokens, source.components)
    key = ("mean", *settings, tuple(map(tuple, ids)))
    return source.model.once(key, lambda: source.model.mean_outputs(ids, *settings))


# ---- live: computed in each pass from its own queries, keys and values -----------------------------------


@register(WINDOW)
def window(source: ReferenceSource) -> ShortView:
    """The same head with a short view: the first `sink` tokens and the last `window`."""
    assert source.window is not None
    window, sink = source.window
    if source.components:
        raise HeadwiseError(
            f"the reference 'window' shortens what heads see, and {source.components[0]} sees nothing; use it without "
            "components, or another reference"
        )
    return short_view(source.model, window, sink, max(len(row.ids) for row in source.rows), "prompt")


def check_stored(reference: str, what: str) -> None:
    """Refuse the reference `window` where outputs are needed that are computed beforehand."""
    if window_of(reference):
        raise HeadwiseError(
            f"the reference 'window' is computed in each pass, and {what} need outputs that are fixed beforehand; use "
            "another reference, such as 'mean'"
        )


def short_view(model: Model, window: int, sink: int, longest: int, what: str) -> ShortView:
    """The last `window` tokens and the first `sink`. longest: tokens of the longest prompt or text, which must be more;
    a model whose heads cannot be given such a view is refused."""
    if longest <= sink + window:
        raise HeadwiseError(
            f"the longest {what} has {longest} tokens, so the first {sink} and the last {window} are all of it; give "
            f"longer prompts, or a smaller window: {hint('reference', 'window:16')}"
        )
    if reason := model.capabilities.no_short_view:
        raise HeadwiseError(f"the reference 'window' cannot be used with {model.name}: {reason}")
    return ShortView(sink, window)


# ---- from another prompt, the donor: the head's output there at the same position ------------------------
# Each row needs a donor row: the donor's prompt with the row's own continuation.


@register("patch")
def patch(source: ReferenceSource) -> list[str]:
    """Activation patching: the example's counterfactual prompt."""
    prompts = [example.counterfactual for example in source.task.examples]
    if None in prompts:
        raise HeadwiseError(
            f"the reference 'patch' needs a counterfactual for every example; example {prompts.index(None) + 1} of "
            f"{len(prompts)} has none (use 'mean' or 'zero', or give counterfactuals)"
        )
    return [prompt for prompt in prompts if prompt is not None]


@register("resample")
def resample(source: ReferenceSource) -> list[str]:
    """Resample ablation: the prompt of another example of equal length."""
    text, prompts = source.model.text, [example.prompt for example in source.task.examples]
    groups: dict[int, list[int]] = {}
    for index, ids in enumerate(text.encode_whole(text.trimmed(prompts))):
        groups.setdefault(len(ids), []).append(index)
    donors = list(prompts)
    draw = random.Random(f"resample/{source.seed}")
    for length, members in sorted(groups.items()):
        if len(members) < 2:
            raise HeadwiseError(
                f"the reference 'resample' needs another example of equal length; example {members[0] + 1} is the "
                f"only one with {length} tokens (use 'mean' or 'zero', or more examples)"
            )
        draw.shuffle(members)
        # Each takes from the next in a shuffled ring, so none is its own donor.
        for member, donor in zip(members, [*members[1:], members[0]], strict=True):
            donors[member] = prompts[donor]
    return donors


def donor_rows(source: ReferenceSource, prompts: Sequence[str]) -> list[list[int]]:
    """Input tokens of each row's donor: the donor's prompt, then the row's own continuation."""
    text, examples = source.model.text, source.task.examples
    encoded = text.encode_whole(text.trimmed([prompts[row.example] for row in source.rows]))
    originals = text.encode_whole(text.trimmed([examples[row.example].prompt for row in source.rows]))
    donors = []
    for row, donor, prompt in zip(source.rows, encoded, originals, strict=True):
        if len(donor) != len(prompt):
            raise HeadwiseError(
                f"example {row.example + 1}: its prompt has {len(prompt)} tokens and the counterfactual {len(donor)}; "
                "patch replaces position by position, so the two must have the same length"
            )
        donor = text.without(donor, row.dropped)
        # An empty prompt begins with a start token that the tokenizer itself does not add.
        head = row.ids[: row.start - len(donor)] if row.start > len(donor) else []
        donors.append([*head, *donor][: row.start] + row.ids[row.start :])
    return donors


def first_differences(rows: Sequence[Row], donors: Sequence[Sequence[int]], length: int) -> Tensor:
    """`[rows, length]`: True from the first token in which a row and its donor differ.

    Before that the two runs are the same by causality, so replacing one by the other is no change at all;
    acting only from there on makes a patch with an identical prompt exactly nothing.
    """
    first = []
    for row, donor in zip(rows, donors, strict=True):
        pairs = zip(row.ids, donor, strict=True)
        first.append(next((i for i, (a, b) in enumerate(pairs) if a != b), length))
    return torch.arange(length)[None, :] >= torch.tensor(first)[:, None]
