"""A compiled program as a transformers model: no norms, and attention by transformers' attention functions.

D width of the residual stream, d head size, V tokens, T positions, A answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

BOS = "<s>"
Slot = tuple[int, int]
"""Layer and head."""


class CompiledConfig(PreTrainedConfig):
    model_type = "compiled"

    def __init__(self, vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, head_dim=8,
                 intermediate_size=8, max_position_embeddings=8, **more: Any):  # fmt: skip
        self.vocab_size, self.hidden_size, self.head_dim = vocab_size, hidden_size, head_dim
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.intermediate_size, self.max_position_embeddings = intermediate_size, max_position_embeddings
        super().__init__(**more)


class Attention(nn.Module):
    is_causal = True

    def __init__(self, config: CompiledConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer_idx, self.scaling = config, layer, config.head_dim**-0.5
        wide = config.num_attention_heads * config.head_dim
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(config.hidden_size, wide, bias=False) for _ in range(3)
        )
        self.o_proj = nn.Linear(wide, config.hidden_size, bias=False)

    def forward(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        split = (*x.shape[:2], -1, self.config.head_dim)
        q, k, v = (proj(x).view(split).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        z, _ = attend(self, q, k, v, attention_mask, dropout=0.0, scaling=self.scaling)  # B, T, H, d
        return self.o_proj(z.reshape(*x.shape[:2], -1))


class MLP(nn.Module):
    def __init__(self, config: CompiledConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.act_fn = nn.ReLU()
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))


class Block(nn.Module):
    def __init__(self, config: CompiledConfig, layer: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config, layer), MLP(config)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Tensor:
        hidden_states = hidden_states + self.self_attn(hidden_states, attention_mask)
        return hidden_states + self.mlp(hidden_states)


class CompiledForCausalLM(PreTrainedModel):
    config_class = CompiledConfig
    base_model_prefix = ""
    _supports_sdpa = True

    def __init__(self, config: CompiledConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, n) for n in range(config.num_hidden_layers))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        x = x + self.embed_positions(torch.arange(x.shape[1], device=x.device))
        mask = create_causal_mask(self.config, x, attention_mask, past_key_values=None)
        for layer in self.layers:
            x = layer(x, attention_mask=mask)
        return CausalLMOutput(logits=self.lm_head(x))


# ---- from tracr's arrays -------------------------------------------------------------------------------------------


@dataclass
class Converted:
    """A program's model with room for more heads, and which of its heads the program uses."""

    name: str
    hf: CompiledForCausalLM
    tokenizer: PreTrainedTokenizerFast
    used: list[Slot]
    answers: list[str]
    inputs: Tensor
    """Prompts on which tracr itself was run `[N, T]`, as this model's tokens."""
    logits: np.ndarray
    """What tracr itself computed there `[N, T, A]`."""

    @property
    def answer_ids(self) -> list[int]:
        return self.tokenizer.convert_tokens_to_ids(self.answers)


def convert(folder: Path, name: str, slots: int | None = None, seed: int = 0) -> Converted:
    """The model of a program that `export.py` wrote; heads that it does not use write nothing.

    slots: heads per layer, at least as many as tracr made (the default). The program's heads get random slots.
    """
    facts = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    with np.load(folder / f"{name}.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    letters = [token for token in facts["tokens"] if token not in (BOS, "compiler_pad")]
    # The loader tries tokens 3 to 8: a prompt that begins as every prompt does.
    words = ["<unk>", "<pad>", "unused", BOS, *letters, *(a for a in facts["answers"] if a not in letters)]
    words += [f"unused{n}" for n in range(max(0, 9 - len(words)))]
    ids = {word: number for number, word in enumerate(words)}
    size, own = facts["head_size"], facts["heads"]
    slots = max(own, slots or 0)
    config = CompiledConfig(
        vocab_size=len(words), hidden_size=len(facts["stream"]), num_hidden_layers=facts["layers"],
        num_attention_heads=slots, head_dim=size, intermediate_size=arrays["layer_0/mlp/linear_1"].shape[1],
        max_position_embeddings=len(arrays["pos_embed"]), attn_implementation="sdpa",
    )  # fmt: skip
    hf = CompiledForCausalLM(config).eval().requires_grad_(False)
    for parameter in hf.parameters():
        parameter.zero_()
    rows = {
        token: torch.tensor(row) for token, row in zip(facts["tokens"], arrays["token_embed"], strict=True)
    }
    for number, word in enumerate(words):  # a token that no prompt has looks like a letter
        hf.embed_tokens.weight[number] = rows.get(word, rows[letters[number % len(letters)]])
    hf.embed_positions.weight.copy_(torch.tensor(arrays["pos_embed"]))
    for answer, direction in zip(facts["answers"], arrays["directions"], strict=True):
        hf.lm_head.weight[ids[answer], int(direction)] = 1
    random, used = np.random.default_rng(seed), []
    for layer, block in enumerate(hf.layers):
        places = random.permutation(slots)[:own]
        weights = {part: torch.tensor(arrays[f"layer_{layer}/attn/{part}"])
                   for part in ("query", "key", "value", "linear")}  # fmt: skip
        for head, place in enumerate(places.tolist()):
            of, to = (slice(n * size, n * size + size) for n in (head, place))
            for part, proj in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
                getattr(block.self_attn, proj).weight[to] = weights[part][:, of].T
            block.self_attn.o_proj.weight[:, to] = weights["linear"][of].T
            if weights["linear"][of].any():
                used.append((layer, place))
        for part, proj in (("linear_1", "up_proj"), ("linear_2", "down_proj")):
            getattr(block.mlp, proj).weight.copy_(torch.tensor(arrays[f"layer_{layer}/mlp/{part}"]).T)
    inputs = torch.tensor([[ids[facts["tokens"][i]] for i in row] for row in arrays["inputs"].tolist()])
    return Converted(name, hf, _tokenizer(ids), sorted(used), facts["answers"], inputs, arrays["logits"])


def _tokenizer(ids: dict[str, int]) -> PreTrainedTokenizerFast:
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", bos_token=BOS
    )


def largest_gap(converted: Converted) -> float:
    """The largest difference between the converted model's logits and tracr's own on its random inputs."""
    with torch.no_grad():
        ours = converted.hf(converted.inputs).logits[..., converted.answer_ids]
    return float(np.abs(ours.numpy() - converted.logits).max())


def true_edges(converted: Converted) -> frozenset[str]:
    """Direct edges from heads and MLPs through which something of the program passes; no other head is there yet.

    An edge is true if what the sender writes, seen through the receiver's own weights, is not the same at every
    position of every prompt: tracr gives each variable directions of its own, so all else is exactly 0 or constant.
    """
    hf = converted.hf
    outputs: dict[str, Tensor] = {}
    hooks = []
    for layer, block in enumerate(hf.layers):
        hooks += [
            block.self_attn.o_proj.register_forward_pre_hook(
                lambda _, args, layer=layer: outputs.__setitem__(f"z{layer}", args[0])
            ),
            block.mlp.register_forward_hook(
                lambda _, args, output, layer=layer: outputs.__setitem__(f"MLP{layer}", output)
            ),
        ]
    with torch.no_grad():
        hf(converted.inputs)
    for hook in hooks:
        hook.remove()
    written: dict[str, Tensor] = {}
    found: set[str] = set()
    for layer, block in enumerate(hf.layers):
        attention = block.self_attn
        heads = [head for at, head in converted.used if at == layer]
        readers = {}
        for head in heads:
            rows = _rows(converted, head)
            readers[f"L{layer}H{head}.Q"] = attention.q_proj.weight[rows]
            readers[f"L{layer}KV{head}.K"] = attention.k_proj.weight[rows]
            readers[f"L{layer}KV{head}.V"] = attention.v_proj.weight[rows]
        found |= _carried(written, readers)
        for head in heads:
            rows = _rows(converted, head)
            written[f"L{layer}H{head}"] = outputs[f"z{layer}"][..., rows] @ attention.o_proj.weight[:, rows].T
        found |= _carried(written, {f"MLP{layer}": block.mlp.up_proj.weight})
        written[f"MLP{layer}"] = outputs[f"MLP{layer}"]
    return frozenset(found | _carried(written, {"logits": hf.lm_head.weight}))


def _carried(written: dict[str, Tensor], readers: dict[str, Tensor]) -> set[str]:
    """Edges whose sender writes `[N, T, D]` something that varies in what the receiver `[R, D]` reads."""
    return {
        f"{sender}->{receiver}"
        for sender, values in written.items()
        for receiver, weight in readers.items()
        for seen in [(values @ weight.T).flatten(0, 1)]
        if (seen - seen[0]).abs().max() > 1e-3
    }


# ---- heads that the program does not use ---------------------------------------------------------------------------


def add_unused_heads(converted: Converted, seed: int = 0) -> list[Slot]:
    """Fill every free slot with a random head that writes nothing yet; returns the slots.

    Its queries, keys and values are as large as those of a random head of the program.
    """
    hf, random = converted.hf, torch.Generator().manual_seed(seed)
    slots = [
        (layer, head)
        for layer in range(len(hf.layers))
        for head in range(hf.config.num_attention_heads)
        if (layer, head) not in converted.used
    ]
    for layer, head in slots:
        like, attention = _drawn_slot(converted, random), hf.layers[layer].self_attn
        for proj in ("q_proj", "k_proj", "v_proj"):
            size = getattr(hf.layers[like[0]].self_attn, proj).weight[_rows(converted, like[1])].norm()
            weight = getattr(attention, proj).weight
            drawn = torch.randn(weight[_rows(converted, head)].shape, generator=random)
            weight[_rows(converted, head)] = drawn * size / drawn.norm()
    return slots


def let_write(converted: Converted, unused: list[Slot], answers: bool, seed: int = 0) -> Tensor:
    """Let the unused heads write as much as a random head of the program does, into random directions that are read.

    answers: into those of the answers, else into those that later heads and MLPs of the program read. Returns which
    directions these are, for each layer `[layers, D]`.
    """
    hf, random = converted.hf, torch.Generator().manual_seed(seed)
    read = torch.zeros(len(hf.layers), hf.config.hidden_size, dtype=torch.bool)
    outcome, later = hf.lm_head.weight.any(0), torch.zeros(hf.config.hidden_size, dtype=torch.bool)
    for layer in reversed(range(len(hf.layers))):
        attention = hf.layers[layer].self_attn
        later = later | hf.layers[layer].mlp.up_proj.weight.any(0)
        read[layer] = outcome if answers else later & ~outcome
        for head in (head for at, head in converted.used if at == layer):
            for proj in (attention.q_proj, attention.k_proj, attention.v_proj):
                later = later | proj.weight[_rows(converted, head)].any(0)
    for layer, head in unused:
        like = _drawn_slot(converted, random)
        size = hf.layers[like[0]].self_attn.o_proj.weight[:, _rows(converted, like[1])].norm()
        drawn = torch.randn(len(read[layer]), hf.config.head_dim, generator=random) * read[layer][:, None]
        if read[layer].any():
            hf.layers[layer].self_attn.o_proj.weight[:, _rows(converted, head)] += drawn * size / drawn.norm()
    return read


def scale_unused(converted: Converted, unused: list[Slot], directions: Tensor, factor: float) -> None:
    """Multiply what these heads write into these directions `[layers, D]`."""
    for layer, head in unused:
        weight = converted.hf.layers[layer].self_attn.o_proj.weight
        weight[:, _rows(converted, head)] *= torch.where(directions[layer], factor, 1.0)[:, None]


def _rows(converted: Converted, head: int) -> slice:
    size = converted.hf.config.head_dim
    return slice(head * size, head * size + size)


def _drawn_slot(converted: Converted, random: torch.Generator) -> Slot:
    return converted.used[int(torch.randint(len(converted.used), (), generator=random))]
