"""Models with a norm after their heads, which undoes a common factor on them: learned gates need another reference."""

from __future__ import annotations

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.runs import read_table
from headwise.studies.roles.section import findings
from helpers import run_on, word_model, word_task

NORM_AFTER_HEADS = {
    "gemma2": "post_attention_layernorm",
    "gemma3_text": "post_attention_layernorm",
    "gemma3n_text": "post_attention_layernorm",
    "olmo2": "post_attention_layernorm",
    "glm4": "post_self_attn_layernorm",
    "llama": None,  # its post_attention_layernorm is read by the MLP alone
    "gpt2": None,
    "opt": None,
    "bloom": None,
}


@pytest.fixture(scope="module", params=NORM_AFTER_HEADS)
def family(request):
    return request.param, word_model(request.param)


def test_a_norm_after_the_heads_is_noticed(family):
    """The second way: what leaves the norm after attention, with the attention's own output halved by a hook."""
    name, model = family
    norm = NORM_AFTER_HEADS[name]
    assert model.capabilities.norm_after_heads == (norm is not None)
    if norm is None:
        return
    module, seen = getattr(model.hooks.blocks[0], norm), []
    for factor in (1.0, 0.5):
        scaled = module.register_forward_pre_hook(lambda _, args, factor=factor: (factor * args[0],))
        noted = module.register_forward_hook(lambda _, __, output: seen.append(output.detach()))
        model.hf(model.hf.dummy_inputs["input_ids"][:, :5])
        scaled.remove()
        noted.remove()
    assert float((seen[0] - seen[1]).abs().max()) < 0.01 * float(seen[0].abs().max())


def test_learned_gates_refuse_zero_where_it_means_nothing(family):
    name, model = family
    task, options = word_task(4), {"seeds": 1, "updates": 2, "batch": 2}
    half = hw.measure(model, task, np.full((1, *model.shape), 0.5), metric="logprob", reference="zero")
    if NORM_AFTER_HEADS[name] is None:
        assert np.isfinite(hw.score(model, task, "gating", reference="zero", **options).values).all()
        return
    np.testing.assert_allclose(half.values[0], half.full[0], rtol=0.01)
    with pytest.raises(HeadwiseError, match=r"a norm after its heads.*reference='mean'"):
        hw.score(model, task, "gating", reference="zero", **options)
    assert np.isfinite(hw.score(model, task, "gating", **options).values).all()


@pytest.mark.parametrize("name", ["gemma3_text", "llama"])
def test_roles_takes_the_mean_there_and_says_so(name, tmp_path, undrawn):
    model = word_model(name)
    lines = [f'{{"prompt": "{e.prompt}", "target": "{e.target}"}}' for e in word_task(8)]
    (tmp_path / "words.jsonl").write_text("\n".join(lines))
    fit = {"updates": 2, "batch": 2, "keep": 2, "window": 2}
    settings = {"tasks": [str(tmp_path / "words.jsonl")], "n": 8, "seeds": 1, "fit": fit, "k": [2]}
    run = run_on("roles", tmp_path / "run", model, random_sets=2, **settings)
    messages = [line for line in run.notices if "mean output, not 0" in line]
    assert len(messages) == (NORM_AFTER_HEADS[name] is not None)
    expected = "mean" if messages else "zero"
    assert set(read_table(run.path, "order")["reference"]) == {expected}
    assert (
        "mean ablation"
        in findings({n: read_table(run.path, n) for n in ("order", "shares", "joint")})[0].sentence
    ) == bool(messages)
    if messages:
        with pytest.raises(HeadwiseError, match="a norm after its heads"):
            run_on("roles", tmp_path / "zero", model, reference="zero", **settings)
