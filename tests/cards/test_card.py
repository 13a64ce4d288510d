"""Cards of heads: each number computed a second way in plain torch, and what is known of SmolLM2's L23H3 on IOI."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.cards.measured import RANDOM, pattern_table
from headwise.cards.tokens import TokenReader, answer_prompts
from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.verify.tiny import tiny_model
from headwise.tasks import Example, Task
from helpers import HeadsByHook, plain_logits, run_on, word_model, word_task

HOSTILE = "<script>window.broken=1</script>"


def named(table, **which):
    for column, value in which.items():
        table = table[table[column] == value]
    return table


# ---- tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma", "olmo2", "granite"])
def test_the_answers_logits_are_those_of_direct_logit_attribution(family):
    """The card multiplies a head's output forwards, the method `direct` reads the answers' direction backwards."""
    model = word_model(family, load={"bos": False})
    task = word_task(4, equal_length=False)
    direct = hw.score(model, task, "direct", reference="zero")
    for head in (Head(0, 1), Head(3, 2)):
        tokens = TokenReader(model, answer_prompts(model, task)).output_table(head)
        answers = {
            kind: named(tokens, kind=kind).set_index("example")["logit"] for kind in ("target", "foil")
        }
        difference = (answers["target"] - answers["foil"]).to_numpy()
        np.testing.assert_allclose(difference, direct.examples[:, head.layer, head.head], atol=2e-5)


def ov_logits_by_hand(tiny, head, token, scale):
    """Embedding, input norm, values of the head's group, its columns of the output projection, unembedding."""
    layer = tiny.hf.model.layers[head.layer]
    with torch.no_grad():
        value = layer.self_attn.v_proj(layer.input_layernorm(tiny.hf.model.embed_tokens.weight[token]))
        group = head.head // (4 // 2)  # 4 heads share 2 groups of keys and values
        written = (
            layer.self_attn.o_proj.weight[:, 8 * head.head : 8 * head.head + 8]
            @ value[8 * group : 8 * group + 8]
        )
        logits = tiny.hf.lm_head.weight @ (scale * tiny.hf.model.norm.weight * written)
    return logits - logits.mean()


@pytest.mark.parametrize("head", [Head(0, 0), Head(2, 3)])
def test_the_ov_weights_are_embedding_values_output_projection_and_unembedding(tiny, head):
    with torch.no_grad():
        tiny.hf.model.norm.weight.copy_(torch.linspace(0.5, 1.5, 32))
    prompts = answer_prompts(tiny, word_task(3))
    scales = []
    for prompt in prompts:
        seen = []
        handle = tiny.hf.model.norm.register_forward_pre_hook(
            lambda _, args, seen=seen: seen.append(args[0][0, -1])
        )
        plain_logits(tiny, prompt.ids)
        handle.remove()
        scales.append(float((seen[0].pow(2).mean() + tiny.hf.config.rms_norm_eps).rsqrt()))
    source = prompts[0].ids[1]
    table = TokenReader(tiny, prompts).weights_table(head, [source])
    expected = ov_logits_by_hand(tiny, head, source, np.mean(scales))
    text = tiny.text.decode([source])
    (own,) = named(table, source=text, kind="own").to_dict("records")
    assert own["logit"] == pytest.approx(float(expected[source]), abs=1e-5)
    assert own["rank"] == 1 + int((expected > expected[source]).sum())
    promoted = named(table, source=text, kind="promoted").sort_values("rank")
    order = expected.argsort(descending=True)[:10]
    assert promoted["token"].tolist() == [tiny.text.decode([int(token)]) for token in order]
    np.testing.assert_allclose(promoted["logit"], expected[order], atol=1e-5)


def test_lists_are_sorted_and_ranks_count_from_the_most_promoted(tiny):
    tokens = TokenReader(tiny, answer_prompts(tiny, word_task(2))).output_table(Head(1, 1))
    for _, rows in tokens.groupby("example"):
        up, down = named(rows, kind="promoted"), named(rows, kind="suppressed")
        assert up["rank"].tolist() == list(range(1, 11))
        assert down["rank"].tolist() == [len(tiny.text.tokenizer) - place for place in range(10)]
        assert up["logit"].is_monotonic_decreasing
        assert down["logit"].is_monotonic_increasing


def test_a_model_without_a_linear_path_has_a_card_with_the_reason(word_tokenizer):
    model = hw.load(
        tiny_model("gemma2", vocab_size=len(word_tokenizer)),
        tokenizer=word_tokenizer,
        name="gemma2",
        bos=False,
    )
    card = hw.card(model, "L1H1", word_task(3), progress=False)
    assert "tokens" not in card.tables
    assert any("soft cap" in note for note in card.notes)
    assert "soft cap" in repr(card)
    assert len(card.table("attention"))
    assert len(card.table("patterns"))


# ---- examples, attention, patterns ---------------------------------------------------------------------------


def test_examples_are_those_with_the_largest_and_smallest_effect_of_taking_the_head_away(tiny):
    task, head = word_task(6), Head(2, 1)

    def without_head(layer, z):
        return z * (torch.arange(4)[:, None] != head.head) if layer == head.layer else z

    effects = []
    for example in task:
        ids = tiny.tokens(example.prompt)
        (right,), (wrong,) = (tiny.tokens(text.strip())[-1:] for text in (example.target, example.foils[0]))
        full = plain_logits(tiny, ids)[-1]
        with HeadsByHook(tiny, without_head):
            without = plain_logits(tiny, ids)[-1]
        effects.append(float((full[right] - full[wrong]) - (without[right] - without[wrong])))
    shown = hw.card(tiny, "L2H1", task, examples=2, reference="zero", progress=False).table("examples")
    for kind, order in (("helps", np.argsort(effects)[::-1]), ("hurts", np.argsort(effects))):
        rows = named(shown, kind=kind)
        signed = [e for e in order if (effects[e] > 0) == (kind == "helps")][:2]
        assert rows["example"].tolist() == signed
        np.testing.assert_allclose(rows["value"], [effects[e] for e in signed], atol=1e-5)
        assert rows["prompt"].tolist() == [task.examples[e].prompt for e in signed]


def test_attention_is_the_eager_map_with_the_tokens_of_the_prompt(tiny, word_tokenizer):
    task = word_task(3)
    card = hw.card(tiny, "L1H2", task, examples=1, progress=False)
    rows = card.table("attention")
    (number,) = rows["example"].unique()
    ids = tiny.tokens(task.examples[number].prompt)
    eager = tiny_model(
        "llama", vocab_size=len(word_tokenizer), max_position_embeddings=512, attn_implementation="eager"
    )
    with torch.no_grad():
        maps = eager(input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    np.testing.assert_allclose(rows["attention"], maps[1][0, 2][rows["query"], rows["key"]], atol=1e-5)
    assert len(rows) == len(ids) * (len(ids) + 1) / 2
    last = rows[rows["query"] == len(ids) - 1]
    assert last["token"].tolist() == [tiny.text.decode([token]) for token in ids]


def test_of_a_long_prompt_only_the_answers_row_is_kept(tiny):
    task = Task("long", (Example(" ".join(["the cat saw a dog ."] * 10), " he", (" she",)),), "logit_diff")
    card = hw.card(tiny, "L1H2", task, progress=False)
    assert card.table("attention")["query"].unique().tolist() == [
        len(tiny.tokens(task.examples[0].prompt)) - 1
    ]
    assert card.table("attention")["attention"].sum() == pytest.approx(1, abs=1e-5)
    card.plot()


def test_patterns_have_the_value_and_the_rank_of_the_score_pattern(tiny):
    task = Task(
        "repeating",
        (
            Example("the cat saw a dog then the cat", " saw", (" met",)),
            Example("one red bird met one blue bird and one", " red", (" blue",)),
        ),
        "logit_diff",
    )
    table = hw.card(tiny, "L2H0", task, progress=False).table("patterns")
    assert set(named(table, prompts=RANDOM)["pattern"]) == {"previous", "duplicate", "induction", "first"}
    for row in named(table, prompts="repeating").to_dict("records"):
        scores = hw.score(tiny, task, "pattern", kind=row["pattern"])
        assert row["attention"] == pytest.approx(scores["L2H0"], abs=1e-6)
        order = [str(head) for head in scores.order()]
        assert (row["rank"], row["heads"]) == (order.index("L2H0") + 1, 16)


def test_the_first_token_is_a_pattern_of_its_own(tiny):
    task = word_task(2)
    scores = hw.score(tiny, task, "pattern", kind="first")
    for e, example in enumerate(task):
        seen = hw.attention(tiny, example.prompt, "L1H1", keys=[0])
        assert scores.examples[e, 1, 1] == pytest.approx(float(seen.columns[0, 1:, 0].mean()), abs=1e-6)


def test_an_induction_head_ranks_first_on_repeated_random_tokens(smollm2):
    table = pattern_table(smollm2, hw.task("ioi", 2, model=smollm2))
    best = named(table, prompts=RANDOM, pattern="induction", rank=1).iloc[0]
    assert best["attention"] > 0.8


# ---- scores ----------------------------------------------------------------------------------------------


def test_without_a_run_it_has_the_ablation_and_the_attribution_score(tiny):
    task = word_task(5)
    table = hw.card(tiny, "L3H1", task, progress=False).table("scores").set_index("measure")
    for method in ("ablation", "attribution"):
        scores = hw.score(tiny, task, method)
        expected = named(scores.table(), layer=3, head=1).iloc[0]
        for column in ("score", "lo", "hi", "n"):
            assert table.loc[f"{method} (mean)", column] == pytest.approx(expected[column], abs=1e-6)
    order = [str(head) for head in hw.score(tiny, task, "attribution").order("absolute")]
    assert table.loc["attribution (mean)", "rank"] == order.index("L3H1") + 1


@pytest.fixture
def run_folder(tiny, tmp_path, undrawn):
    source = tmp_path / "mine.jsonl"
    # One pair of answers for all prompts: some heads then have an effect of one sign.
    rows = [{"prompt": e.prompt, "target": " cat", "foils": [" dog"]} for e in word_task(12)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_on(
        "score", tmp_path / "run", tiny, tasks=[str(source)], n=12, cards=2, reference="zero", progress=False
    )


def test_with_a_run_it_has_the_runs_scores_and_ranks(tiny, run_folder):
    table = hw.card(tiny, "L3H1", word_task(3), run=run_folder.path, progress=False).table("scores")
    from headwise.runs import read_table

    scores = read_table(run_folder.path, "scores")
    expected = named(scores, layer=3, head=1).iloc[0]
    (row,) = table.to_dict("records")
    assert (row["study"], row["measure"], row["heads"]) == ("score", "ablation (zero)", 16)
    for column in ("score", "lo", "hi", "q"):
        assert row[column] == expected[column]
    assert row["rank"] == 1 + int((scores["score"].abs() > abs(expected["score"])).sum())


def test_a_run_of_another_model_is_refused(tiny, run_folder):
    tiny.name = "other"
    with pytest.raises(HeadwiseError, match="has scores of tiny, not of other"):
        hw.card(tiny, "L3H1", word_task(3), run=run_folder.path, progress=False)


# ---- the study -------------------------------------------------------------------------------------------------


def test_the_study_score_stores_cards_of_its_largest_heads(tiny, run_folder):
    from headwise.runs import read_table

    scores = read_table(run_folder.path, "scores")
    largest = scores.sort_values("score", key=abs, ascending=False)[:2]
    heads = {*zip(largest["layer"], largest["head"], strict=True)}
    for name in ("card_attention", "card_tokens", "card_patterns", "card_examples"):
        table = read_table(run_folder.path, name)
        assert {*zip(table["layer"], table["head"], strict=True)} == heads
    assert (run_folder.path / "report.html").read_text(encoding="utf-8").count('id="cards"') == 1


def test_without_cards_a_study_has_no_such_tables(tiny, tmp_path, run_folder):
    settings = {"tasks": [str(tmp_path / "mine.jsonl")], "n": 12, "reference": "zero", "progress": False}
    plain = run_on("score", tmp_path / "plain", tiny, cards=0, **settings)
    assert not list((plain.path / "tables").glob("card_*"))
    same = [(folder.path / "tables/scores.parquet").read_bytes() for folder in (plain, run_folder)]
    assert same[0] == same[1]


# ---- displays and mistakes -------------------------------------------------------------------------------------


def test_a_card_shows_itself_and_escapes_what_prompts_say(tiny):
    task = Task(
        HOSTILE,
        tuple(Example(f"{HOSTILE} the cat {e.prompt}", e.target, e.foils) for e in word_task(3)),
        "logit_diff",
    )
    card = hw.card(tiny, "L2H1", task, progress=False)
    text, html = repr(card), card._repr_html_()
    for words in (
        "L2H1 of tiny",
        "attends to",
        "promotes",
        "suppresses",
        "previous token",
        "OV weights",
        "ablation",
    ):
        assert words in text
    assert HOSTILE not in html
    assert "&lt;script&gt;" in html
    assert len(card.plot().axes) >= 3
    with pytest.raises(HeadwiseError, match="did you mean 'tokens'"):
        card.table("token")


@pytest.mark.parametrize(
    ("head", "task", "message"),
    [
        ("L9H0", word_task(2), "has no head L9H0"),
        (["L0H0", "L0H1"], word_task(2), "a card is of one head"),
        ("L0H0", None, "task='ioi'"),
    ],
)
def test_mistakes_are_explained(tiny, head, task, message):
    with pytest.raises(HeadwiseError, match=message):
        hw.card(tiny, head, task, progress=False)


# ---- the bundled model ---------------------------------------------------------------------------------------


def test_l23h3_of_smollm2_pushes_the_subjects_name_down(smollm2):
    """In IOI the foil is the subject, whose name comes twice."""
    card = hw.card(smollm2, "L23H3", hw.task("ioi", 8, model=smollm2), progress=False)
    tokens = named(card.table("tokens"), path="output")
    subject, indirect = named(tokens, kind="foil"), named(tokens, kind="target")
    assert subject["logit"].mean() < -1.5
    assert abs(indirect["logit"].mean()) < 0.5
    assert (subject["rank"] > subject["of"] - 10).mean() >= 0.9
    for _, rows in named(tokens, kind="suppressed").groupby("example"):
        foil = named(subject, example=rows["example"].iloc[0])["token"].item()
        assert foil in rows["token"].tolist()
    assert card.table("scores").set_index("measure").loc["attribution (mean)", "rank"] == 1
    assert "among the ten most suppressed tokens in 8 of 8 examples" in repr(card)
    last = card.table("attention").query("query == key.max() and key > 0")
    assert last["attention"].max() > 0.4
