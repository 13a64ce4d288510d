"""`headwise check`: verify that every head can be ablated exactly (what is proved: `model/verify/proof.py`)."""

from __future__ import annotations

import time
from typing import Any

from headwise.cli.output import echo
from headwise.cli.root import LOAD, ModelName, app, with_options
from headwise.cli.running import span


@app.command()
@with_options(*LOAD)
def check(model: ModelName, **options: Any) -> dict[str, Any]:
    """Verify that every head of a model can be ablated exactly."""
    from headwise.model.load.load import load

    started = time.perf_counter()
    loaded = load(model, check_every_layer=True, **options)
    layers, heads = loaded.shape
    sites, proof, shares = loaded.hooks.sites, loaded.proof, loaded.capabilities.share_rows
    exactly = "exactly" if proof.noise == 0 else f"within the device's own noise of {proof.noise:.1e}"
    kv_heads, head_size = span([s.kv_heads for s in sites]), span([s.head_dim for s in sites])
    lines = [
        f"{loaded.name}: {layers} layers × {heads} heads, {kv_heads} key/value heads, head size {head_size}, "
        f"{loaded.dtype_name} on {loaded.device}",
        f"  heads accessed by   {proof.mechanism}",
        f"  all gates at 1      the plain model's logits, {exactly}",
        f"  one gate at 0       zeroed columns of the output projection, largest difference {proof.largest_gap:.1e} "
        f"({proof.sites_checked} of {len(sites)} layers)",
        f"  attention layers    {len(sites)} of {len(sites)} run through the hooks",
        f"  prefix sharing      {'yes' if shares else 'no: blocks exchange more than the residual stream'}",
        f"  seconds             {time.perf_counter() - started:.1f} (verification {proof.seconds:.1f})",
    ]
    if loaded.capabilities.norm_after_heads:
        lines.insert(
            -1, "  norm after heads    yes: for `gating` and `integrated` use mean or patch ablation"
        )
    if layers > len(sites):
        lines.insert(1, f"  {layers - len(sites)} layers have no attention, and so no heads")
    echo("\n".join(lines))
    return {
        "model": loaded.name,
        "layers": layers,
        "heads": heads,
        "layers_with_attention": len(sites),
        "kv_heads": [site.kv_heads for site in sites],
        "head_size": [site.head_dim for site in sites],
        "dtype": loaded.dtype_name,
        "device": str(loaded.device),
        "mechanism": proof.mechanism,
        "noise": proof.noise,
        "largest_gap": proof.largest_gap,
        "layers_checked": proof.sites_checked,
        "prefix_sharing": bool(shares),
        "norm_after_heads": loaded.capabilities.norm_after_heads,
        "seconds": time.perf_counter() - started,
    }
