"""Sentence embeddings from the bundled MiniLM, with plain transformers.

Reimers and Gurevych 2019 (arXiv 1908.10084): mean of the last layer over a sentence's tokens, scaled to
length 1, so that a product of two embeddings is their cosine.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from headwise.model.load import bundled

ALIAS = "minilm"


@functools.lru_cache(maxsize=1)
def _loaded() -> tuple[Any, Any, int]:
    """The model, its tokenizer, and how many tokens of a sentence it was made to read."""
    from transformers import AutoModel, AutoTokenizer

    folder = bundled.fetch(ALIAS)
    settings = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder), int(settings["max_seq_length"])


def embed(texts: Sequence[str], batch: int = 64) -> np.ndarray:
    """One vector of length 1 per text `[n, 384]`. Runs on the CPU, so results do not depend on the device."""
    model, tokenizer, longest = _loaded()
    vectors = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(texts), batch):
        chosen = by_length[start : start + batch]
        inputs = tokenizer(
            [texts[i] for i in chosen], padding=True, truncation=True, max_length=longest, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state  # n, T, width
        real = inputs["attention_mask"][:, :, None].to(hidden.dtype)
        mean = (hidden * real).sum(1) / real.sum(1)
        vectors[chosen] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return vectors
