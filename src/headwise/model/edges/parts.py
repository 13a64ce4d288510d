"""Whether the blocks of a model can be taken apart: each must add its heads and its MLP to the stream that it reads.

An edge is defined where a block returns x + A(z) + M(m): the stream x, what it makes of its head outputs z, and what it
makes of its MLP's output m. No family is declared. One probing pass runs every block with x, z and m changed one by one
and together, and compares. A model whose blocks do anything else is refused, and the error says which block.

G groups of rows (one per change), S probe rows, T tokens, W width of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.forward.gate import by_token
from headwise.model.forward.run import Edit, Pass
from headwise.model.sites.probe import probe_input, rounding, weight_dtype, widened

if TYPE_CHECKING:
    from headwise.model.model import Model

# The groups of the probing pass: what is added to x, the factor on z, the factor on m (None: the MLP's own answer).
_GROUPS: tuple[tuple[float, float, float | None], ...] = (
    (0, 1, 1), (1, 1, 1), (0, 0, 1), (0, 0.5, 1), (1, 0, 1), (0, 0, None), (0, 1, 0), (0, 0, 0), (0, 1, 0.5),
)  # fmt: skip

_CLEAR, _ALIKE = 32, 0.1
"""A change is clear of rounding if it is so many times the spacing of numbers; two clear changes are alike if they
differ by no more than this share. Half of what stands before a norm comes out of it whole: a difference of 1."""


@dataclass(frozen=True)
class BlockParts:
    """One decoder block, taken apart."""

    layer: int
    """Of the block and of its heads."""
    heads: int
    kv_heads: int
    mlp: nn.Module
    """The module whose output is the MLP's."""
    sequential: bool
    """Whether the MLP reads what the block's own heads write; False in parallel blocks."""
    linear: bool
    """Whether heads and MLP are added as they are, without a norm between them and the stream."""


@dataclass(frozen=True)
class Parts:
    """All blocks of a model."""

    blocks: tuple[BlockParts, ...]

    @property
    def linear(self) -> bool:
        return all(part.linear for part in self.blocks)

    @property
    def last(self) -> int:
        """The last layer."""
        return len(self.blocks) - 1


def take_apart(model: Model) -> Parts:
    """The parts of every block, or a `HeadwiseError` with the reason why edges of this model cannot be measured."""
    hooks = model.hooks
    if hooks.mechanism != "attention function":
        raise refused(
            model,
            f"its heads are accessed by a {hooks.mechanism}, which does not show queries, keys and values",
        )
    if not model.capabilities.share_rows:
        raise refused(
            model,
            "its blocks exchange more than the residual stream, or some run several times per pass, so a pass cannot "
            "begin at a block",
        )
    if [site.block for site in hooks.sites] != list(range(len(hooks.blocks))):
        raise refused(model, "not every block has exactly one attention with heads")
    try:
        mlps = model.capabilities.mlps
    except HeadwiseError as error:
        raise refused(model, str(error).partition(": ")[2].partition("; leave")[0]) from None
    probe = _Probe(model, mlps)
    probe.run()
    parts = []
    for index, site in enumerate(hooks.sites):
        sequential, linear = probe.judge(index)
        parts.append(BlockParts(index, site.heads, site.kv_heads, mlps[index], sequential, linear))
    return Parts(tuple(parts))


def refused(model: Model, why: str) -> HeadwiseError:
    return HeadwiseError(
        f"edges of {model.name} cannot be measured: {why}; score its heads with hw.score instead"
    )


class _Probe:
    """One pass in which every block runs with changed x, z and m, each block beginning at the plain stream."""

    def __init__(self, model: Model, mlps: tuple[nn.Module, ...]) -> None:
        self.model, self.mlps = model, mlps
        self.ids = probe_input(model.hf)
        self.size = len(self.ids)
        self.outputs: dict[int, Tensor] = {}  # G, S, T, W
        self.mlp_outputs: dict[int, Tensor] = {}
        self.moves: dict[int, Tensor] = {}

    def run(self) -> None:
        blocks = self.model.hooks.blocks
        modules: dict[nn.Module, Edit] = {mlp: partial(self._mlp, i) for i, mlp in enumerate(self.mlps)}
        modules |= {block: partial(self._note, index) for index, block in enumerate(blocks)}
        streams: dict[int, Edit] = {index: partial(self._begin, index) for index in range(len(blocks))}
        ids = self.ids.repeat(len(_GROUPS), 1)
        request = Pass(ids=ids, streams=streams, heads=self._heads, modules=modules, last=len(blocks) - 1)
        try:
            with torch.no_grad():
                self.model.run_whole(request)
        except HeadwiseError:
            raise
        except Exception as error:  # whatever a family's own code raises on a changed stream
            raise refused(self.model, f"its blocks do not take a changed stream ({error})") from error

    def _begin(self, index: int, stream: Tensor) -> Tensor:
        plain = stream[: self.size]
        wave = torch.arange(plain.shape[-1], device=plain.device).cos().to(plain.dtype)
        self.moves[index] = wave * plain.abs().mean()
        return torch.cat([plain + added * self.moves[index] for added, _, _ in _GROUPS])

    def _heads(self, layer: int, z: Tensor) -> Tensor:
        return torch.cat([factor * z[: self.size] for _, factor, _ in _GROUPS])

    def _mlp(self, index: int, output: Tensor) -> Tensor:
        groups = by_token(output, len(_GROUPS) * self.size).split(self.size)
        self.mlp_outputs[index] = torch.stack(groups)
        factors = [factor for _, _, factor in _GROUPS]
        edited = [plain if f is None else f * groups[0] for plain, f in zip(groups, factors, strict=True)]
        return torch.cat(edited).reshape(output.shape)

    def _note(self, index: int, output: Tensor) -> None:
        self.outputs[index] = output.unflatten(0, (len(_GROUPS), self.size))

    def judge(self, index: int) -> tuple[bool, bool]:
        """Whether the MLP reads the block's own heads, and whether heads and MLP are added linearly."""
        plain, moved, none, half, none_moved, _, no_mlp, nothing, half_mlp = widened(self.outputs[index])
        delta, by_heads, by_mlp = widened(self.moves[index]), plain - none, plain - no_mlp
        added = [(moved - plain, delta), (none_moved - none, delta), (no_mlp - nothing, by_heads)]
        if not all(self._same(index, got, expected) for got, expected in added):
            kind = type(self.model.hooks.blocks[index]).__name__
            raise refused(
                self.model,
                f"block {index} ({kind}) does not return the stream that it reads plus what heads and MLP write",
            )
        m = self.mlp_outputs[index]
        halves = [(half - none, by_heads / 2), (half_mlp - no_mlp, by_mlp / 2)]
        return not torch.equal(m[0], m[5]), all(self._same(index, got, half) for got, half in halves)

    def _same(self, index: int, got: Tensor, expected: Tensor) -> bool:
        """Whether two changes of a block's output differ by rounding alone.

        The largest difference is no test in half precision, where what rounding may do to the largest number of a
        stream exceeds all that a block adds. So numbers are also compared one by one, where the expected change is many
        times what rounding may do to the output there: of these, most must agree.
        """
        outputs, gap = widened(self.outputs[index]), (got - expected).abs()
        if float(gap.max()) > 4 * rounding(self.model.hf, outputs):
            return False
        step = torch.finfo(weight_dtype(self.model.hf)).eps
        clear = expected.abs() > _CLEAR * step * outputs.abs().amax(0)
        return not bool(clear.any()) or float((gap / expected.abs())[clear].median()) <= _ALIKE
