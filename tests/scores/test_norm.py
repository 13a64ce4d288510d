"""The score `norm`, against hooks on the output projections of a plain transformers model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.model.verify.tiny import tiny_model
from headwise.tasks import Example, Task

TASK = Task(
    "norms",
    (Example("one red bird met one blue bird", " and", (" one",)), Example("a dog sat", " .", (" he",))),
    "logit_diff",
)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_norms_are_those_that_the_output_projections_read(family, word_tokenizer):
    hf = tiny_model(family, vocab_size=len(word_tokenizer))
    model = hw.load(hf, tokenizer=word_tokenizer, name=family, bos=False)
    scores = hw.score(model, TASK, "norm")
    heads = model.shape[1]
    for e, example in enumerate(TASK):
        read: list[torch.Tensor] = []
        hooks = [
            block.self_attn.o_proj.register_forward_pre_hook(
                lambda _, args, read=read: read.append(args[0][0])
            )
            for block in hf.model.layers
        ]
        with torch.no_grad():
            hf(torch.tensor([model.tokens(example.prompt)]))
        for hook in hooks:
            hook.remove()
        for layer, z in enumerate(read):
            sizes = [float(np.mean([part.norm().item() for part in of[1:]])) for of in z.chunk(heads, dim=1)]
            np.testing.assert_allclose(scores.examples[e, layer], np.array(sizes) / np.mean(sizes), rtol=1e-5)
    np.testing.assert_allclose(np.nanmean(scores.values, axis=1), 1)


def test_a_head_that_writes_nothing_has_norm_zero(word_tokenizer):
    hf = tiny_model("gpt2", vocab_size=len(word_tokenizer))
    size = hf.config.n_embd // hf.config.n_head
    with torch.no_grad():  # the value columns of head 1 in block 0
        columns = slice(2 * hf.config.n_embd + size, 2 * hf.config.n_embd + 2 * size)
        hf.transformer.h[0].attn.c_attn.weight[:, columns] = 0
        hf.transformer.h[0].attn.c_attn.bias[columns] = 0
    scores = hw.score(hw.load(hf, tokenizer=word_tokenizer, name="gpt2", bos=False), TASK, "norm")
    assert scores["L0H1"] == 0
    assert (scores.values > 0).sum() == scores.values.size - 1
