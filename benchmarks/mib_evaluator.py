"""MIB's own evaluator on importances that `benchmarks/mib.py` wrote, in an environment without headwise.

    python benchmarks/mib_evaluator.py FOLDER

FOLDER has `weights.safetensors` (a Llama checkpoint as transformers names it), `config.json`, and for each task a
folder with `examples.json` (token ids of clean and corrupted prompts, ids of the right and the wrong answer) and
`importances.json`. The answer is `evaluated.json`: CPR and CMD of each task, with the faithfulness at every fraction.

Nothing of MIB-circuit-track or EAP-IG is changed on disk. Three things are set at run time: TransformerLens does not
list the models, so its configuration is built here; prompts come as token ids, so their tokenisation is replaced (it
would add a first token that the model was not given); and a batch is as large as memory allows.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import eap.evaluate
import torch
from eap.graph import Graph
from MIB_circuit_track.evaluation import evaluate_area_under_curve
from MIB_circuit_track.metrics import logit_diff
from safetensors.torch import load_file
from transformer_lens import HookedTransformer, HookedTransformerConfig

BATCH = 8


def lens_config(config: dict) -> HookedTransformerConfig:
    """A Llama configuration in the words of TransformerLens."""
    heads, width = config["num_attention_heads"], config["hidden_size"]
    grouped = config["num_key_value_heads"]
    return HookedTransformerConfig(
        n_layers=config["num_hidden_layers"],
        d_model=width,
        n_heads=heads,
        d_head=width // heads,
        d_mlp=config["intermediate_size"],
        d_vocab=config["vocab_size"],
        n_ctx=256,
        act_fn="silu",
        gated_mlp=True,
        normalization_type="RMS",
        final_rms=True,
        eps=config["rms_norm_eps"],
        positional_embedding_type="rotary",
        rotary_dim=width // heads,
        rotary_base=config["rope_theta"],
        rotary_adjacent_pairs=False,
        n_key_value_heads=None if grouped == heads else grouped,
        use_split_qkv_input=True,
        use_attn_result=True,
        use_hook_mlp_in=True,
        ungroup_grouped_query_attention=grouped != heads,
        dtype=torch.float32,
        device="cpu",
        model_name="given",
        init_weights=False,
    )


def lens_weights(state: dict, config: HookedTransformerConfig) -> dict:
    """A Llama checkpoint in the shapes of TransformerLens; it has no biases."""

    def by_head(weight: torch.Tensor) -> torch.Tensor:
        return weight.unflatten(0, (-1, config.d_head)).transpose(1, 2)  # heads, d_model, d_head

    grouped = "_" if config.n_key_value_heads else ""
    made = {
        "embed.W_E": state["model.embed_tokens.weight"],
        "ln_final.w": state["model.norm.weight"],
        "unembed.W_U": state.get("lm_head.weight", state["model.embed_tokens.weight"]).T,
        "unembed.b_U": torch.zeros(config.d_vocab),
    }
    for layer in range(config.n_layers):
        old, new = f"model.layers.{layer}.", f"blocks.{layer}."
        made[new + "ln1.w"] = state[old + "input_layernorm.weight"]
        made[new + "ln2.w"] = state[old + "post_attention_layernorm.weight"]
        made[new + "attn.W_Q"] = by_head(state[old + "self_attn.q_proj.weight"])
        made[new + f"attn.{grouped}W_K"] = by_head(state[old + "self_attn.k_proj.weight"])
        made[new + f"attn.{grouped}W_V"] = by_head(state[old + "self_attn.v_proj.weight"])
        made[new + "attn.W_O"] = state[old + "self_attn.o_proj.weight"].T.unflatten(0, (config.n_heads, -1))
        made[new + "mlp.W_gate"] = state[old + "mlp.gate_proj.weight"].T
        made[new + "mlp.W_in"] = state[old + "mlp.up_proj.weight"].T
        made[new + "mlp.W_out"] = state[old + "mlp.down_proj.weight"].T
    return made


def lens_model(folder: Path) -> HookedTransformer:
    config = lens_config(json.loads((folder / "config.json").read_text()))
    model = HookedTransformer(config, move_to_device=False)
    made = lens_weights(load_file(folder / "weights.safetensors"), config)
    own = model.state_dict()
    # Biases that a Llama lacks are 0; masks and rotation tables are built by TransformerLens.
    zeros = {name: torch.zeros_like(value) for name, value in own.items() if ".b_" in name or "._b_" in name}
    unknown = set(made) - set(own)
    assert not unknown, f"TransformerLens has no {sorted(unknown)[:4]}"
    model.load_state_dict({**own, **zeros, **made})
    return model.eval()


def given_tokens(model: HookedTransformer, prompts: list, max_length: int | None = None):
    """Prompts that are lists of token ids, padded on the right: ids, mask, lengths, and the longest length."""
    longest = max(map(len, prompts))
    ids = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    mask = (torch.arange(longest)[None] < lengths[:, None]).long()
    return ids, mask, lengths, longest


def batches(examples: dict) -> list:
    """(clean prompts, corrupted prompts, [right, wrong] answers) in batches."""
    rows = list(zip(examples["clean"], examples["corrupted"], examples["labels"], strict=True))
    chunks = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
    return [tuple(map(list, zip(*chunk, strict=True))) for chunk in chunks]


def plain_metric(model: HookedTransformer, examples: dict) -> list[float]:
    """The metric of each example without any intervention: the two libraries must agree on it first."""
    values = []
    for clean, _, labels in batches(examples):
        ids, mask, lengths, _ = given_tokens(model, clean)
        with torch.inference_mode():
            logits = model(ids, attention_mask=mask)
        values += logit_diff(logits, None, lengths, labels, mean=False).tolist()
    return values


def main(folder: Path) -> None:
    eap.evaluate.tokenize_plus = given_tokens
    model = lens_model(folder)
    found = {}
    for task in sorted(path.parent for path in folder.glob("*/examples.json")):
        examples = json.loads((task / "examples.json").read_text())
        measured = partial(logit_diff, mean=False, loss=False)
        found[task.name] = {"plain": plain_metric(model, examples)}
        for which, absolute in (("cpr", False), ("cmd", True)):
            graph = Graph.from_json(str(task / "importances.json"))
            how = {"quiet": True, "level": "node", "absolute": absolute}
            _, area, from_one, _, shares = evaluate_area_under_curve(
                model, graph, batches(examples), measured, **how
            )
            found[task.name][which] = {"value": from_one if absolute else area, "faithfulness": shares}
            print(task.name, which, found[task.name][which]["value"], file=sys.stderr, flush=True)
    (folder / "evaluated.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
