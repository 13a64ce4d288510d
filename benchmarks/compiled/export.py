"""Compile every program with tracr; write weights as .npz, the rest as .json: `python -m compiled.export OUT`.

Runs in the environment that `make compiled` builds for it (.venv-tracr), which has tracr and jax and no torch.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from tracr.compiler.compiling import compile_rasp_to_model
from tracr.rasp import rasp

from compiled.rasp_programs import PROGRAMS, Program

BOS = "<s>"
CHECKED = 16
"""Random inputs whose logits are written too, to compare the converted model with."""


def export(program: Program, folder: Path) -> None:
    """Write the program's weights, its labels, and what tracr itself computes on random inputs."""
    sop = program.rasp(rasp).named("answer")
    compiled = compile_rasp_to_model(
        sop, vocab=set(program.vocabulary), max_seq_len=program.length, causal=True, compiler_bos=BOS
    )
    ids, values = (encoder.encoding_map for encoder in (compiled.input_encoder, compiled.output_encoder))
    directions = [compiled.residual_labels.index(f"{sop.label}:{value}") for value in values]
    draw = random.Random(program.name)
    inputs = [
        [ids[BOS], *(ids[draw.choice(program.vocabulary)] for _ in range(program.length))]
        for _ in range(CHECKED)
    ]
    stream = compiled.forward(compiled.params, jnp.array(inputs)).transformer_output.output  # N, T, D
    arrays = {"inputs": np.array(inputs), "logits": np.asarray(stream)[..., directions]}
    arrays["token_embed"] = np.asarray(compiled.params["token_embed"]["embeddings"])
    arrays["pos_embed"] = np.asarray(compiled.params["pos_embed"]["embeddings"])
    arrays["directions"] = np.array(directions)
    for name, part in compiled.params.items():
        if name.startswith("transformer/"):
            assert not np.asarray(part["b"]).any(), "tracr's linear maps have no bias"
            arrays[name.removeprefix("transformer/")] = np.asarray(part["w"])
    config = compiled.model_config
    described: dict[str, Any] = {
        "name": program.name,
        "layers": config.num_layers,
        "heads": config.num_heads,
        "head_size": config.key_size,
        "tokens": [str(token) for token in ids],
        "answers": [str(value) for value in values],
        "stream": compiled.residual_labels,
    }
    np.savez_compressed(folder / f"{program.name}.npz", **arrays)
    (folder / f"{program.name}.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, program in enumerate(PROGRAMS.values()):
        export(program, folder)
        print(f"{number + 1}/{len(PROGRAMS)} {program.name}", flush=True)


if __name__ == "__main__":
    main()
