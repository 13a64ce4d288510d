"""A mask baked into the weights: a plain checkpoint that any server can load.

A gate on a head's output is a factor on those columns of the output projection that read the head. So a model with
some heads at 0 (or at any other number, with the reference `zero`) is the same model with these columns scaled.
Before anything is written, the edited model's logits are compared with the gated model's.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError, flag, hint
from headwise.files import explain_disk_errors, user_path
from headwise.heads import Head, head_list
from headwise.model.forward.gate import same_gates
from headwise.model.forward.run import Pass, run
from headwise.model.load.checkpoint import save_plain
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.probe import is_transposed, probe_input, probe_logits, weight_dtype
from headwise.model.sites.sites import Site
from headwise.model.verify.proof import verify

if TYPE_CHECKING:
    from headwise.model.model import Model

LIMIT = 1e-4
"""Largest difference in logits between the gated model and the edited one, relative to logits above 1; float32."""
RECORD = "headwise.json"
"""Beside the weights: which heads were gated, and by how much. Servers leave it alone."""


def export(
    model: Model, heads: Head | str | Sequence[Head | str], out: str | Path, gate: float = 0.0
) -> Path:
    """Write the model with the given heads at `gate` as a checkpoint folder; returns its path.

    0 removes a head, above 1 amplifies it. `AutoModelForCausalLM.from_pretrained(out)` loads the result; the
    model itself is left as it was.
    """
    if model.edge_gates is not None and model.edge_gates.bias is not None:
        raise HeadwiseError(
            f"{model.name} has edge gates, which no plain checkpoint can hold: its weights alone are another, dense "
            "model. Load it with headwise and give the heads as gates"
        )
    chosen = head_list(heads)
    if not np.isfinite(gate):
        raise HeadwiseError(f"the gate is {gate}; expected a finite number: 0 removes a head, 2 doubles it")
    if not chosen:
        raise HeadwiseError('no heads are given; a heads file lists at least one, such as ["L12H3"]')
    model.check_heads(chosen)
    folder = user_path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HeadwiseError(f"{folder} exists and is not an empty folder; give {flag('out')} a new one")
    gates = np.ones(model.shape)
    for head in chosen:
        gates[head] = gate
    # Which of several linear maps after an attention is its output projection is only known where it was tried.
    hooks, _, _ = verify(model.hf, every_layer=True)
    record = {"model": model.name, "gate": gate, "heads": [str(head) for head in chosen]}
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Everything is written before anything has its name: a full disk leaves no part of a checkpoint.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".", ignore_cleanup_errors=True) as name:
            work = Path(name)
            with torch.no_grad(), baked(hooks, gates):
                save_plain(model.hf, work)
            model.text.tokenizer.save_pretrained(work)
            (work / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            for file in sorted(work.iterdir()):
                os.replace(file, folder / file.name)
    return folder


@contextmanager
def baked(hooks: HeadHooks, gates: np.ndarray) -> Iterator[None]:
    """While this holds, the model's weights include the gates; raises where they cannot."""
    sites = [site for site in hooks.sites if (gates[site.layer, : site.heads] != 1).any()]
    for site in sites:
        _check_editable(hooks, site, gates)
    request = Pass(ids=probe_input(hooks.model), heads=same_gates(gates))
    gated = run(hooks.model, request, hooks).logits
    sites = list({id(_weight(site)): site for site in sites}.values())  # layers may share one projection
    saved = [_weight(site).data.clone() for site in sites]
    try:
        for site in sites:
            _scale(site, gates[site.layer, : site.heads])
        gap = float((probe_logits(hooks.model) - gated).abs().max())
        dtype = weight_dtype(hooks.model)
        rounding = 64 * torch.finfo(dtype).eps if dtype in (torch.float16, torch.bfloat16) else 0.0
        limit = max(LIMIT, rounding) * max(1.0, float(gated.abs().max()))
        if not gap <= limit:
            raise HeadwiseError(
                f"this mask cannot be written into the weights of {type(hooks.model).__name__}: its logits would "
                f"differ from the gated model's by {gap:.2g} (at most {limit:.2g} is rounding), so something between "
                "attention and output projection is not a plain factor per head"
            )
        yield
    finally:
        for site, weight in zip(sites, saved, strict=True):
            _weight(site).data.copy_(weight)


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
