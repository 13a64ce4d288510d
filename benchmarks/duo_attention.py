"""Scores of kvpress' DuoAttention press for any model, as a file for `reach.py --outside`.

    pip install torch==2.13.0 kvpress==0.5.5              in an environment of its own: it needs transformers below 5.3
    python benchmarks/duo_attention.py MODEL_FOLDER TEXT.txt duo.json

The learned patterns of DuoAttention exist for six checkpoints. For others kvpress computes scores from the mean query
and key of sample texts (`DuoAttentionPress(on_the_fly_scoring=True)`). Its function is called as it is; only the texts,
which it reads from the hub, are passages of a text file here. Higher: the head should keep its whole cache.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import torch
from kvpress.presses import duo_attention_press
from transformers import AutoModelForCausalLM

WORDS, SAMPLES = 250, 50


def main() -> None:
    folder, text, out = sys.argv[1:]
    torch.set_num_threads(1)
    words = Path(text).read_text(encoding="utf-8").split()
    chapters = [" ".join(words[i : i + WORDS]) for i in range(0, len(words) - WORDS, WORDS)]
    frame = pd.DataFrame({"chapter": chapters})
    duo_attention_press.load_dataset = lambda *_, **__: SimpleNamespace(to_pandas=lambda: frame)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    scores = duo_attention_press.duo_attention_on_the_fly(model, num_samples=SAMPLES)
    Path(out).write_text(json.dumps({"kvpress DuoAttention": scores.tolist()}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
