"""A mask baked into the weights, or heads cut out of them: a plain checkpoint that any server can load.

A gate on a head's output is a factor on those columns of the output projection that read the head. So a model with
some heads at 0 (or at any other number, with the reference `zero`) is the same model with these columns scaled.
Before a folder has its files, the edited model's logits are compared with the gated model's.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError, first_line, flag, hint
from headwise.files import explain_disk_errors, user_path
from headwise.heads import Head, Order, Scores, at_least_one, head_list
from headwise.heads.components import kinds_of
from headwise.model.forward.gate import same_gates
from headwise.model.forward.run import Pass, run
from headwise.model.load.checkpoint import save_plain
from headwise.model.load.shrink import last_heads, nearest_size, shrunk, takes_means
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.probe import entry_device, is_transposed, probe_input, probe_logits, weight_dtype
from headwise.model.sites.sites import Site
from headwise.model.verify.proof import verify
from headwise.settings import several

if TYPE_CHECKING:
    from headwise.model.model import Model

LIMIT = 1e-4
"""Largest difference in logits between the gated model and the edited one, relative to logits above 1; float32."""
RECORD = "headwise.json"
"""Beside the weights: which heads were gated, and by how much. Servers leave it alone."""
log = logging.getLogger("headwise")


def export(
    model: Model,
    heads: Scores | Head | str | Sequence[Head | str],
    out: str | Path,
    gate: float = 0.0,
    *,
    shrink: bool = False,
    share: float | None = None,
    components: str | Sequence[str] | None = None,
    reference_prompts: str | Sequence[str] | None = None,
) -> Path:
    """Write the model with the given heads at `gate` as a checkpoint folder; returns its path.

    0 removes a head, above 1 amplifies it. `AutoModelForCausalLM.from_pretrained(out)` loads the result; the
    model itself is left as it was.

    shrink: cut the heads out of the weights, so that the folder is smaller. Every layer must lose as many heads, and
        every key/value group all of its heads or as many as the others.
    share: of all heads, to be cut out: `heads` is then a ranking (scores, or every head, most important first), of
        which the last ones in every layer go. The nearest share that is possible is taken.
    components: with share, `heads`: as many query heads of every group; `kv_heads`: whole key/value groups, which makes
        the KV cache smaller as well. By default what the ranking ranks.
    reference_prompts: with shrink, texts over which the removed heads' mean outputs are taken. These go into the bias
        of the output projection, in families that can have one; in others a warning says that they are left out.

    >>> scores = hw.score(model, task, "nested")                                # doctest: +SKIP
    >>> hw.export(model, scores, "smaller", share=1 / 3)                        # doctest: +SKIP
    """
    shrink = shrink or share is not None
    if share is not None:
        heads = heads_to_cut(model, heads, share, components)
    elif isinstance(heads, Scores):
        raise HeadwiseError(f"scores rank heads; say how many are to be cut out: {hint('share', 0.25)}")
    chosen, folder = _checked(model, heads, out, gate)
    if reference_prompts is not None and not shrink:
        raise HeadwiseError(
            "reference_prompts are for shrink=True: without it removed heads are zeros in the weights"
        )
    if shrink and gate != 0:
        raise HeadwiseError(f"the gate is {gate}; a head that is cut out has the gate 0")
    # Which of several linear maps after an attention is its output projection is only known where it was tried.
    hooks, _, _ = verify(model.hf, every_layer=True)
    gates = np.ones(model.shape)
    for head in chosen:
        gates[head] = gate
    means = None
    record: dict[str, Any] = {"model": model.name, "gate": gate, "heads": list(map(str, chosen))}
    if shrink and reference_prompts is not None:
        if takes_means(hooks):
            means = model.mean_outputs(model.text.encode_whole(several(reference_prompts)))
        else:
            log.warning(
                "%s has no bias after its heads, so the removed heads' mean outputs are left out",
                type(model.hf).__name__,
            )
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Everything is written before anything has its name: a full disk leaves no part of a checkpoint.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".", ignore_cleanup_errors=True) as name:
            work = Path(name)
            if shrink:
                for site in hooks.sites:
                    _check_editable(hooks, site, gates)
                save_plain(shrunk(hooks, chosen, means), work)
                _check_loads(hooks, gates, means, work)
                record |= {"shrunk": True, "reference": "zero" if means is None else "mean"}
            else:
                with torch.no_grad(), baked(hooks, gates):
                    save_plain(model.hf, work)
            model.text.tokenizer.save_pretrained(work)
            (work / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            for file in sorted(work.iterdir()):
                os.replace(file, folder / file.name)
    return folder


def heads_to_cut(
    model: Model, ranking: Any, share: float, components: str | Sequence[str] | None = None
) -> Order:
    """The heads that go when about this share of them is cut out of every layer; see `export`."""
    order = ranking.order() if isinstance(ranking, Scores) else head_list(ranking)
    size = nearest_size(model.hooks, share, components or kinds_of(order))
    return last_heads(model.hooks, model.query_heads(order), size)


def _checked(model: Model, heads: Any, out: str | Path, gate: float) -> tuple[Order, Path]:
    """The heads and the folder, if they can be meant."""
    if model.edge_gates is not None and model.edge_gates.bias is not None:
        raise HeadwiseError(
            f"{model.name} has edge gates, which no plain checkpoint can hold: its weights alone are another, dense "
            "model. Load it with headwise and give the heads as gates"
        )
    chosen = at_least_one(model.query_heads(heads))
    if not np.isfinite(gate):
        raise HeadwiseError(f"the gate is {gate}; expected a finite number: 0 removes a head, 2 doubles it")
    folder = user_path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HeadwiseError(f"{folder} exists and is not an empty folder; give {flag('out')} a new one")
    return chosen, folder


@contextmanager
def baked(hooks: HeadHooks, gates: np.ndarray) -> Iterator[None]:
    """While this holds, the model's weights include the gates; raises where they cannot."""
    sites = [site for site in hooks.sites if (gates[site.layer, : site.heads] != 1).any()]
    for site in sites:
        _check_editable(hooks, site, gates)
    gated = _gated(hooks, gates)
    sites = list({id(_weight(site)): site for site in sites}.values())  # layers may share one projection
    saved = [_weight(site).data.clone() for site in sites]
    try:
        for site in sites:
            _scale(site, gates[site.layer, : site.heads])
        _compare(hooks, probe_logits(hooks.model), gated, _NO_FACTOR)
        yield
    finally:
        for site, weight in zip(sites, saved, strict=True):
            _weight(site).data.copy_(weight)


def _check_loads(
    hooks: HeadHooks, gates: np.ndarray, means: Mapping[int, Tensor] | None, folder: Path
) -> None:
    """Raise unless transformers alone loads the folder and computes the gated model's logits."""
    from transformers import AutoModelForCausalLM

    gated = _gated(hooks, gates, means)
    try:
        again = AutoModelForCausalLM.from_pretrained(folder, dtype=weight_dtype(hooks.model))
        logits = probe_logits(again.to(entry_device(hooks.model)).eval())
    except Exception as error:
        raise HeadwiseError(
            f"transformers does not load {type(hooks.model).__name__} with fewer heads: {first_line(error)}"
        ) from error
    why = "so something beside its projections depends on the number of heads"
    if means is not None:
        why += ", or a gate follows the heads (zero in place of their mean outputs may work)"
    _compare(hooks, logits, gated, why)


def _gated(hooks: HeadHooks, gates: np.ndarray, means: Mapping[int, Tensor] | None = None) -> Tensor:
    """The logits of the probe under the gates."""
    heads = replace(same_gates(gates), reference=means)
    with torch.no_grad():
        return run(hooks.model, Pass(ids=probe_input(hooks.model), heads=heads), hooks).logits


_NO_FACTOR = "so something between attention and output projection is not a plain factor per head"


def _compare(hooks: HeadHooks, logits: Tensor, gated: Tensor, why: str) -> None:
    """Raise where the edited weights do not give the gated model's logits."""
    gap = float((logits - gated).abs().max())
    dtype = weight_dtype(hooks.model)
    rounding = 64 * torch.finfo(dtype).eps if dtype in (torch.float16, torch.bfloat16) else 0.0
    limit = max(LIMIT, rounding) * max(1.0, float(gated.abs().max()))
    if not gap <= limit:
        raise HeadwiseError(
            f"this mask cannot be written into the weights of {type(hooks.model).__name__}: its logits would "
            f"differ from the gated model's by {gap:.2g} (at most {limit:.2g} is rounding), {why}"
        )


def _weight(site: Site) -> Tensor:
    weight = site.projections[0].weight
    assert isinstance(weight, Tensor)
    return weight


def _check_editable(hooks: HeadHooks, site: Site, gates: np.ndarray) -> None:
    """Raise a `HeadwiseError` where the columns of a head cannot be scaled separately."""
    family = type(hooks.model).__name__
    weight = getattr(site.projections[0], "weight", None) if site.projections else None
    plain = isinstance(weight, Tensor) and weight.dim() == 2 and weight.is_floating_point()
    if weight is None or not plain or weight.itemsize < 2:
        raise HeadwiseError(
            f"layer {site.layer} of {family} has packed (quantised) weights, whose columns cannot be scaled; load the "
            f"model unquantised (for a GGUF file: with {hint('dtype', 'float32')}) and export that"
        )
    if weight.is_meta:
        raise HeadwiseError(f"layer {site.layer} of {family} is offloaded; load it into memory to export it")
    for other in hooks.sites:
        shared = other is not site and any(
            getattr(p, "weight", None) is weight for p in other.projections[:1]
        )
        same = other.heads == site.heads and np.array_equal(gates[other.layer], gates[site.layer])
        if shared and not same:
            raise HeadwiseError(
                f"layers {site.layer} and {other.layer} of {family} share one output projection, so a mask that "
                "differs between them cannot be written into it; gate the same heads in both"
            )


def _scale(site: Site, gates: np.ndarray) -> None:
    weight = _weight(site)
    factors = torch.from_numpy(gates).repeat_interleave(site.head_dim).to(weight.device, weight.dtype)
    weight.data.mul_(factors[:, None] if is_transposed(site.projections[0]) else factors)
