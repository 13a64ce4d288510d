"""Small GGUF files, as llama.cpp writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

HEADS, KV_HEADS, HEAD_SIZE, WIDTH, INNER, LAYERS = 4, 2, 16, 64, 96, 2


def smollm_tokens() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their GGUF types and merges of a small vocabulary of SmolLM's kind."""
    from tokenizers import pre_tokenizers

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = ["Ċ Ċ", "Ġ Ġ", "h e", "1 2", "Ġ 1"]
    tokens = (
        marks + sorted(pre_tokenizers.ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in merges]
    )
    return tokens, [3] * len(marks) + [1] * (len(tokens) - len(marks)), merges


def write_gguf(path: Path, weights: dict[str, np.ndarray] | None = None, bos: bool | None = False) -> None:
    """A tiny Llama as llama.cpp writes it; `weights` are in llama.cpp's names and layout."""
    from gguf import GGUFWriter

    tokens, types, merges = smollm_tokens()
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(50_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    if bos is not None:
        writer.add_add_bos_token(bos)
    for name, value in (weights or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_layout(matrix: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp interleaves the two halves of a rotary head: row 2i + half, not half · size/2 + i."""
    out, half = np.empty_like(matrix), matrix.shape[0] // heads // 2
    for head in range(heads):
        start = head * 2 * half
        out[start : start + 2 * half : 2] = matrix[start : start + half]
        out[start + 1 : start + 2 * half : 2] = matrix[start + half : start + 2 * half]
    return out


def tiny_weights(keep: Callable[[np.ndarray], np.ndarray], tied: bool) -> dict[str, np.ndarray]:
    """Random weights of the tiny Llama in transformers' names, each rounded by `keep`."""
    shapes = {"model.embed_tokens.weight": (len(smollm_tokens()[0]), WIDTH), "model.norm.weight": (WIDTH,)}
    if not tied:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    for layer in range(LAYERS):
        for name, shape in {
            "self_attn.q_proj": (HEADS * HEAD_SIZE, WIDTH),
            "self_attn.k_proj": (KV_HEADS * HEAD_SIZE, WIDTH),
            "self_attn.v_proj": (KV_HEADS * HEAD_SIZE, WIDTH),
            "self_attn.o_proj": (WIDTH, HEADS * HEAD_SIZE),
            "mlp.gate_proj": (INNER, WIDTH),
            "mlp.up_proj": (INNER, WIDTH),
            "mlp.down_proj": (WIDTH, INNER),
            "input_layernorm": (WIDTH,),
            "post_attention_layernorm": (WIDTH,),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    draw = np.random.default_rng(0)
    return {name: keep(draw.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def to_llama_cpp(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    renamed = {}
    for name, value in weights.items():
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
        for ours, theirs in GGUF_NAMES.items():
            name = name.replace(ours, theirs)
        renamed[name] = value if heads is None else llama_layout(value, heads)
    return renamed


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """Drop the 16 low bits; scaled so far down that float16 has nothing left of it."""
    small = (values * np.float32(2.0**-60)).astype(np.float32)
    return (small.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
