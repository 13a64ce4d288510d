"""Train a two-layer model with induction heads on repeated random sequences: `python benchmarks/train_induction.py`.

    python benchmarks/train_induction.py --device cuda --out $OUT

Each row repeats a sequence of random tokens, of a length of its own, so that no fixed distance tells where it stood
before. The loss is that of the repetitions, where each next token is known to a model that looks up what followed the
same token before. Ends when it is right on 98 % of them five times in a row, or after --seconds.
Writes `model.safetensors` and `config.json`, which `tests/model/edges/test_planted_edges.py` reads, and prints JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS, ROW = 64, 40
"""Size of the vocabulary, and tokens of a row."""
SHORTEST, LONGEST = 5, 19
"""Tokens of a sequence before it is repeated."""


def small_model(seed: int) -> LlamaForCausalLM:
    """2 layers × 4 heads, 64 wide."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=TOKENS, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=128, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def repeated(rows: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`[rows, ROW]`: different tokens in random order, again and again; and where the next token is known.

    The first three ids are special tokens.
    """
    lengths = torch.randint(SHORTEST, LONGEST + 1, (rows, 1), generator=draw)
    some = torch.rand(rows, TOKENS - 3, generator=draw).argsort(1)[:, :LONGEST] + 3
    place = torch.arange(ROW)[None]
    return some.gather(1, place % lengths), (place[:, :-1] >= lengths)


def train(device: str, seconds: float, seed: int = 0) -> tuple[LlamaForCausalLM, dict[str, float]]:
    model = small_model(seed).to(device)
    draw = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    started, step, share, good = time.perf_counter(), 0, 0.0, 0
    while time.perf_counter() - started < seconds and good < 5:
        ids, known = (tensor.to(device) for tensor in repeated(128, draw))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1][known]
        wanted = ids[:, 1:][known]
        loss = torch.nn.functional.cross_entropy(logits, wanted)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step % 50 == 0:
            share = float((logits.argmax(-1) == wanted).float().mean())
            good = good + 1 if share > 0.98 else 0
    spent = time.perf_counter() - started
    return model, {"steps": step, "right": share, "loss": float(loss.detach()), "seconds": spent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    model, said = train(asked.device, asked.seconds, asked.seed)
    model.cpu().save_pretrained(asked.out, safe_serialization=True)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
