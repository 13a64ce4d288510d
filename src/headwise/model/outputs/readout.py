"""From what a head, an MLP or the embeddings write to the logits along the residual stream alone, as a linear map.

A head's output goes through its columns of the output projection, in some families through a norm of its own
(Gemma, OLMo 2) or a fixed factor (Granite), into the stream; the stream goes through the final norm and the
unembedding. Norms are the only nonlinear part, and with their scale frozen at what it was they are linear too. An MLP's
output takes the same way from where its module ends, and so do the embeddings.

No family is declared. One probing pass looks which modules run where, and the linear form is solved for and
checked against what the model computes; a model whose parts do not fit (soft-capped logits, a norm after the
sum) is refused with the part that did not.

A LayerNorm or RMSNorm divides each vector by its own size. With that divisor frozen, what is left is a weight per
coordinate, perhaps minus the mean, perhaps a bias. Families store the weight in different ways, so the form that
reproduces the module's output is taken.

B rows, P positions, T tokens, W width of the stream, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.forward.products import product
from headwise.model.forward.run import Pass, at_positions
from headwise.model.outputs.stream import check_residual
from headwise.model.sites.attention_function import Watcher
from headwise.model.sites.patch import first_of, hooked
from headwise.model.sites.probe import probe_input
from headwise.model.sites.sites import Site
from headwise.names import INPUT

if TYPE_CHECKING:
    from headwise.model.model import Model


@dataclass
class FrozenNorm:
    """y = scale · weight · (x, less its mean if `centred`) + bias. W width, B rows, P positions."""

    scale: Tensor  # B, P, 1
    weight: Tensor  # W
    bias: Tensor  # W
    centred: bool

    def transposed(self, direction: Tensor) -> Tensor:
        """The direction in x that reads what `direction[B, P, W]` reads in y, the bias aside."""
        back = self.scale * self.weight * direction
        return back - back.mean(-1, keepdim=True) if self.centred else back

    def linear(self, x: Tensor) -> Tensor:
        """What the norm makes of a part `x[B, P, W]` of its input, the bias aside."""
        return self.scale * self.weight * (x - x.mean(-1, keepdim=True) if self.centred else x)


def frozen_norm(norm: nn.Module, x: Tensor, y: Tensor) -> FrozenNorm | None:
    """The linear map by which `norm` took `x` to `y`; None if it is no norm over the last axis."""
    if x.shape != y.shape or list(norm.children()):
        return None
    room = rounding(y.dtype)
    x, y = x.double(), y.double()
    width = x.shape[-1]
    stored, bias = (_vector(norm, name, width, x.device) for name in ("weight", "bias"))
    weights = [torch.ones_like(x.flatten(0, -2)[0])] if stored is None else [stored, 1 + stored]
    offset = torch.zeros_like(weights[0]) if bias is None else bias
    best, least = None, room * float(y.norm())
    for weight in weights:
        for centred in (False, True):
            base = weight * (x - x.mean(-1, keepdim=True) if centred else x)
            size = (base * base).sum(-1, keepdim=True).clamp_min(1e-30)
            scale = (base * (y - offset)).sum(-1, keepdim=True) / size
            missed = float((scale * base + offset - y).norm())
            if missed <= least:
                best, least = FrozenNorm(scale, weight, offset, centred), missed
    return best


def rounding(dtype: torch.dtype) -> float:
    """What a few operations in this precision may lose, as a share of the size of what they compute."""
    if dtype in (torch.float16, torch.bfloat16):
        return 2 * torch.finfo(dtype).eps
    # Many families compute norms in float32 whatever the weights are in.
    return 16 * torch.finfo(torch.float32).eps


def _vector(module: nn.Module, name: str, width: int, device: torch.device) -> Tensor | None:
    value = getattr(module, name, None)
    if isinstance(value, Tensor) and value.shape == (width,):
        return value.detach().to(device).double()
    return None


@dataclass
class Call:
    """The first tensor that a module read and the first that it wrote, in one pass."""

    read: Tensor
    wrote: Tensor


@dataclass
class Write:
    """How what a module gives out is added to the residual stream."""

    module: nn.Module
    """The output projection of heads, an MLP, or the embeddings."""
    norm: nn.Module | None
    """The norm between the module and the stream, where there is one."""
    factor: float
    """The family's factor on what is added to the stream."""

    def back(self, direction: Tensor, norms: Mapping[nn.Module, FrozenNorm]) -> Tensor:
        """The direction in what the module gives out that reads `direction[B, P, W]` in the stream."""
        return self.factor * (direction if self.norm is None else norms[self.norm].transposed(direction))


@dataclass
class Reading:
    """One forward pass at chosen positions."""

    z: dict[int, Tensor]  # layer -> B, P, H, D
    stream: Tensor  # B, P, W: what the last block wrote
    logits: Tensor  # B, P, vocabulary
    norms: dict[nn.Module, FrozenNorm]
    modules: dict[Head, Tensor]  # MLP or input -> B, P, W


class Readout:
    """The path from every head, and from the MLPs and embeddings that are asked for, to the logits of one model."""

    def __init__(self, model: Model, components: Sequence[Head] = ()) -> None:
        """Find the path by one probing pass, or refuse the model with the part that is not linear.

        components: MLPs and the input, beside the heads.
        """
        check_residual(model, "direct logit attribution")
        self.model = model
        self.unembedding = model.hf.get_output_embeddings()  # type: ignore[operator]
        weight = getattr(self.unembedding, "weight", None)
        if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.dim() != 2:
            raise self._refusal("its unembedding is not a plain matrix")
        self.weight = weight
        calls: dict[nn.Module, Call] = {}
        z: dict[int, Tensor] = {}
        with torch.no_grad(), _observed(list(model.hf.modules()), calls):
            logits = model.run_whole(Pass(ids=probe_input(model.hf), heads=z.__setitem__)).raw.logits
        self.norm = self._final_norm(calls)
        self.factor = self._logit_factor(calls, logits)
        self.writes = [(site, self._write(site, z[site.layer], calls)) for site in model.hooks.sites]
        self.modules = {
            one: self._input(module, calls) if one.head == INPUT else self._mlp(one.layer, module, calls)
            for one, module in model.modules(components).items()
        }

    # ---- finding the path --------------------------------------------------------------------------------

    def _final_norm(self, calls: dict[nn.Module, Call]) -> nn.Module | None:
        """The norm between the last block and the unembedding, if there is one."""
        stream, read = calls[self.model.hooks.blocks[-1]].wrote, calls[self.unembedding].read
        if _same(stream, read):
            return None
        for module, call in calls.items():
            if _same(call.read, stream) and _same(call.wrote, read) and frozen_norm(module, stream, read):
                return module
        raise self._refusal("more than a norm runs between its last block and its unembedding")

    def _logit_factor(self, calls: dict[nn.Module, Call], logits: Tensor) -> float:
        plain, shown = calls[self.unembedding].wrote.double(), logits.double()
        factor = float((shown * plain).sum() / (plain * plain).sum())
        if (shown - factor * plain).abs().max() > rounding(logits.dtype) * shown.abs().max():
            raise self._refusal("its logits are bent after the unembedding (a soft cap)")
        return factor

    def _write(self, site: Site, z: Tensor, calls: dict[nn.Module, Call]) -> Write:
        """Which module's output, times which factor, is what this layer's heads add to the stream.

        A sequential block shows the sum: something inside it reads stream + attention. A parallel block shows
        its end: what it wrote less what it read and less what some module wrote (the MLP) is the attention.
        """
        block = self.model.hooks.blocks[site.block]
        inside = {m: calls[m] for m in block.modules() if m in calls and m is not block}
        read, wrote = calls[block].read.double(), calls[block].wrote.double()
        sums = [c.read.double().reshape(read.shape) - read for c in inside.values() if _alike(c.read, read)]
        written = [c.wrote for c in inside.values() if _alike(c.wrote, read)]
        sums += [wrote - read - part.double().reshape(read.shape) for part in written]
        room = rounding(calls[block].wrote.dtype) * float(read.norm() + wrote.norm())
        read_z = [p for p in site.projections if p in calls and _same(calls[p].read, z.flatten(-2))]
        found = [one for p in read_z if (one := _fitted(p, calls[p].wrote, inside, sums, room))]
        if found:
            return min(found, key=lambda one: one[1])[0]
        raise self._refusal(
            f"what the heads of layer {site.layer} add to the stream is not linear in their output"
        )

    def _mlp(self, layer: int, mlp: nn.Module, calls: dict[nn.Module, Call]) -> Write:
        """How an MLP is added to the stream: its block's output less what the block read and its heads added."""
        block = self.model.hooks.blocks[layer]
        inside = {m: calls[m] for m in block.modules() if m in calls and m is not block}
        read, wrote = calls[block].read.double(), calls[block].wrote.double()
        total = wrote - read
        for site, write in self.writes:
            if site.layer == layer:
                added = calls[write.norm or write.module].wrote.double()
                total = total - write.factor * added.reshape(read.shape)
        room = rounding(calls[block].wrote.dtype) * float(read.norm() + wrote.norm())
        found = _fitted(mlp, calls[mlp].wrote, inside, [total], room) if mlp in calls else None
        if found is None:
            raise self._refusal(
                f"what block {layer} adds to the stream is not its heads plus its MLP; leave 'mlps' out of components"
            )
        return found[0]

    def _input(self, embeddings: nn.Module, calls: dict[nn.Module, Call]) -> Write:
        """How embeddings reach the first block: two prompts differ there by a factor on how their embeddings differ.

        What both have in common, embeddings of positions, is not the embedding module's.
        """
        first = calls[self.model.hooks.blocks[0]].read.double()
        wrote = calls[embeddings].wrote.double()
        room = rounding(calls[embeddings].wrote.dtype) * float(first.norm())
        found = None
        if wrote.shape == first.shape:
            found = _fitted(embeddings, wrote[0] - wrote[1], {}, [first[0] - first[1]], room)
        if found is None:
            raise self._refusal(
                "its first block does not read its embeddings times a number; leave 'input' out of components"
            )
        return found[0]

    def _refusal(self, why: str) -> HeadwiseError:
        return HeadwiseError(
            f"direct logit attribution is not defined for {self.model.name}: {why}; use 'ablation' or 'attribution'"
        )

    # ---- reading along it --------------------------------------------------------------------------------

    def read(self, ids: Tensor, positions: Tensor, watch: Watcher | None = None) -> Reading:
        """Run the plain model and keep, at `positions[B, P]`, what the path needs. watch: sees the attention calls."""
        z: dict[int, Tensor] = {}

        def note(layer: int, outputs: Tensor) -> None:
            z[layer] = at_positions(outputs.flatten(-2), positions).unflatten(-1, outputs.shape[-2:])

        last = self.model.hooks.blocks[-1]
        writes = [*(write for _, write in self.writes), *self.modules.values()]
        norms = [n for n in (self.norm, *(w.norm for w in writes)) if n is not None]
        written = [write.module for write in self.modules.values()]
        calls: dict[nn.Module, Call] = {}
        with torch.no_grad(), _observed([last, *norms, *written], calls, positions):
            logits = self.model.run_whole(Pass(ids=ids, scored=positions, heads=note, watch=watch)).logits
        frozen: dict[nn.Module, FrozenNorm] = {}
        for norm in norms:
            solved = frozen_norm(norm, calls[norm].read, calls[norm].wrote)
            if solved is None:
                raise self._refusal(f"its {type(norm).__name__} is no affine map on these prompts")
            frozen[norm] = solved
        modules = {one: calls[write.module].wrote.double() for one, write in self.modules.items()}
        return Reading(z, calls[last].wrote.double(), logits, frozen, modules)

    def towards(self, reading: Reading, direction: Tensor) -> Iterator[tuple[int | Head, Tensor]]:
        """The vector that reads `direction[B, P, W]` before the unembedding: of each layer in z `[B, P, H, D]`, then of
        each MLP and of the input in what it writes `[B, P, W]`."""
        back = direction if self.norm is None else reading.norms[self.norm].transposed(direction)
        for site, write in self.writes:
            into = write.back(back, reading.norms)
            yield site.layer, _transposed(write.module, into, reading.z[site.layer])
        for component, write in self.modules.items():
            yield component, write.back(back, reading.norms)

    def written(self, head: Head, z: Tensor, norms: Mapping[nn.Module, FrozenNorm]) -> Tensor:
        """The logits `[B, P, vocabulary]` that the output `z[B, P, D]` of one head adds by itself, biases aside."""
        site, write = next(pair for pair in self.writes if pair[0].layer == head.layer)
        of_layer = z.new_zeros(*z.shape[:-1], site.heads, z.shape[-1])
        nothing = of_layer.flatten(-2)
        of_layer = of_layer.index_copy(-2, torch.tensor([head.head], device=z.device), z[..., None, :])
        with torch.no_grad():
            added = (write.module(of_layer.flatten(-2)) - write.module(nothing)).double()
            for norm in (write.norm, self.norm):
                if norm is not None:
                    added = norms[norm].linear(added.to(norms[norm].weight.device))
            weight = self.weight.detach()
            logits = product(added.to(weight.device, weight.dtype), weight).float()
        return self.factor * write.factor * logits

    def linear(self, reading: Reading, direction: Tensor) -> Tensor:
        """What the frozen path makes of the whole stream, read along `direction[B, P, W]`: `[B, P]`."""
        if self.norm is None:
            return (reading.stream * direction).sum(-1)
        norm = reading.norms[self.norm]
        return (reading.stream * norm.transposed(direction)).sum(-1) + (direction * norm.bias).sum(-1)


def _fitted(
    module: nn.Module, out: Tensor, inside: Mapping[nn.Module, Call], sums: Sequence[Tensor], room: float
) -> tuple[Write, float] | None:
    """The norm among `inside` (or none) and the factor by which `out` of a module comes nearest to one of `sums`, and
    by how much it misses; None where that is more than `room`."""
    norms = [m for m, c in inside.items() if _same(c.read, out) and frozen_norm(m, out, c.wrote)]
    best, least = None, room
    for norm in [*norms, None]:
        for total in sums:
            added = (out if norm is None else inside[norm].wrote).double().reshape(total.shape)
            factor = float((total * added).sum() / (added * added).sum().clamp_min(1e-30))
            missed = float((total - factor * added).norm())
            if factor > 0.01 and missed <= least:
                best, least = Write(module, norm, 1.0 if abs(factor - 1) < 0.01 else factor), missed
    return None if best is None else (best, least)


def _transposed(projection: nn.Module, into: Tensor, z: Tensor) -> Tensor:
    """The output projection read backwards. By autograd, because a packed or adapted weight has no columns."""
    with torch.inference_mode(False), torch.enable_grad():
        at = torch.zeros_like(z.flatten(-2), requires_grad=True)
        out = projection(at)
        (gradient,) = torch.autograd.grad(out, at, into.to(out.device, out.dtype).reshape(out.shape))
    return gradient.unflatten(-1, z.shape[-2:]).double()


def _observed(
    modules: Sequence[nn.Module], calls: dict[nn.Module, Call], positions: Tensor | None = None
) -> AbstractContextManager[None]:
    """While this holds, `calls` receives what each module reads and writes, or that at `positions[B, P]` only."""

    def copied(tensor: Tensor) -> Tensor:
        if positions is not None:
            tensor = at_positions(tensor.reshape(len(positions), -1, tensor.shape[-1]), positions)
        return tensor.detach().clone()  # a later step may work in place

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        read = args[0] if args else kwargs.get("hidden_states")
        wrote = first_of(output)
        if isinstance(read, Tensor) and isinstance(wrote, Tensor):
            output_copy = copied(wrote)  # embeddings read token numbers, which are no vectors
            calls[module] = Call(copied(read) if read.is_floating_point() else output_copy, output_copy)

    return hooked(modules, after=note)


def _alike(a: Tensor, b: Tensor) -> bool:
    """The same numbers of vectors of the same width, however they are stacked."""
    return a.shape[-1:] == b.shape[-1:] and a.numel() == b.numel()


def _same(a: Tensor, b: Tensor) -> bool:
    return _alike(a, b) and torch.equal(a.reshape(b.shape), b)
