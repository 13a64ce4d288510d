"""Models of which it is known which heads do anything, and prompts on which those heads make a difference."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import torch

import headwise as hw
from headwise.model.verify.tiny import tiny_model
from headwise.tasks import Example, Task
from helpers import WORDS, HeadsByHook, leaving, plain_logits, recorded

DENSE = ["L0H1", "L1H0", "L1H3", "L2H2", "L3H0", "L3H1"]
SPARSE = ["L1H3", "L2H2", "L3H1"]


def planted_model(tokenizer, heads, name="planted"):
    """A tiny random Llama of 4 layers × 4 heads in which only these heads write anything."""
    # Loaded whole: the loader's proof asks that the heads it turns off make a difference.
    model = hw.load(
        tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512),
        tokenizer=tokenizer,
        name=name,
    )
    kept = {hw.Head.parse(head) for head in heads}
    with torch.no_grad():
        for number, layer in enumerate(model.hf.model.layers):
            for head in range(4):
                if (number, head) not in kept:
                    layer.self_attn.o_proj.weight[:, 8 * head : 8 * head + 8] = 0
    return model


def one_writer(tokenizer, example, sign=1):
    """A tiny GPT-2 whose head L2H1 always writes for (or with sign -1 against) this example's target."""
    hf = tiny_model("gpt2", vocab_size=len(tokenizer))
    (target,), (foil,) = (tokenizer.encode(text.strip()) for text in (example.target, example.foils[0]))
    with torch.no_grad():
        attention = hf.transformer.h[2].attn
        values = slice(2 * 32 + 8, 2 * 32 + 16)  # head 1
        attention.c_attn.weight[:, values] = 0
        attention.c_attn.bias[values] = 1
        direction = hf.lm_head.weight[target] - hf.lm_head.weight[foil]
        attention.c_proj.weight[8:16] = sign * 2 * direction / direction.norm()
    return hw.load(hf, tokenizer=tokenizer, name="one writer")


CHAINS = {hw.Head(0, 2), hw.Head(1, 4), hw.Head(3, 1), hw.Head(4, 5)}
EITHER = {hw.Head(0, 2), hw.Head(5, 1)}, {hw.Head(1, 4), hw.Head(5, 5)}
"""The chains of `chain_model(either=True)`, each of which is enough."""


def chain_model(tokenizer, size=8, heads=6, layers=6, either=False):
    """A GPT-2 of 36 heads: L0H2 tells L3H1, and L1H4 tells L4H5, whether the prompt has "cat" or "dog".

    Each chain writes half of what the answer needs; the other 32 heads and the MLPs are random. either: both write in
    the last layer, so much that the final norm sees nothing else: with one chain it has what it has with both.
    """
    writers = (hw.Head(5, 1), hw.Head(5, 5)) if either else (hw.Head(3, 1), hw.Head(4, 5))
    width = size * heads
    shape = {"n_layer": layers, "n_head": heads, "n_embd": width, "tie_word_embeddings": False}
    hf = tiny_model("gpt2", vocab_size=len(tokenizer), **shape)
    drawn = torch.randn(width, 4, generator=torch.Generator().manual_seed(1))
    axes = torch.linalg.qr(torch.cat([torch.ones(width, 1), drawn], 1))[0].T
    seen, first, second, answer = axes[1:]  # at right angles to the constant vector, which norms take away
    noise = 0.02 if either else 0.15  # what random heads and MLPs write, beside what the chains write
    with torch.no_grad():
        for block in hf.transformer.h:
            block.attn.c_proj.weight *= noise
            block.mlp.c_proj.weight *= noise
        for weight in (hf.transformer.wte.weight, hf.transformer.wpe.weight) if either else ():
            weight -= weight @ axes.T @ axes  # a chain that decides alone must read nothing but the word
        for word, sign in (("cat", 1), ("dog", -1)):
            (row,) = tokenizer.encode(word)
            hf.transformer.wte.weight[row] += sign * 2 * seen
            hf.lm_head.weight[row] = sign * answer
        for head, read, write in (
            (hw.Head(0, 2), seen, first),
            (hw.Head(1, 4), seen, second),
            (writers[0], first, answer),
            (writers[1], second, answer),
        ):
            attention, at = hf.transformer.h[head.layer].attn, head.head * size
            for part in range(
                3
            ):  # query, key, value: with queries and keys at 0 all tokens get equal attention
                attention.c_attn.weight[:, part * width + at : part * width + at + size] = 0
            attention.c_attn.weight[:, 2 * width + at] = read
            attention.c_proj.weight[at : at + size] = 0
            attention.c_proj.weight[at] = (300 if either and write is answer else 3) * write
    return hw.load(hf, tokenizer=tokenizer, name="chains")


def cats_and_dogs(n=48, swapped=None, mirrored=False):
    """A prompt with "cat" or "dog" somewhere, whose target is that word; swapped: seed of a random half in which it is
    the foil. mirrored: each prompt with "cat" and with "dog", so that the mean over all favours neither."""
    random = np.random.default_rng(4)
    turned = np.zeros(n) if swapped is None else np.random.default_rng(swapped).permutation(n) < n // 2
    others = [word for word in WORDS if word not in ("cat", "dog")]
    examples = []
    for i in range(n):
        words, place = list(random.choice(others, 7)), random.integers(1, 6)
        pair = ["cat", "dog"][:: random.choice([1, -1])]
        prompt, other = (" ".join([*words[:place], word, *words[place:]]) for word in pair)
        target, foil = pair[::-1] if turned[i] else pair
        examples.append(Example(prompt, f" {target}", (f" {foil}",), other))
        if mirrored:
            examples.append(Example(other, f" {foil}", (f" {target}",), prompt))
    return Task("cats and dogs", tuple(examples), "logit_diff")


def keeping(model, prompt, counterfactual, kept=()):
    """Logits after the prompt with every head but these taken from the counterfactual, by hooks alone."""
    seen = recorded(model, counterfactual)
    with HeadsByHook(model, leaving(kept, lambda layer, _: seen[layer])):
        return plain_logits(model, model.tokens(prompt))[-1]


def prompts(n, length=6):
    """Prompt and counterfactual, which differ from the second word on."""
    pairs = []
    for i in range(n):
        words = [WORDS[(i * 7 + j * 3 + i // 3) % 20] for j in range(length)]
        other = [words[0], *[WORDS[(i * 5 + j * 11 + 1) % 20] for j in range(1, length)]]
        pairs.append((" ".join(words), " ".join(other)))
    return pairs


def told_apart(models, n=16, name="apart"):
    """Examples whose target all of these models raise, and whose foil they lower, by what their heads do."""
    examples = []
    for prompt, other in prompts(n):
        raised = torch.stack(
            [plain_logits(m, m.tokens(prompt))[-1] - keeping(m, prompt, other) for m in models]
        )[:, 3:]  # words, not the tokenizer's own signs
        target, foil = raised.min(0).values.argmax(), raised.max(0).values.argmin()
        examples.append(Example(prompt, f" {WORDS[target]}", (f" {WORDS[foil]}",), other))
    return Task(name, tuple(examples), "logit_diff")


def written(task, path):
    """The task as a file that a study can be given."""
    lines = [
        {"prompt": e.prompt, "target": e.target, "foils": list(e.foils), "counterfactual": e.counterfactual}
        for e in task
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


# ---- backups --------------------------------------------------------------------------------------------------------

_PLACES, _SINK = 10, "the"


def backup_model(tokenizer, seed=0):
    """A GPT-2 of 4 layers × 4 heads, set by hand, that repeats a prompt's second word; returns model, primary, backup.

    The primary head attends to the second word, writes it, and raises a flag. The backup, in a later layer, attends to
    its sink (the first word, whose value is 0) while the flag is there, and to the second word otherwise, which it then
    writes with 50 to 80 % of the primary's strength. All other heads write random things, and the second word a little,
    for (up to 6 % of the primary's strength) or against it (up to 3 %).
    """
    V, D = len(tokenizer), 40
    model = hw.load(
        tiny_model("gpt2", vocab_size=V, n_layer=4, n_head=4, n_embd=4 * D, n_positions=16, n_inner=8,
                   tie_word_embeddings=False),
        tokenizer=tokenizer,
        name=f"backup {seed}",
    )  # fmt: skip
    random = torch.Generator().manual_seed(seed)
    layers = torch.randperm(4, generator=random)[:2].sort().values.tolist()
    heads = torch.randint(4, (2,), generator=random).tolist()
    primary, backup = (hw.Head(layer, head) for layer, head in zip(layers, heads, strict=True))
    token, place, flag, out = slice(0, V), slice(V, V + _PLACES), V + _PLACES, slice(V + 16, 2 * V + 16)
    hf = model.hf
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if "ln_" not in name:
                parameter.zero_()
        hf.transformer.wte.weight[:, token] = torch.eye(V)
        hf.transformer.wpe.weight[:_PLACES, place] = torch.eye(_PLACES)
        hf.lm_head.weight[:, out] = torch.eye(V)
        words = torch.eye(V)
        words[tokenizer.encode(_SINK)[0]] = 0  # the sink has nothing to say
        strength = 0.5 + 0.3 * float(torch.rand((), generator=random))
        for layer, block in enumerate(hf.transformer.h):
            for head in range(4):
                q, k, v = (slice(part * 4 * D + head * D, part * 4 * D + head * D + D) for part in range(3))
                weight, bias = block.attn.c_attn.weight, block.attn.c_attn.bias
                o = block.attn.c_proj.weight[head * D : head * D + D]
                weight[place.start + 1, k.start] = 10  # a key for the second word ...
                weight[place.start, k.start + 1] = 10  # ... and one for the sink
                bias[q.start] = 40
                weight[token, v.start : v.start + V] = words
                little = 0.09 * float(torch.rand((), generator=random)) - 0.03
                share = {primary: 1.0, backup: strength}.get(hw.Head(layer, head), little)
                o[:V, out] = 0.15 * share * words
                if (layer, head) == primary:
                    bias[v.start + V] = 1
                    o[V, flag] = 1
                elif (layer, head) == backup:
                    weight[flag, q.start + 1] = 400
                else:
                    weight[token, v.start + V : v.stop] = 0.1 * torch.randn(V, D - V, generator=random)
                    o[V:, out] = 0.03 * torch.randn(D - V, V, generator=random)
    return model, primary, backup


def second_words(n=24, seed=0):
    """Prompts whose second word is the target and whose fourth is the foil."""
    import random

    draw, examples = random.Random(seed), []
    others = [word for word in WORDS if word != _SINK]
    for _ in range(n):
        words = draw.sample(others, 7)
        examples.append(Example(" ".join([_SINK, *words]), f" {words[0]}", (f" {words[2]}",)))
    return Task("second word", tuple(examples), "logit_diff")


class BackupByHook:
    """In a Llama: where the head `primary` writes nothing, `backup` restores a share of what the stream has lost.

    What the stream at the backup has lost is measured once, on the prompts `ids[n, T]`, with only the primary head
    removed. Hooks on the output projections, none of them ours. Every row of a batch must be computed in every block.
    """

    def __init__(self, model, primary, backup, ids, strength=0.6):
        self.model, self.primary, self.backup, self.strength = model, primary, backup, strength
        self.lost = dict(
            zip(map(tuple, ids), self._lost(torch.tensor(ids, device=model.device)), strict=True)
        )

    def _columns(self, head):
        size = self.model.hf.config.head_dim
        return slice(size * head.head, size * (head.head + 1))

    def _lost(self, ids):
        """The stream after the backup's attention, plain minus without the primary head `[n, T, width]`."""
        layers = self.model.hf.model.layers
        read, write = (layers[head.layer] for head in (self.primary, self.backup))

        def zero(_, args):
            z = args[0].clone()
            z[..., self._columns(self.primary)] = 0
            return (z,)

        def stream():
            seen = []
            handles = [
                write.register_forward_pre_hook(lambda _, args: seen.append(args[0])),
                write.self_attn.o_proj.register_forward_hook(lambda _, __, output: seen.append(output)),
            ]
            with torch.no_grad():
                self.model.hf(input_ids=ids, use_cache=False)
            for handle in handles:
                handle.remove()
            return seen[0] + seen[1]

        plain = stream()
        removing = read.self_attn.o_proj.register_forward_pre_hook(zero)
        without = stream()
        removing.remove()
        return plain - without

    def __enter__(self):
        inner, stash = self.model.hf.model, {}

        def rows(_, args):
            stash["prompts"] = [tuple(ids) for ids in args[0].tolist()]

        def read(_, args):
            gone = (args[0][..., self._columns(self.primary)] == 0).flatten(1).all(1)[:, None, None]
            lost = torch.stack([self.lost[prompt] for prompt in stash["prompts"]])
            stash["repair"] = self.strength * gone * lost

        def write(_, args, output):
            there = (args[0][..., self._columns(self.backup)] != 0).flatten(1).any(1)[:, None, None]
            return output + stash["repair"] * there

        self.handles = [
            inner.embed_tokens.register_forward_pre_hook(rows),
            inner.layers[self.primary.layer].self_attn.o_proj.register_forward_pre_hook(read),
            inner.layers[self.backup.layer].self_attn.o_proj.register_forward_hook(write),
        ]
        self.before = self.model.capabilities
        self.model.capabilities = replace(self.before, share_rows=False, narrow=())
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()
        self.model.capabilities = self.before


def area_under_curve(scores, planted):
    """The chance that a planted one has a higher score than another; ties count half."""
    pairs = [(a, b) for a, p in zip(scores, planted, strict=True) if p
             for b, other in zip(scores, planted, strict=True) if not other]  # fmt: skip
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)


# ---- reach ----------------------------------------------------------------------------------------------------------

_NEAR = {"cat": "red", "dog": "blue"}
"""What stands near the end of a prompt that has this word at its beginning."""


def far_model(tokenizer, seed=0):
    """A GPT-2 of 4 layers × 4 heads; returns model, far heads, near heads (two each, drawn by the seed).

    Far heads attend to "cat" or "dog" wherever it stands, near ones to "red" or "blue"; both write for the answer. The
    other heads and the MLPs are random and weak.
    """
    size, heads, layers = 8, 4, 4
    width = size * heads
    hf = tiny_model(
        "gpt2", vocab_size=len(tokenizer), n_layer=layers, n_head=heads, n_embd=width, n_positions=64,
        tie_word_embeddings=False,
    )  # fmt: skip
    random = torch.Generator().manual_seed(seed)
    chosen = [divmod(i, heads) for i in torch.randperm(layers * heads, generator=random)[:4].tolist()]
    drawn = torch.randn(width, 5, generator=random)
    axes = torch.linalg.qr(torch.cat([torch.ones(width, 1), drawn], 1))[0].T
    far, near, answer = axes[1:3], axes[3:5], axes[5]  # of far and near: that there is such a word, and which
    with torch.no_grad():
        for block in hf.transformer.h:
            for weight in (block.attn.c_proj.weight, block.mlp.c_proj.weight):
                weight.copy_(0.05 * torch.randn(weight.shape, generator=random))
        for weight in (hf.transformer.wte.weight, hf.transformer.wpe.weight):
            weight.copy_(0.3 * torch.randn(weight.shape, generator=random))
            weight -= weight @ axes.T @ axes
        for sign, words in ((1, ("cat", "red")), (-1, ("dog", "blue"))):
            for word, (there, which) in zip(words, (far, near), strict=True):
                hf.transformer.wte.weight[tokenizer.encode(word)[0]] += 3 * (there + sign * which)
            hf.lm_head.weight[tokenizer.encode(words[0])[0]] = sign * answer
        for number, (layer, head) in enumerate(chosen):
            there, which = far if number < 2 else near
            attention, at = hf.transformer.h[layer].attn, head * size
            for part in range(3):
                attention.c_attn.weight[:, part * width + at : part * width + at + size] = 0
            attention.c_attn.bias[at] = 10  # the same query everywhere
            attention.c_attn.weight[:, width + at] = 2 * there
            attention.c_attn.weight[:, 2 * width + at] = which
            attention.c_proj.weight[at : at + size] = 0
            attention.c_proj.weight[at] = answer
    named = [hw.Head(layer, head) for layer, head in chosen]
    return hw.load(hf, tokenizer=tokenizer, name=f"far {seed}"), set(named[:2]), set(named[2:])


def far_words(n=32, seed=0, length=40):
    """ "cat" or "dog" in the first half is the target; "red" or "blue" near the end goes with it."""
    random = np.random.default_rng(seed)
    others = [word for word in WORDS if word not in (*_NEAR, *_NEAR.values())]
    examples = []
    for _ in range(n):
        words = list(random.choice(others, length))
        pair = ["cat", "dog"][:: random.choice([1, -1])]
        words[random.integers(2, length // 2)] = pair[0]
        words[-random.integers(2, 5)] = _NEAR[pair[0]]
        examples.append(Example(" ".join(words), f" {pair[0]}", (f" {pair[1]}",)))
    return Task("far words", tuple(examples), "logit_diff")
