"""Verify that every head of a model can be ablated exactly, before any number is computed with it.

Three identities, on a few tokens of the real model:

1. all gates at 1 give exactly the plain model's logits;
2. one gate at 0 gives what zeroing that head's columns of the output projection by hand gives;
3. every attention layer runs through the hooks.

It is also verified that later tokens cannot reach earlier ones. A model that breaks an identity or is not causal is
refused, and the error names what broke. Which of the engine's shortcuts hold for it: `shortcuts.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.forward.gate import HeadGates, same_gates
from headwise.model.forward.products import faster_products
from headwise.model.forward.run import Pass, run
from headwise.model.sites.attention_function import HeadHook
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.patch import first_of, hooked, without_cudnn_sdpa
from headwise.model.sites.probe import (
    SAME,
    differ_by_rounding,
    is_transposed,
    probe_input,
    probe_logits,
    rounding,
    weight_dtype,
    widened,
)
from headwise.model.sites.sites import Site
from headwise.model.verify.capabilities import Capabilities
from headwise.model.verify.shortcuts import head_outputs, last_block_alone, narrowable_tail, sharing_works


@dataclass(frozen=True)
class Proof:
    """What was shown, and how exactly."""

    mechanism: str
    sites_checked: int
    """Layers on which identity 2 was verified."""
    noise: float
    """Largest difference between two plain runs: 0 on a deterministic device. Taken to be 0, and not measured, where
    the run with all gates at 1 gave the plain run's logits to the bit."""
    largest_gap: float
    """Largest difference found in identity 2, in what the head's block writes to the residual stream."""
    seconds: float


def verify(model: nn.Module, *, every_layer: bool = False) -> tuple[HeadHooks, Proof, Capabilities]:
    """Verify that every head of `model` can be ablated exactly, or raise with the identity that broke.

    Identity 2 is computed for the first, a middle and the last layer, or for `every_layer`.
    """
    started = time.perf_counter()
    if model.training:
        raise HeadwiseError(
            "the model is in training mode, in which dropout makes every result random; call model.eval()"
        )
    with torch.no_grad(), without_cudnn_sdpa(), faster_products(model):
        plain = _plain(model)
        _check_causal(model, plain)
        hooks, noise, gap, checked, streams = _reach_exactly(model, plain, every_layer)
        short = last_block_alone(hooks, streams)
        shares = sharing_works(hooks, plain, noise, short)
        whole = Pass(ids=probe_input(model))
        narrow = narrowable_tail(hooks, plain, noise, short if shares and short is not None else whole)
    proof = Proof(hooks.mechanism, checked, noise, gap, time.perf_counter() - started)
    return hooks, proof, Capabilities(hooks, shares, narrow)


def _plain(model: nn.Module) -> Tensor:
    try:
        plain = probe_logits(model)
    except HeadwiseError:
        raise
    except Exception as error:
        raise HeadwiseError(f"{type(model).__name__} does not run on plain token ids: {error}") from error
    if not torch.isfinite(plain).all():
        raise HeadwiseError(
            f"{type(model).__name__} gives NaN or infinite logits on plain text in {plain.dtype}"
        )
    return plain


def _check_causal(model: nn.Module, plain: Tensor) -> None:
    """The two rows of the probe begin alike, so their first logits must be alike."""
    first, second = plain[:, :SAME]
    if not differ_by_rounding(first, second, rounding(model, plain)):
        moved = float((first - second).abs().max())
        raise HeadwiseError(
            f"{type(model).__name__} is not causal: changing later tokens moved earlier logits by {moved:.2g}. "
            "It looks like an encoder; headwise works on decoders (for a BERT-like model set is_decoder=True)"
        )


def _reach_exactly(
    model: nn.Module, plain: Tensor, every_layer: bool
) -> tuple[HeadHooks, float, float, int, Mapping[int, Tensor]]:
    """The first mechanism for which all three identities hold; the noise, the largest gap, on how many layers it was
    measured, and the residual stream after each block on the probe."""
    broken: list[str] = []
    for mechanism in ("attention function", "projection hook"):
        try:
            hooks = HeadHooks(model, mechanism)
            ones = _with_all_gates_at_one(hooks)
            _check_fired(hooks, ones.fired)
            if mechanism == "projection hook":
                _check_split(hooks)
            noise = _check_ones(model, ones.logits, plain)
            return hooks, noise, *_check_zeros(hooks, ones.calls, noise, every_layer), ones.streams
        except HeadwiseError as error:
            broken.append(f"by {mechanism}: {error}")
    raise HeadwiseError("; ".join(broken))


_Calls = dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]
"""Block -> the arguments that it was called with."""


class _Ones(NamedTuple):
    """A pass with all gates at 1."""

    logits: Tensor
    fired: dict[int, int]
    """Layer -> how often it ran through the hooks."""
    calls: _Calls
    streams: dict[int, Tensor]


def _with_all_gates_at_one(hooks: HeadHooks) -> _Ones:
    zero = {site.layer: torch.zeros(site.heads, site.head_dim) for site in hooks.sites}
    gates = HeadGates(torch.ones(1, *hooks.shape), reference=zero)  # every layer, though no gate is changed
    fired: dict[int, int] = {}
    calls: _Calls = {}
    streams: dict[int, Tensor] = {}

    def counted(layer: int, z: Tensor) -> Tensor:
        fired[layer] = fired.get(layer, 0) + 1
        return gates(layer, z)

    def record(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[block] = args, kwargs

    request = Pass(ids=probe_input(hooks.model), heads=counted, record_streams=streams)
    with hooked(hooks.blocks, before=record):
        return _Ones(run(hooks.model, request, hooks).logits, fired, calls, streams)


def _check_fired(hooks: HeadHooks, fired: Mapping[int, int]) -> None:
    silent = [site.layer for site in hooks.sites if fired.get(site.layer, 0) != site.calls]
    kinds = {type(site.module) for site in hooks.sites} if hooks.mechanism == "attention function" else set()
    holding = [i for i, block in enumerate(hooks.blocks) if any(type(m) in kinds for m in block.modules())]
    silent += sorted(set(holding) - {site.block for site in hooks.sites})
    if silent:
        raise HeadwiseError(
            f"identity 3 broke: the attention of layer {silent[0]} did not run through the hooks"
        )


def _check_split(hooks: HeadHooks) -> None:
    """What a hook sees must be attention output, split by head in order: this is not given, as it is at the
    attention function.

    In the first layer the output at token 1 mixes the values of tokens 0 and 1 with one weight each per head,
    and the output at token 0 is its value. So for two prompts [a, b] and [c, b] the four outputs of a head lie
    in the span of three vectors: the values of a, c and b. Columns that are not one head's span four.
    """
    site = hooks.sites[0]
    if site.head_dim < 4:
        return
    ids = probe_input(hooks.model)[:, :2].clone()
    ids[1, 0] += 3
    z = head_outputs(hooks, Pass(ids=ids))[0][site.layer][0]
    outputs = z.double().permute(2, 3, 0, 1).flatten(2)  # H, D, the four outputs
    outputs = outputs / outputs.norm(dim=1, keepdim=True).clamp_min(1e-30)
    singular = torch.linalg.svdvals(outputs)
    step = torch.finfo(weight_dtype(hooks.model)).eps
    if bool((singular[:, 3] > 256 * step * singular[:, 0]).any()):
        raise HeadwiseError(
            f"the input of {type(site.module).__name__} in {type(hooks.model).__name__} does not split into "
            f"{site.heads} heads of {site.head_dim}: its columns mix the outputs of several heads"
        )
    if torch.equal(z[0, 1], z[1, 1]):
        raise HeadwiseError(f"the input of {type(site.module).__name__} does not depend on earlier tokens")


def _check_ones(model: nn.Module, logits: Tensor, plain: Tensor) -> float:
    """The noise, which needs no second plain run where the logits are equal."""
    moved = float((logits - plain).abs().max())
    noise = float((probe_logits(model) - plain).abs().max()) if moved else 0.0
    if moved > 4 * noise:
        raise HeadwiseError(
            f"identity 1 broke: with all gates at 1 the logits differ from the plain model's by {moved:.2g}"
        )
    return noise


def _check_zeros(hooks: HeadHooks, calls: _Calls, noise: float, every_layer: bool) -> tuple[float, int]:
    """The largest difference, and on how many layers; compared where the two ways could first differ, at the end of
    the head's own block."""

    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value  # a block may write into its input

    def block_output(site: Site, heads: HeadHook | None) -> Tensor:
        """Repeat the call of a head's block with its heads edited."""
        block = hooks.blocks[site.block]
        args, kwargs = calls[block]
        with hooks.attached(heads):
            output = block(*map(copied, args), **{name: copied(value) for name, value in kwargs.items()})
        return widened(first_of(output))

    sites = hooks.sites
    chosen = sites if every_layer else [sites[i] for i in sorted({0, len(sites) // 2, len(sites) - 1})]
    worst, moved = 0.0, False
    for site in chosen:
        head = site.heads - 1
        gates = torch.ones(hooks.shape)
        gates[site.layer, head] = 0
        plain, gated = block_output(site, None), block_output(site, same_gates(gates))
        gaps = []
        for projection in site.projections:
            with zeroed_columns(projection, head, site.head_dim):
                zeroed = block_output(site, None)
            gaps.append(float((zeroed - gated).abs().max()))
            if _same_ablation(hooks.model, plain, gated, zeroed, noise):
                site.projections = (projection,)
                break
        else:
            gap = min(gaps, default=float("inf"))
            raise HeadwiseError(
                f"identity 2 broke: ablating L{site.layer}H{head} by its gate and by zeroing its columns of the output "
                f"projection gives outputs of its block that differ by {gap:.2g}"
            )
        worst, moved = max(worst, gaps[-1]), moved or float((gated - plain).abs().max()) > 4 * noise
    if not moved:
        raise HeadwiseError("identity 2 is empty: ablating heads changed no output")
    return worst, len(chosen)


def _same_ablation(model: nn.Module, plain: Tensor, gated: Tensor, zeroed: Tensor, noise: float) -> bool:
    """Whether two outputs of a block without a head differ by rounding alone.

    In half precision, rounding may do more to the largest number of a stream than a head does. So they must also be
    alike number by number, or in most of what the ablation changed.
    """
    gap, changed = (zeroed - gated).abs(), (gated - plain).abs()
    step = torch.finfo(weight_dtype(model)).eps
    alike = bool((gap <= 4 * step * plain.abs() + 4 * noise).all())
    return float(gap.max()) <= rounding(model, plain, noise) and (
        alike or bool(gap.max() <= changed.max() / 4)
    )


@contextmanager
def zeroed_columns(projection: nn.Module, head: int, head_dim: int) -> Iterator[None]:
    """While this holds, the columns of the projection that read one head are zero.

    Packed (quantised) weights cannot be edited in place; there the columns of the input are zeroed.
    """
    columns = slice(head * head_dim, (head + 1) * head_dim)
    weight = getattr(projection, "weight", None)
    plain = isinstance(weight, Tensor) and weight.is_floating_point() and weight.dim() == 2
    if weight is None or not plain or weight.is_meta:

        def blank(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            others = args[0].clone()
            others[..., columns] = 0
            return (others, *args[1:]), kwargs

        with hooked([projection], before=blank):
            yield
        return
    part = weight.data[columns] if is_transposed(projection) else weight.data[:, columns]
    saved = part.clone()
    part.zero_()
    try:
        yield
    finally:
        part.copy_(saved)
