"""What the explorer streams is what `hw.generate`, `hw.measure` and plain hooks compute."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import headwise as hw
from explore.conftest import PROMPT, quiet_job
from headwise.errors import HeadwiseError
from headwise.explorer.live import Live
from headwise.explorer.requests import Attribution, Run
from headwise.tasks import Example, Task
from helpers import WORDS, HeadsByHook, plain_logits, recorded

NEW = 12


def listed(gates):
    return [(int(i), int(j), float(gates[i, j])) for i, j in np.argwhere(gates != 1)]


def random_gates(model, count, seed=0):
    """Gate sets of all sizes, with values between 0 and 2 and many exact zeros."""
    draw = np.random.default_rng(seed)
    sets = np.ones((count, *model.shape))
    for gates in sets:
        chosen = draw.random(model.shape) < draw.uniform(0.02, 0.9)
        gates[chosen] = np.where(draw.random(model.shape) < 0.6, 0, draw.uniform(0, 2, model.shape))[chosen]
        gates[tuple(draw.integers(0, model.shape))] = 0  # at least one head is changed
    return sets


def answer(live, gates, reference="zero", prompt=PROMPT, new=NEW, **more):
    """Streamed tokens of the gated model, its streamed text, and the distribution."""
    asked = Run(tab="t", prompt=prompt, gates=listed(gates), reference=reference, new_tokens=new, **more)
    events = list(live.run(asked, quiet_job()))
    side = "gated" if (gates != 1).any() else "full"
    tokens = [e for e in events if e["event"] == "token" and e["side"] == side]
    (distribution,) = [e for e in events if e["event"] == "next"]
    return [t["id"] for t in tokens], "".join(t["text"] for t in tokens), distribution


@pytest.mark.parametrize("reference", ["zero", "mean"])
def test_random_gate_sets_stream_what_generate_writes_and_show_what_measure_measures(tiny, reference):
    live, sets = Live(tiny), random_gates(tiny, 40, seed=len(reference))
    words = Task("all", tuple(Example(PROMPT, f" {word}") for word in WORDS), "prob")
    measured = hw.measure(tiny, words, sets, reference=reference, progress=False)
    written = hw.generate(tiny, PROMPT, sets, reference=reference, max_new_tokens=NEW, progress=False)
    compared = 0
    for v, (gates, shares, fulls) in enumerate(zip(sets, measured.values, measured.full, strict=True)):
        tokens, text, distribution = answer(live, gates, reference)
        assert tokens == written.tokens[v][0]
        assert text == written.texts[v][0]
        by_word = {row["text"]: row for row in distribution["tokens"]}
        for word, share, full in zip(WORDS, shares, fulls, strict=True):
            if word in by_word:
                compared += 1
                assert by_word[word]["gated"] == pytest.approx(share, rel=2e-4, abs=1e-7)
                assert by_word[word]["full"] == pytest.approx(full, rel=2e-4, abs=1e-7)
    assert compared > 400


def test_the_distribution_and_its_kl_are_those_of_plain_hooks(tiny):
    gates = random_gates(tiny, 1, seed=5)[0]
    _, _, distribution = answer(Live(tiny), gates)
    scale = torch.tensor(gates, dtype=torch.float32)
    ids = tiny.tokens(PROMPT)
    full = plain_logits(tiny, ids)[-1].double().log_softmax(-1)
    with HeadsByHook(tiny, lambda layer, z: z * scale[layer][None, None, :, None]):
        gated = plain_logits(tiny, ids)[-1].double().log_softmax(-1)
    for row in distribution["tokens"]:
        assert row["gated"] == pytest.approx(gated[row["id"]].exp().item(), rel=1e-4)
    assert distribution["kl"] == pytest.approx((full.exp() * (full - gated)).sum().item(), rel=1e-3)


OTHER = "the cat saw a bird and then"


def test_patch_shows_what_measure_measures(tiny):
    live, sets = Live(tiny), random_gates(tiny, 20, seed=3)
    words = Task("all", tuple(Example(PROMPT, f" {w}", (), OTHER) for w in WORDS), "prob")
    measured = hw.measure(tiny, words, sets, reference="patch", progress=False)
    for gates, shares in zip(sets, measured.values, strict=True):
        _, _, distribution = answer(live, gates, "patch", counterfactual=OTHER)
        by_word = {row["text"]: row["gated"] for row in distribution["tokens"]}
        for word, share in zip(WORDS, shares, strict=True):
            assert by_word.get(word, share) == pytest.approx(share, rel=2e-4, abs=1e-7)


def test_a_patched_continuation_patches_the_prompt_and_leaves_new_tokens_alone(tiny):
    gates = np.ones(tiny.shape)
    gates[1, 2] = gates[2, 0] = 0
    tokens, _, _ = answer(Live(tiny), gates, "patch", counterfactual=OTHER)
    donor, ids = recorded(tiny, OTHER), tiny.tokens(PROMPT)
    first, length = 4, len(ids)  # “dog” and “bird” differ

    def edit(layer, z):
        z = z.clone()
        for at, head in ((1, 2), (2, 0)):
            if layer == at:
                z[0, first:length, head] = donor[layer][first:length, head]
        return z

    text = list(ids)
    with HeadsByHook(tiny, edit):
        for _ in range(NEW):
            text.append(int(plain_logits(tiny, text)[-1].argmax()))
    end = tiny.text.tokenizer.eos_token_id
    expected = text[length:]
    assert tokens == (expected[: expected.index(end)] if end in expected else expected)


def test_without_a_counterfactual_of_equal_length_a_patch_is_refused_in_a_sentence(tiny):
    live, gates = Live(tiny), np.zeros(tiny.shape)
    with pytest.raises(hw.HeadwiseError, match="needs a counterfactual"):
        answer(live, gates, "patch")
    with pytest.raises(hw.HeadwiseError, match="7 tokens and the counterfactual 2"):
        answer(live, gates, "patch", counterfactual="the cat")


def test_live_attribution_is_the_score_of_the_same_name(tiny):
    for reference, more in (("zero", {}), ("mean", {}), ("patch", {"counterfactual": OTHER})):
        asked = Attribution(
            tab="t", prompt=PROMPT, reference=reference, target=tiny.tokens("bird")[-1], **more
        )
        (event,) = Live(tiny).attribution(asked, quiet_job())
        task = Task("one", (Example(PROMPT, " bird", (), OTHER),), "logprob")
        score = hw.score(tiny, task, "attribution", metric="logprob", reference=reference, progress=False)
        np.testing.assert_allclose(np.array(event["values"], float), score.values, rtol=2e-3, atol=1e-6)
        assert event["target"]["text"] == "bird"


def test_the_full_text_is_streamed_once_and_remembered(tiny):
    live, gates = Live(tiny), np.ones(tiny.shape)
    tokens, _, _ = answer(live, gates)
    gates[0, 0] = 0
    again = list(live.run(Run(tab="t", prompt=PROMPT, gates=listed(gates), new_tokens=NEW), quiet_job()))
    (full,) = [e for e in again if e["event"] == "text"]
    assert [token["id"] for token in full["tokens"]] == tokens
    assert {e["side"] for e in again if e["event"] == "token"} == {"gated"}
    shorter = list(live.run(Run(tab="t", prompt=PROMPT, gates=listed(gates), new_tokens=4), quiet_job()))
    assert len(next(e for e in shorter if e["event"] == "text")["tokens"]) == 4


def test_a_click_computes_only_the_blocks_from_its_layer_on_and_the_same_text(tiny):
    computed = []
    for number, layer in enumerate(tiny.hf.model.layers):
        layer.mlp.register_forward_hook(lambda *_, number=number: computed.append(number))
    live, gates = Live(tiny), np.ones(tiny.shape)

    def blocks_of(**more):
        computed.clear()
        found = answer(live, gates, new=1, **more)[0]
        return found, sorted(set(computed))

    assert blocks_of()[1] == [0, 1, 2, 3]
    for layer, head, gate, expected in [
        (2, 1, 0, [2, 3]),
        (3, 0, 0.5, [3]),
        (1, 3, 2, [1, 2, 3]),
        (2, 1, 1, [2, 3]),
        (0, 0, 0, [0, 1, 2, 3]),
    ]:
        gates[layer, head] = gate
        found, blocks = blocks_of()
        assert blocks == expected
        tokens, _, distribution = answer(live, gates)
        fresh = answer(Live(tiny), gates)
        assert (tokens, distribution) == (fresh[0], fresh[2])
        assert found == tokens[:1]
        written = hw.generate(tiny, PROMPT, gates, max_new_tokens=NEW, progress=False)
        assert tokens == written.tokens[0][0]
    assert blocks_of(reference="mean")[1] == [0, 1, 2, 3]  # another ablation type changes layer 0 as well
    gates[0, 0] = 1
    blocks_of(reference="mean")
    assert blocks_of(reference="zero")[1] == [1, 2, 3]  # gates at 1 are the same under every type


def test_streams_are_kept_for_one_prompt_and_not_for_long_ones(tiny, monkeypatch):
    live, gates = Live(tiny), np.ones(tiny.shape)
    gates[3, 3] = 0
    answer(live, gates)
    answer(live, gates, prompt="the dog saw a cat")
    kept = [prompt.last_pass is not None for prompt in live.prompts._prompts.values()]
    assert kept == [False, True]
    monkeypatch.setattr("headwise.explorer.prompt_cache.LONGEST", 6)
    answer(live, gates)
    assert all(prompt.last_pass is None for prompt in live.prompts._prompts.values())


@pytest.mark.parametrize("reference", ["zero", "mean"])
def test_a_prompt_that_is_read_in_pieces_gives_the_same_and_is_read_once_per_side(
    tiny, monkeypatch, reference
):
    gates, read = random_gates(tiny, 1, seed=7)[0], []
    tokens, text, whole = answer(Live(tiny), gates, reference)
    for module in ("prompt_cache", "live"):
        monkeypatch.setattr(f"headwise.explorer.{module}.LONGEST", 4)
    monkeypatch.setattr("headwise.explorer.prompt_cache.PIECE", 3)
    live = Live(tiny)
    live.prompts.means(live.prompts.get(Run(tab="t", prompt=PROMPT)))  # a reading of its own
    tiny.hf.model.layers[0].register_forward_pre_hook(lambda _, args: read.append(args[0].shape[1]))
    found = answer(live, gates, reference)
    assert found[:2] == (tokens, text)
    for mine, other in zip(found[2]["tokens"], whole["tokens"], strict=True):
        assert mine["id"] == other["id"]
        assert mine["gated"] == pytest.approx(other["gated"], rel=1e-4)
        assert mine["full"] == pytest.approx(other["full"], rel=1e-4)
    assert [count for count in read if count > 1] == [3, 3] * 2  # 7 tokens: 3, 3 and 1, for each side


@pytest.mark.slow
@pytest.mark.bundled
@pytest.mark.parametrize("reference", ["zero", "mean", "patch"])
def test_the_bundled_model_streams_and_shows_the_same_as_the_library(smollm2, reference):
    prompt = "When Mary and John went to the store, John gave a drink to"
    other = "When Mary and John went to the store, Anna gave a drink to"
    live, sets = Live(smollm2), random_gates(smollm2, 6, seed=1)
    names = [" Mary", " John", " the", " her", " a"]
    task = Task("names", tuple(Example(prompt, name, (), other) for name in names), "prob")
    measured = hw.measure(smollm2, task, sets, reference=reference, progress=False)
    for gates, shares in zip(sets, measured.values, strict=True):
        tokens, text, distribution = answer(
            live, gates, reference, prompt=prompt, counterfactual=other, new=10
        )
        by_text = {row["text"]: row["gated"] for row in distribution["tokens"]}
        for name, share in zip(names, shares, strict=True):
            assert math.isclose(by_text.get(name, share), share, rel_tol=2e-3, abs_tol=1e-6)
        if reference != "patch":
            written = hw.generate(
                smollm2, prompt, gates, reference=reference, max_new_tokens=10, progress=False
            )
            assert (tokens, text) == (written.tokens[0][0], written.texts[0][0])


def test_windowed_heads_stream_what_generate_writes(tiny):
    live, sets = Live(tiny), random_gates(tiny, 6, seed=3)
    prompt = " ".join(WORDS[(3 * i * i + i) % len(WORDS)] for i in range(90))
    written = hw.generate(tiny, prompt, sets, reference="window", max_new_tokens=NEW, progress=False)
    for v, gates in enumerate(sets):
        assert answer(live, gates, "window", prompt)[0] == written.tokens[v][0]
    assert written.tokens != hw.generate(tiny, prompt, sets, max_new_tokens=NEW, progress=False).tokens
    asked = Attribution(tab="t", prompt=prompt, reference="window")
    (event,) = live.attribution(asked, quiet_job())
    task = Task("one", (Example(prompt, f" {event['target']['text'].strip()}"),), "logprob")
    scores = hw.score(tiny, task, "attribution", reference="window", progress=False)
    np.testing.assert_allclose(np.array(event["values"]), scores.values, rtol=1e-4, atol=1e-6)
    with pytest.raises(HeadwiseError, match="are all of it"):
        answer(live, sets[0], "window")
