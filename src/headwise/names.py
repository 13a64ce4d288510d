"""How the components of a model are written: `L12H3` a head, `L12KV1` a key/value head, `MLP12` the MLP of a layer,
`input` the embeddings.

In tables a component is a pair of numbers, layer and head; an MLP has the head number -1, the embeddings are (0, -2),
key/value head k has the number -1000 - k.
"""

from __future__ import annotations

import re

from headwise.errors import HeadwiseError

MLP, INPUT = -1, -2
"""What stands in the place of a head's number; also the column of gates and scores that have such components."""
KV = -1000
"""The number of a layer's first key/value head; the next has one less. It is no column of an array, and none is wide
enough to take it for one: `column_of` says which column it means."""
_NAME = re.compile(r"L([0-9]{1,6})H([0-9]{1,6})|MLP([0-9]{1,6})|(input)|L([0-9]{1,6})KV([0-9]{1,6})")


def component_name(layer: int, head: int) -> str:
    """
    >>> component_name(12, 3), component_name(12, -1), component_name(0, -2), component_name(12, -1001)
    ('L12H3', 'MLP12', 'input', 'L12KV1')
    """
    if head <= KV:
        return f"L{layer}KV{KV - head}"
    if head == MLP:
        return f"MLP{layer}"
    return "input" if (layer, head) == (0, INPUT) else f"L{layer}H{head}"


def component_kind(head: int) -> str:
    """`head`, `kv_head`, `mlp` or `input`, from what stands in the place of a head's number."""
    return "kv_head" if head <= KV else {MLP: "mlp", INPUT: "input"}.get(head, "head")


def column_of(head: int) -> int:
    """Where a component stands in the row of its layer in gates and scores, from its number.

    >>> column_of(3), column_of(-1), column_of(-1001)
    (3, -1, 1)
    """
    return KV - head if head <= KV else head


def component_numbers(name: str) -> tuple[int, int] | None:
    """Layer and head number of a name; None for what names no component.

    >>> component_numbers("L12H3"), component_numbers("MLP12"), component_numbers("input"), component_numbers("L1")
    ((12, 3), (12, -1), (0, -2), None)
    >>> component_numbers("L12KV1")
    (12, -1001)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    if match[4]:
        return 0, INPUT
    if match[5]:
        return int(match[5]), KV - int(match[6])
    return (int(match[3]), MLP) if match[3] else (int(match[1]), int(match[2]))


WINDOW = "window"
"""The reference that is the same head with a short view; alone or with its sizes, `window:128` and `window:128:8`."""
_SIZES = (64, 4)
"""Last and first tokens that a head then sees, where no others are given."""


def window_of(reference: str) -> tuple[int, int] | None:
    """How many of the last tokens and how many of the first a head sees; None for every other reference.

    >>> window_of("window"), window_of("window:128"), window_of("window:128:8"), window_of("mean")
    ((64, 4), (128, 4), (128, 8), None)
    """
    name, *sizes = reference.split(":")
    if name != WINDOW:
        return None
    if len(sizes) > 2 or not all(re.fullmatch("[0-9]{1,9}", size) for size in sizes) or sizes[:1] == ["0"]:
        raise HeadwiseError(
            f"the reference is {reference!r}; expected window, window:128 (the last 128 tokens, at least 1) or "
            "window:128:8 (and the first 8)"
        )
    window, sink = [*map(int, sizes), *_SIZES[len(sizes) :]]
    return window, sink


def reference_name(reference: str, window: int | None = None, sink: int | None = None) -> str:
    """A reference as results name it, with other sizes of `window` where these are given.

    >>> reference_name("window"), reference_name("window", 128, 8), reference_name("mean")
    ('window:64', 'window:128:8', 'mean')
    """
    sizes = window_of(reference)
    if sizes is None:
        if window is not None or sink is not None:
            raise HeadwiseError(
                f"window and sink are sizes of the reference 'window'; the reference here is {reference!r}"
            )
        return reference
    last, first = (given if new is None else new for given, new in zip(sizes, (window, sink), strict=True))
    sizes = window_of(f"{WINDOW}:{last}:{first}")  # checks what was given
    return f"{WINDOW}:{last}" if first == _SIZES[1] else f"{WINDOW}:{last}:{first}"


def ablation_name(reference: str) -> str:
    """What an ablation type is called in sentences and titles.

    >>> ablation_name("position_mean"), ablation_name("patch")
    ('position mean ablation', 'counterfactual patching')
    >>> ablation_name("window:128")
    'window ablation (first 4 and last 128 tokens)'
    """
    if sizes := window_of(reference):
        window, sink = sizes
        return f"window ablation (first {sink} and last {window} tokens)"
    return "counterfactual patching" if reference == "patch" else f"{reference.replace('_', ' ')} ablation"


def method_name(method: str, reference: str) -> str:
    """A score method with its ablation type, where it has one.

    >>> method_name("attribution", "mean"), method_name("direct", "")
    ('attribution (mean)', 'direct')
    """
    return f"{method} ({reference})" if reference else method
