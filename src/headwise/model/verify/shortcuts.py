"""What a forward pass or a generation may leave out or share, each verified on the model itself before it is used.

Rows that are equal up to a block may be computed once; what follows the last block's attention may be computed at
scored positions only; batches may be padded on the left, go on from a KV cache, and read a shared prefix or past once.
A model for which one of them does not hold does without it: batches then have prompts of equal length only, or every
step reads the whole text again.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.model.forward.decode import Batch, Past
from headwise.model.forward.gate import HeadGates
from headwise.model.forward.run import Pass, SharedRows, run
from headwise.model.forward.short_view import ShortView, masked_attention
from headwise.model.sites.attention_function import Attention, AttentionHook
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.patch import hooked
from headwise.model.sites.probe import differ_by_rounding, entry_device, probe_input, rounding, weight_dtype


def head_outputs(hooks: HeadHooks, request: Pass) -> tuple[dict[int, list[Tensor]], Tensor]:
    """Head outputs z of a pass, layer -> one for each call of the layer, and the logits."""
    outputs: dict[int, list[Tensor]] = {}

    def note(layer: int, z: Tensor) -> None:
        outputs.setdefault(layer, []).append(z)

    return outputs, run(hooks.model, replace(request, heads=note), hooks).logits


def sharing_works(hooks: HeadHooks, plain: Tensor, noise: float, short: Pass | None) -> bool:
    """Whether blocks exchange nothing but the residual stream, and many copies of two rows get their logits where the
    first half of the blocks computes one copy, the other half two copies, and the last block all.

    short: a pass of the probe that begins at the last block, where the blocks give out one tensor each.
    """
    if any(site.calls != 1 for site in hooks.sites):
        return False
    if short is not None and not _gives(hooks, short, plain, noise):
        return False
    model, blocks = hooks.model, len(hooks.blocks)
    ids = probe_input(model)
    copies = ids.shape[1] + 1  # as many rows as tokens could be taken for one another
    rows = torch.arange(len(ids) * copies, device=ids.device)
    computed = [len(ids) if index < blocks // 2 else 2 * len(ids) for index in range(blocks - 1)]
    shared = {index: SharedRows(rows[:count], rows % count) for index, count in enumerate(computed)}
    last = torch.full((len(ids), 1), ids.shape[1] - 1, device=ids.device)
    together = Pass(ids=ids.repeat(copies, 1), scored=last.repeat(copies, 1), shared=shared)
    return _gives(hooks, together, plain[:, -1:].repeat(copies, 1, 1), noise)


def last_block_alone(hooks: HeadHooks, streams: Mapping[int, Tensor]) -> Pass | None:
    """A pass of the probe that begins at the last block.

    streams: block -> the residual stream after it on the probe, of the blocks that give out one tensor.
    """
    before = len(hooks.blocks) - 2
    if before not in streams:
        return None
    return Pass(ids=probe_input(hooks.model), resume_from=(before, streams[before]))


def _gives(hooks: HeadHooks, request: Pass, expected: Tensor, noise: float) -> bool:
    """Whether a pass runs and gives these logits."""
    try:
        logits = run(hooks.model, request, hooks).logits
    except Exception:
        # A block counts rows in its own way, or reads more than the stream: Gemma 3n's reads keys of earlier blocks.
        return False
    limit = rounding(hooks.model, expected, noise)
    return logits.shape == expected.shape and differ_by_rounding(logits, expected, limit)


def narrowable_tail(hooks: HeadHooks, plain: Tensor, noise: float, probe: Pass) -> tuple[nn.Module, ...]:
    """The output projection of the last block and the largest part that runs after its attention: those whose narrowing
    changes no logit of the pass `probe`."""
    sites = [site for site in hooks.sites if site.block == len(hooks.blocks) - 1]
    after = _parts_after(hooks, probe, [site.module for site in sites])
    largest = sorted(after, key=lambda part: sum(p.numel() for p in part.parameters()))[-1:]
    # Of several candidates none has been shown to be the output projection.
    settled = [site.projections[0] for site in sites if site.calls == len(site.projections) == 1]
    narrowable: list[nn.Module] = []
    for part in (*settled, *largest):
        nested = any(part in other.modules() or other in part.modules() for other in narrowable)
        alone = not nested and _only_its_own_token(hooks, probe, part, plain, noise)
        if alone and _narrows(hooks, replace(probe, narrow=[*narrowable, part]), plain, noise):
            narrowable.append(part)
    return tuple(narrowable)


def _parts_after(hooks: HeadHooks, probe: Pass, attention: Sequence[nn.Module]) -> list[nn.Module]:
    """The children of the last block that run after its attention and make one stream of another."""
    after: list[nn.Module] = []
    seen_attention = False

    def note(part: nn.Module, args: tuple[Any, ...], _: dict[str, Any], output: Any) -> None:
        nonlocal seen_attention
        seen_attention |= any(module in attention for module in part.modules())
        shapes_fit = bool(args) and all(isinstance(t, Tensor) and t.dim() == 3 for t in (args[0], output))
        if seen_attention and shapes_fit and not any(module in attention for module in part.modules()):
            after.append(part)

    with hooked(hooks.blocks[-1].children(), after=note):
        run(hooks.model, probe, hooks)
    return after


def _narrows(hooks: HeadHooks, probe: Pass, plain: Tensor, noise: float) -> bool:
    """Whether parts that compute one token alone leave its logits as they are."""
    where = torch.ones_like(probe.ids[:, :1])
    positions = (probe.ids.shape[1] - 1, 2)
    return all(_gives(hooks, replace(probe, scored=t * where), plain[:, [t]], noise) for t in positions)


def _only_its_own_token(hooks: HeadHooks, probe: Pass, part: nn.Module, plain: Tensor, noise: float) -> bool:
    """Whether what a part reads at one token reaches no head output of the last block and no other token's logits.

    The part's input at that token is moved far. The last bits of float32 may still differ: a mixture-of-experts layer
    rounds differently when other tokens share an expert. In half precision this looks like a small effect on other
    tokens, and such a part runs in full.
    """
    token = 2
    last = [site.layer for site in hooks.sites if site.block == len(hooks.blocks) - 1]

    def move(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        moved = args[0].clone()
        far = torch.arange(moved.shape[-1], device=moved.device).cos()
        moved[:, token] += (100 * (1 + moved.abs().max()) * far).to(moved)
        return (moved, *args[1:]), kwargs

    try:
        before, _ = head_outputs(hooks, probe)
        with hooked([part], before=move):
            after, logits = head_outputs(hooks, probe)
    except Exception:  # a part that is not called with one stream
        return False
    others = torch.arange(plain.shape[1], device=plain.device) != token
    pairs = [pair for layer in last for pair in zip(after[layer], before[layer], strict=True)]
    gaps = [(logits - plain)[:, others], *(z - old for z, old in pairs)]
    limit = 4 * noise + 8 * torch.finfo(torch.float32).eps * max(1.0, float(plain.abs().max()))
    return all(float(gap.abs().max()) <= limit for gap in gaps)


# ---- generation: padding, KV cache, shared prefix and past -----------------------------------------------


@dataclass(frozen=True)
class Decoding:
    """What was shown to be exact for a model."""

    pad: int
    """Token id of the padding."""
    padding: bool = False
    """Prompts of different lengths may share a batch."""
    cache: bool = False
    """A step may read one token and the KV cache instead of the whole text."""
    prefix: bool = False
    """What all rows begin with may be read once for all of them."""


def decoding(hf: nn.Module) -> Decoding:
    """What this model's batches may do, compared with plain runs."""
    pad = _pad_token(hf)
    tried = [Decoding(pad, padding, cache) for cache in (True, False) for padding in (True, False)]
    able = next((able for able in tried if _holds(hf, able)), Decoding(pad))
    sharing = replace(able, prefix=True)
    if able.padding and able.cache and not _counts_distance(hf) and _holds(hf, sharing):
        return sharing
    return able


def _pad_token(hf: nn.Module) -> int:
    given: Any = getattr(hf.config, "pad_token_id", None)
    words: Any = hf.get_input_embeddings()  # type: ignore[operator]
    return given if isinstance(given, int) and 0 <= given < words.weight.shape[0] else 0


def _counts_distance(hf: nn.Module) -> bool:
    """Whether padding after a shared beginning would count as distance: in windows, and in MPT's linear biases, which
    go by places in the batch. In half precision rounding hides what the latter change."""
    config = hf.config.get_text_config()  # type: ignore[operator, union-attr]
    names = ("sliding_window", "window_size", "attention_chunk_size", "attention_window_size", "local_window")
    windows = any(isinstance(getattr(config, name, None), int) for name in names)
    return windows or bool(getattr(getattr(config, "attn_config", None), "alibi", False))


def _holds(hf: nn.Module, able: Decoding) -> bool:
    """Three rows, two steps, one row leaves in between: the others must not notice anything."""
    tokens = probe_input(hf)[0].tolist()
    shared = 2 if able.prefix else 0
    if shared:
        rows = [tokens, [*tokens[:2], tokens[4]], [*tokens[:3], *tokens[:2]]]
    else:
        rows = [tokens, tokens[2:] if able.padding else tokens[::-1], tokens[:3] if able.padding else tokens]
    grown = [[*row, tokens[1]] for row in rows]

    def alone(row: list[int]) -> Tensor:
        ids = torch.tensor([row], device=entry_device(hf))
        return run(hf, Pass(ids=ids, scored=torch.full_like(ids[:, :1], len(row) - 1))).logits[0, 0]

    with torch.no_grad():
        first = torch.stack([alone(row) for row in rows])
        second = torch.stack([alone(row) for row in grown[1:]])
        try:
            batch = Batch(hf, rows, pad=able.pad, cached=able.cache, shared=shared)
            first_batched = batch.logits()
            batch.append(torch.tensor([tokens[1]] * 3, device=batch.ids.device))
            batch.keep(torch.tensor([1, 2]))
            second_batched = batch.logits()
        except Exception:  # a family without this ability raises whatever it likes; it is run without
            return False
    return _alike(hf, first_batched, first) and _alike(hf, second_batched, second)


def past_works(hooks: HeadHooks, share_rows: bool) -> bool:
    """Whether rows that go on from their past, with and without shared rows, have the logits of the whole rows."""
    if "position_ids" not in inspect.signature(hooks.model.forward).parameters:
        return False
    ids = probe_input(hooks.model)
    once = torch.arange(len(ids), device=ids.device)
    shared = {block: SharedRows(once, once.repeat(2)) for block in range(len(hooks.blocks) // 2)}
    try:
        with torch.no_grad():
            whole = run(hooks.model, Pass(ids=ids), hooks).logits[:, 2:]
            past = Past.read(hooks, ids[:, :2])
            inputs = past.inputs(2, shared if share_rows else {}, ids.shape[1] - 2)
            request = Pass(ids=ids[:, 2:].repeat(2, 1), inputs=inputs, shared=shared if share_rows else {})
            logits = run(hooks.model, request, hooks).logits
    except Exception:  # a family without this ability raises whatever it likes; its rows are run in full
        return False
    return _alike(hooks.model, logits, whole.repeat(2, 1, 1))


# ---- the short view of the reference `window` --------------------------------------------------------------


def short_view_problem(hooks: HeadHooks) -> str:
    """Why heads cannot be given a short view; empty where they can.

    A view as long as the probe must give the plain logits, and a shorter one those of the family's own function under
    a whole mask, which must differ from the plain ones: a mask that is ignored does not pass.
    """
    if hooks.mechanism != "attention function":
        return f"it is accessed by a {hooks.mechanism}, and calls no attention function that could be given a mask"
    ids, sink, window = probe_input(hooks.model), 1, 2
    zeros = torch.zeros(1, *hooks.shape, device=ids.device)

    def short(view: ShortView) -> Tensor:
        gates = HeadGates(zeros.to(torch.float32), reference=view)
        return run(hooks.model, Pass(ids=ids, heads=gates, attention=gates.attention), hooks).logits

    def whole_mask(_: Tensor | None) -> AttentionHook:
        i, j = torch.meshgrid(*[torch.arange(ids.shape[1], device=ids.device)] * 2, indexing="ij")
        seen = (j <= i) & ((j < sink) | (i - j < window))

        def hook(_: int, implementation: str, function: Attention) -> Attention:
            def attend(module: nn.Module, *call: Any, **options: Any) -> tuple[Tensor, None]:
                query, key, value, *rest = call
                model_mask = rest[0] if rest else options.pop("attention_mask", None)
                masked = masked_attention(implementation, function, module, options)
                model_mask = model_mask if isinstance(model_mask, Tensor) and model_mask.dim() == 4 else None
                return masked(query, key, value, seen[None, None], model_mask), None

            return attend

        return hook

    try:
        with torch.no_grad():
            plain = run(hooks.model, Pass(ids=ids), hooks).logits
            all_seen, few_seen = short(ShortView(0, ids.shape[1])), short(ShortView(sink, window, chunk=2))
            expected = run(hooks.model, Pass(ids=ids, attention=whole_mask), hooks).logits
    except Exception as error:  # whatever a family raises whose function takes no mask
        return f"its attention function fails under a mask ({type(error).__name__})"
    if not _alike(hooks.model, all_seen, plain):
        return "a window as long as the prompt does not give the plain logits"
    if not _alike(hooks.model, few_seen, expected):
        return "a short window does not give the logits of the same mask written out"
    gap, change = (float((few_seen - other).abs().max()) for other in (expected, plain))
    return "" if change > 4 * gap else "its attention function ignores a mask"


def _alike(hf: nn.Module, logits: Tensor, expected: Tensor) -> bool:
    """Whether logits of the same text differ by rounding alone.

    Trained models amplify rounding on a few odd tokens: the bundled one by 300 steps of float32. A lost mask or a
    wrong position moves logits by their own size.
    """
    dtype = weight_dtype(hf)
    half = dtype in (torch.float16, torch.bfloat16)
    share = 64 * torch.finfo(dtype).eps if half else 1024 * torch.finfo(torch.float32).eps
    return differ_by_rounding(logits, expected, share * max(1.0, float(expected.abs().max())))
