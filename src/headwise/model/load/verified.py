"""A verification that is remembered: the same weights and code on the same kind of processor are verified once.

What is kept is where the heads are and which shortcuts hold (`verified/KEY.json` in the cache), never a number of a
study. The key has the hash of every weight file, and everything else on which a verification could depend, so
a change of any of them is verified again. Remembered on CPUs only: there a verification takes about as long as loading
does, and on an accelerator less than hashing the weights.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import platform
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise._version import __version__
from headwise.files import replacing
from headwise.model.forward.products import onednn_is_faster
from headwise.model.load.cache import cache_folder, hash_ahead, sha256_once
from headwise.model.load.checkpoint import check_finite
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.sites import Site
from headwise.model.verify.capabilities import Capabilities
from headwise.model.verify.proof import Proof, verify

log = logging.getLogger("headwise")
Verified = tuple[HeadHooks, Proof, Capabilities]
KEPT = 100
"""Verifications that are kept; older ones are deleted."""


def verified(hf: nn.Module, label: str, folder: Path | None, *, every_layer: bool = False) -> Verified:
    """What `verify` gives for this model, remembered from an earlier load where nothing has changed since.

    folder: what the weights were loaded from, where they are exactly those of its files; None: always verify.
    every_layer: always verify, and every layer.
    """
    key = None if folder is None else _key(hf, folder)
    if key is not None and not every_layer and (remembered := _recall(hf, key)) is not None:
        return remembered
    check_finite(hf, label)
    found = verify(hf, every_layer=every_layer)
    if key is not None:
        _remember(hf, key, found)
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files that decide what a checkpoint's model computes: its weights, their index, its configuration."""
    return sorted(
        [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json"), folder / "config.json"]
    )


def hash_while_importing(folder: Path, device: torch.device) -> None:
    """transformers is imported for seconds; meanwhile other threads hash the weights that a CPU will run."""
    if device.type == "cpu":
        for file in weight_files(folder):
            hash_ahead(file)
    import transformers.modeling_utils  # noqa: F401


def _key(hf: nn.Module, folder: Path) -> str | None:
    """The name under which this model's verification is kept; None where its code or weights have no fixed content."""
    kind, devices = type(hf), {parameter.device.type for parameter in hf.parameters()}
    own_code = kind.__module__.startswith("transformers.models.")  # not code of the user or of a repository
    if devices != {"cpu"} or not own_code or getattr(hf.config, "quantization_config", None) is not None:
        return None
    try:
        files = {path.name: sha256_once(path) for path in weight_files(folder)}
        family = sha256_once(Path(inspect.getfile(kind)))
    except OSError:
        return None
    facts: dict[str, Any] = {
        "files": files,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "attention": str(getattr(hf.config, "_attn_implementation", None)),
        "dtypes": sorted({str(parameter.dtype) for parameter in hf.parameters()}),
        "device": [
            "cpu",
            platform.machine(),
            torch.backends.cpu.get_cpu_capability(),
            onednn_is_faster(),
        ],
        "versions": versions() | {"family": family},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def versions() -> dict[str, str]:
    """Of all code that takes part in a verification; of headwise also the content, which changes in development."""
    import transformers

    return {
        "headwise": f"{__version__} {_our_code()}",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


@cache
def _our_code() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


# ---- what is kept -----------------------------------------------------------------------------------------


def _path(key: str) -> Path:
    return cache_folder() / "verified" / f"{key}.json"


def _remember(hf: nn.Module, key: str, found: Verified) -> None:
    hooks, proof, able = found
    names = {module: name for name, module in hf.named_modules()}
    sites = [
        {
            "module": names[site.module],
            "projections": [names[part] for part in site.projections],
            "numbers": [site.heads, site.head_dim, site.kv_heads, site.calls],
        }
        for site in hooks.sites
    ]
    shortcuts = {"share_rows": able.share_rows, "narrow": [names[part] for part in able.narrow]}
    content = {"proof": asdict(proof), "sites": sites, "shortcuts": shortcuts}
    folder = _path(key).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(_path(key)) as partial:
            partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
        for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:  # a cache that cannot be written to
        log.debug("the verification is not remembered: %s", error)


def _recall(hf: nn.Module, key: str) -> Verified | None:
    """What was kept under this key, on the modules of this model; None where there is nothing usable."""
    modules = dict(hf.named_modules())
    try:
        content = json.loads(_path(key).read_text(encoding="utf-8"))
        sites = []
        for one in content["sites"]:
            heads, head_dim, kv_heads, calls = one["numbers"]
            parts = tuple(modules[name] for name in one["projections"])
            sites.append(Site(-1, -1, modules[one["module"]], heads, head_dim, kv_heads, calls, parts))
        proof, shortcuts = Proof(**content["proof"]), content["shortcuts"]
        narrow = tuple(modules[name] for name in shortcuts["narrow"])
        hooks = HeadHooks(hf, proof.mechanism, sites)
        return hooks, proof, Capabilities(hooks, bool(shortcuts["share_rows"]), narrow)
    except (OSError, ValueError, KeyError, TypeError):
        return None
