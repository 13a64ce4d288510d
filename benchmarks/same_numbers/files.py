"""The files that both checkouts read: tiny random models of eight families with a tokenizer, and examples.

No name of headwise is used here: its own tiny models may move or change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = "the a cat dog bird saw met liked then and one two red blue big small ran sat he she it . ,".split()
MORE_WORDS = [*"0123456789", "+", "=", "/", "Q:", "A:"]
LABELS = ("animals", "colours")
ANSWERS = {"animals": ("cat", "dog", "bird"), "colours": ("red", "blue", "small")}

_LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
_LLAMA |= {"max_position_embeddings": 128, "tie_word_embeddings": False}
_GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "llama": {**_LLAMA, "num_key_value_heads": 2},
    "qwen3": {**_LLAMA, "num_key_value_heads": 2, "head_dim": 16},
    "gemma3_text": {
        **_LLAMA,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gpt_neox": _LLAMA,
    "gptj": {**_GPT2, "rotary_dim": 4, "tie_word_embeddings": False},
    "mixtral": {**_LLAMA, "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2},
    "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 4, "tie_word_embeddings": False},
    "opt": {**_LLAMA, "ffn_dim": 64, "word_embed_proj_dim": 32},
}
"""Attention function with and without grouped keys, a head size of its own, sliding windows, parallel blocks, experts;
gptj and bloom do not call the attention function and are reached by a hook on the output projection."""
DTYPES = ("float64", "float32")
MODELS = [(f, d) for f in FAMILIES for d in DTYPES if (f, d) != ("mixtral", "float64")]
"""Torch multiplies the experts of mixtral in float32 at most."""


def write_files(folder: Path) -> None:
    """Write all models and examples into `folder`, once; a folder that is complete is left alone."""
    finished = folder / "complete"
    if finished.exists():
        return
    tokenizer = _tokenizer()
    for family, dtype in MODELS:
        place = folder / f"{family}-{dtype}"
        _model(family, FAMILIES[family], dtype, len(tokenizer)).save_pretrained(place)
        tokenizer.save_pretrained(place)
    for name, rows in _examples().items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (folder / "heads.json").write_text(json.dumps(["L0H1", "L2H3", "L1H0"]), encoding="utf-8")
    finished.touch()


def _tokenizer() -> Any:
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", *WORDS, *MORE_WORDS]
    backend = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def _model(family: str, settings: dict[str, Any], dtype: str, vocabulary: int) -> Any:
    """A random model whose every head visibly moves the logits."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = CONFIG_MAPPING[family](**{**settings, **ends, "vocab_size": vocabulary})
    for name in vars(config):
        if "dropout" in name or name.endswith("pdrop"):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    for parameter in model.parameters():
        # Biases too: where they are 0, as in a new model, code that forgets them goes unnoticed.
        torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.2)
    return model.to(getattr(torch, dtype)).eval()


def _examples() -> dict[str, list[dict[str, Any]]]:
    return {
        "even": [{**_example(i, 6), "target": f" {WORDS[(i + 2) % 20]}"} for i in range(6)],
        "uneven": [_example(i, 4 + i % 3) for i in range(8)],
        "repeated": [
            {
                "prompt": f"{_sentence(i, 3 + i % 2)} and {_sentence(i, 2)}",
                "target": f" {_word(i, 1)}",
                "foils": [" the"],
            }
            for i in range(4)
        ],
        "labelled": [
            {**_example(i, 4 + i % 3), "label": LABELS[i % 2], "target": f" {_answer(i)}", "foils": [" the"]}
            for i in range(20)
        ],
        "questions": [
            {"prompt": _sentence(i, 5 + i % 3), "target": f" {i % 10}" if i % 2 else f" {WORDS[i % 5]}"}
            for i in range(16)
        ],
        **{
            f"pair-{number}-{side}": [
                {"prompt": _sentence(i, 5) + how, "target": f" {WORDS[(i + 2) % 20]}"}
                for i in range(number, 12, 3)
            ]
            for number in range(3)
            for side, how in (("keep", " then"), ("lose", " and"))
        },
    }


def _example(i: int, length: int) -> dict[str, Any]:
    """A sentence of made-up sense with a target of one or two words, foils and a counterfactual."""
    words = _sentence(i, length).split()
    other = [words[0], *[WORDS[(i * 5 + j * 11 + 1) % 20] for j in range(1, length)]]
    target, foil = WORDS[(i + 2) % 20], WORDS[(i + 9) % 20]
    return {
        "prompt": " ".join(words),
        "target": f" {target} then" if i % 3 == 2 else f" {target}",
        "foils": [f" {foil}", f" {WORDS[(i + 13) % 20]}"] if i % 2 else [f" {foil}"],
        "counterfactual": " ".join(other),
        "label": LABELS[i % 2],
    }


def _sentence(i: int, length: int) -> str:
    return " ".join(_word(i, j) for j in range(length))


def _word(i: int, j: int) -> str:
    return WORDS[(i * 7 + j * 3) % 20]


def _answer(i: int) -> str:
    of_label = ANSWERS[LABELS[i % 2]]
    return of_label[(i // 2) % len(of_label)]
