"""A tiny random model of any causal family that transformers knows.

No adapter per family: a family's default configuration is shrunk by the names of its fields. This is how
the claim "reaches every family" is tested, and how `headwise list families --live` tests it again for the
transformers version at hand.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from headwise.errors import unknown

# The first pattern that matches a field's whole name gives its value. Widths agree with one another:
# 32 = 4 heads × 8.
_SHRUNK: list[tuple[str, Any]] = [
    (r"(\w+_)?vocab_size(_\w+)?", 99),
    (r"\w+_token_(id|index)", 1),
    (r"num_(key_value|kv|key_val)_heads|n_head_kv|multi_query_group_num|num_global_key_value_heads", 2),
    (r"(swa_)?(num|n)_((decoder_|encoder_)?attention|attn|decoder|encoder)?_?heads?", 4),
    (r"(decoder|encoder)_attention_heads", 4),
    (r"num_(hidden_|decoder_|encoder_)?layers|n_layers?|(decoder|encoder)_layers", 4),
    (r"num_mem_blocks", 1),
    (r"qk_(nope|rope)_head_dim|rotary_dim|(swa_)?v_head_dim", 8),
    (r"qk_head_dim", 16),
    (r"((?!mamba|linear)\w+_)?head_(dim|size)|kv_channels", 8),
    (r"(q|o|dt)_lora_rank", 16),
    (r"kv_lora_rank", 8),
    (r"attention_hidden_size", 64),
    (r"hidden_size|d_model|n_embd|dim|embed_dim|embedding_size|word_embed_proj_dim|dim_model|lru_width", 32),
    (r"(\w+_)?intermediate_size(_\w+)?|mamba_d_ssm", 64),
    (r"n_inner|dim_ff|(decoder|encoder)_ffn_dim|d_ff|ffn_dim|dff|(\w+_)?ffn_hidden_size", 64),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|max_sequence_length", 64),
    (r"sliding_window(_size)?|window_size|attention_window_size|attention_chunk_size", 16),
    (r"(num|n)_(local_|routed_|moe_)?experts|moe_num_experts", 4),
    (r"num_experts_per_(tok|token)|moe_topk|moe_top_k|moe_k|top_k_experts", 2),
    (r"(n|num)_shared_experts|n_group|topk_group|moe_num_shared_experts|zero_expert_num", 1),
    (r"indexer_kv_heads|first_k_dense_replace|moe_layer_start_index|(mamba_)?n_?groups|num_dense_layers", 1),
    (r"attn_layer_period|expert_layer_period", 2),
    (r"attn_layer_offset|expert_layer_offset|num_kv_shared_layers", 1),
    (r"mamba_(n_heads|num_heads)|n_mamba_heads", 8),
    (r"mamba_(d_head|head_dim|headdim)|mamba_(d_state|state_dim)|state_size|ssm_state_size", 8),
    (r"linear_(num_key|num_value)_heads|linear_num_heads|indexer_n_heads", 2),
    (r"linear_(key_|value_)?head_dim|index_topk|indexer_budget|hidden_size_per_layer_input", 8),
    (r"indexer_compress_ratio", 2),
    (r"hidden_dropout|\w*dropout(_prob)?|\w+_pdrop|\w*layerdrop", 0.0),
    (r"tie_word_embeddings", False),
]
# Lists that say what each layer is: the kinds they name, in turn, over the few layers that are left.
_LAYER_KINDS = r"\w*layer_types|layers_block_type|block_types|attention_layers|attention_types"
_LAYER_NUMBERS = r"attn_layer_indices|hybrid_layer_ids|full_attn_idxs|full_attention_layers"
_LAYERS = 4
# Fields whose default is None although the model needs a number there.
_UNSET_BUT_NEEDED = (
    r"\w*head_dim|num_key_value_heads|rotary_dim|n_routed_experts|num_experts_per_tok|indexer_\w+|"
    r"moe_intermediate_size|n_shared_experts|n_group|topk_group"
)


def tiny_config(family: str, **overrides: Any) -> Any:
    """The family's default configuration, shrunk; `overrides` win."""
    from transformers import CONFIG_MAPPING

    if family not in CONFIG_MAPPING:
        raise unknown("family", family, CONFIG_MAPPING.keys())
    config_class = CONFIG_MAPPING[family]
    return config_class(**{**_shrink(config_class), **overrides})


def tiny_model(family: str, seed: int = 0, **overrides: Any) -> Any:
    """A tiny random causal model in float32, in evaluation mode."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(family, **overrides)
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _spread(model)
    finally:
        torch.random.set_rng_state(state)
    return model.eval()


def _shrink(config_class: type) -> dict[str, Any]:
    default = config_class()
    shrunk: dict[str, Any] = {}
    fields = default.to_dict()
    aliases = {v: k for k, v in getattr(config_class, "attribute_map", {}).items()}
    for name, value in fields.items():
        for alias in (aliases.get(name, ""), name):  # the field's own name wins
            if (small := _small(alias, value)) is not None:
                shrunk[name] = small
    # Latent attention compresses keys and values together: it has no groups of key heads.
    if fields.get("kv_lora_rank") is not None and "num_key_value_heads" in shrunk:
        shrunk["num_key_value_heads"] = shrunk.get("num_attention_heads", 4)
    for name, sub_class in getattr(config_class, "sub_configs", {}).items():
        if hasattr(sub_class, "to_dict"):
            shrunk[name] = _shrink(sub_class)
    return shrunk


def _small(name: str, value: Any) -> Any:
    if re.fullmatch(_LAYER_NUMBERS, name) and (value is None or isinstance(value, list)):
        return [1, 3]
    if re.fullmatch(_LAYER_KINDS, name) and isinstance(value, list | tuple) and value:
        if not all(isinstance(kind, str) for kind in value):
            return [[["global", "local"], 2]] if name == "attention_types" else None
        kinds = list(dict.fromkeys(value))
        return [kinds[i % len(kinds)] for i in range(_LAYERS)]
    if isinstance(value, bool | dict | list | tuple | str):
        return None if name != "tie_word_embeddings" else False
    if value is None and not re.fullmatch(_UNSET_BUT_NEEDED, name):
        return None
    small = next((small for pattern, small in _SHRUNK if re.fullmatch(pattern, name)), None)
    return int(small) if small is not None and isinstance(value, int) else small


def _spread(model: torch.nn.Module) -> None:
    """Weights large enough that every head visibly moves the logits of an untrained model."""
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.is_floating_point():
            torch.nn.init.normal_(parameter, std=0.2)


def parameter_count(family: str) -> int:
    """Parameters of the tiny model, counted without building it."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config(family))
    return sum(parameter.numel() for parameter in model.parameters())
