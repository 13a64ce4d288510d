"""The study `prompts` on tiny models, from a file to tables, figures and a resumed run."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.metrics.text import boxed, result
from headwise.model.generation.generate import Generated
from headwise.model.verify.tiny import tiny_model
from headwise.runs import read_table
from headwise.studies.prompts import study as prompts_study
from headwise.studies.prompts.attention import affine_fit, kurtosis, near_zero, near_zero_bound
from headwise.studies.prompts.problems import open_problems
from headwise.studies.prompts.settings import PromptsSettings
from headwise.studies.prompts.study import judged, summary_tables
from headwise.studies.verify import verify
from headwise.tasks.conditions import conditions
from helpers import WORDS, assert_figures, bench_of, every_format, make_word_tokenizer, resumed, run_on

TABLES = ("answers", "accuracy", "comparisons", "curves", "profiles", "moved", "affine", "activations")
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] | trim }} </{{ m['role'] }}> {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TAGS = [f"<{end}{role}>" for role in ("system", "user", "assistant") for end in ("", "/")]


@pytest.fixture(scope="module")
def model():
    tokenizer = make_word_tokenizer([*WORDS, "/", "Q:", "A:", *TAGS])
    return hw.load(
        tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512),
        tokenizer=tokenizer,
        name="tiny",
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sixteen questions of made-up sense."""
    lines = [
        json.dumps(
            {
                "prompt": " ".join(WORDS[(i * 7 + j * 3) % 20] for j in range(5 + i % 3)),
                "target": f" {WORDS[i % 5]}",
            }
        )
        for i in range(16)
    ]
    path = tmp_path_factory.mktemp("data") / "questions.jsonl"
    path.write_text("\n".join(lines))
    return str(path)


BASE = {"metric": "contains", "n": 10, "shots": 2, "attention_prompts": 3, "max_new_tokens": 6}


def carried_out(model, out, data, **settings):
    return run_on("prompts", out, model, data=data, **{**BASE, **settings})


@pytest.fixture(scope="module")
def finished(model, data, tmp_path_factory):
    with every_format():
        return carried_out(model, tmp_path_factory.mktemp("runs") / "run", data)


def test_every_table_and_figure_is_there_and_they_agree_with_one_another(finished):
    tables = {name: read_table(finished.path, name) for name in TABLES}
    for table in tables.values():
        assert list(table.columns[:2]) == ["model", "task"]
    answers, accuracy, comparisons = tables["answers"], tables["accuracy"], tables["comparisons"]
    assert answers.groupby("condition").size().to_dict() == {"none": 10, "meaningless": 10, "meaningful": 10}
    for row in accuracy.itertuples():
        own = answers[answers["condition"] == row.condition]
        assert row.accuracy == own["right"].mean()
        assert (row.n, row.truncated) == (10, own["truncated"].sum())
        assert row.lo <= row.accuracy <= row.hi
    for row in comparisons.itertuples():
        right = answers.pivot(index="problem", columns="condition", values="right")
        difference = right[row.condition] - right["none"]
        assert row.difference == pytest.approx(difference.mean())
        assert (row.only_condition, row.only_baseline) == ((difference > 0).sum(), (difference < 0).sum())
        assert row.p_holm >= row.p
    assert list(tables["curves"].columns[:11]) == (
        "model task series action k metric value lo hi n draw".split()
    )
    assert set(answers.groupby("condition")["inserted"].first()) == {0, 55}
    moved = tables["moved"]
    assert moved.groupby("condition").size().to_dict() == {"meaningless": 16, "meaningful": 16}
    head = tables["profiles"].iloc[0]
    largest = moved.groupby(["layer", "head"])["profile_change"].mean().idxmax()
    assert (head["layer"], head["head"]) == largest
    names = (f"prompts-questions-tiny-L{largest[0]}H{largest[1]}", "moved-questions", "affine-questions")
    assert_figures(finished.path, *names)
    assert sum("McNemar p = " in finding for finding in finished.findings) == 2
    assert sum(" right [" in finding for finding in finished.findings) == 1
    assert finished.notices == []


def test_answers_are_those_of_plain_prompts_with_the_filler_written_in(model, data, finished):
    answers = read_table(finished.path, "answers")
    task = open_problems(PromptsSettings(**{**BASE, "tasks": (data,)}), data, model)
    before = "".join(f"Q: {q}\nA:{a}\n\n" for q, a in task.shots)
    for condition, filler in (
        ("none", ""),
        ("meaningless", "/ " * 54 + "/\n"),
        ("meaningful", "he " * 54 + "he\n"),
    ):
        texts = [f"{before}{filler}Q: {question}\nA:" for question in task.questions]
        written = hw.generate(model, texts, max_new_tokens=6, stop="\n\n").texts[0]
        own = answers[answers["condition"] == condition]
        assert list(own["text"]) == written
        assert list(own["right"]) == [
            float(gold[0] in text.split()) for gold, text in zip(task.gold, written, strict=True)
        ]
    asked = set(task.questions)
    assert not asked & {question for question, _ in task.shots}


def eager_weights(model, ids, layer, head):
    """One head's map from a second copy of the model with eager attention."""
    twin = tiny_model(
        "llama",
        vocab_size=len(model.text.tokenizer),
        max_position_embeddings=512,
        attn_implementation="eager",
    )
    with torch.no_grad():
        return twin(input_ids=torch.tensor([ids]), output_attentions=True).attentions[layer][0, head].numpy()


def eager_profile(model, ids, layer, head):
    """The mean over all later queries of each key but the first and the last."""
    weights = eager_weights(model, ids, layer, head)
    return np.array([weights[j + 1 :, j].mean() for j in range(1, len(ids) - 1)])


def test_profiles_and_movement_equal_those_of_the_eager_maps(model, data, finished):
    settings = PromptsSettings(**{**BASE, "tasks": (data,)})
    task = open_problems(settings, data, model)
    profiles, moved = read_table(finished.path, "profiles"), read_table(finished.path, "moved")
    layer, head = profiles["layer"].iloc[0], profiles["head"].iloc[0]
    by_name = {
        c.name: task.first(3).prompts(model, c) for c in conditions(["none", "meaningless", "meaningful"])
    }
    for name, prompts in by_name.items():
        own = profiles[profiles["condition"] == name].sort_values("position")
        np.testing.assert_allclose(
            own["attention"].to_numpy()[1:-1], eager_profile(model, prompts[0].ids, layer, head), atol=1e-5
        )
        assert own["inserted"].sum() == (0 if name == "none" else 55)
    change, total = [], []
    for plain, full in zip(by_name["none"], by_name["meaningless"], strict=True):
        old, new = (eager_weights(model, p.ids, layer, head) for p in (plain, full))
        own = [at for at in range(len(full.ids)) if not full.inserted[at]]
        first = int(np.argmax(full.inserted))
        for i, j in enumerate(own):  # the same token, without and with the filler before it
            if j > first:
                gone = sum(abs(new[j, k] - old[i, n]) for n, k in enumerate(own)) / 2
                total.append((gone + new[j, full.inserted].sum() / 2, len(change)))
        before, after = (eager_profile(model, p.ids, layer, head) for p in (plain, full))
        length = len(plain.ids)
        change.append(
            sum(
                abs(after[own[j] - 1] - before[j - 1]) * (length - 1 - j) / (length - 1)
                for j in range(1, length - 1)
            )
        )
    row = moved[(moved["condition"] == "meaningless") & (moved["layer"] == layer) & (moved["head"] == head)]
    by_prompt = pd.DataFrame(total, columns=["moved", "prompt"]).groupby("prompt")["moved"].mean()
    assert row["moved"].item() == pytest.approx(by_prompt.mean(), abs=1e-5)
    assert row["profile_change"].item() == pytest.approx(np.mean(change), abs=1e-5)


def test_a_run_cut_short_resumes_and_ends_with_the_same_tables(
    model, data, finished, tmp_path, monkeypatch, undrawn
):
    cut = tmp_path / "cut"
    carry_out = partial(carried_out, model, cut, data)
    calls = resumed(monkeypatch, prompts_study, "generate", 2, carry_out, cut, finished.path, stored=1)
    slashes = [sum(model.tokens("/")[0] in ids for ids in args[1]) for args, _ in calls]
    assert slashes == [0, 10, 10, 0]  # none, meaningless cut short, meaningless, meaningful


def test_keys_of_steps_say_the_dtype_of_the_model_however_it_was_chosen(
    model, data, finished, tmp_path, undrawn
):
    named = carried_out(model, tmp_path / "named", data, dtype="float32")
    assert named.calls.keys() == finished.calls.keys()


def test_a_setting_that_changes_no_number_computes_nothing_again(model, data, finished, tmp_path, undrawn):
    other = carried_out(model, tmp_path / "other", data, batch_tokens=300, arm={"c": 1.0})
    assert other.calls.keys() == finished.calls.keys()
    fewer = carried_out(model, tmp_path / "fewer", data, conditions=["none", "meaningful"])
    assert len(fewer.calls.keys() & finished.calls.keys()) == 2  # answers; attention compares all conditions


def test_steps_come_out_again(model, finished, undrawn):
    found = verify(finished.path, steps="all", workbench=bench_of(model))
    assert all(one.same for one in found)
    labels = [one.label for one in found if one.kind == "step"]
    assert sum(label.startswith("answers to questions under ") for label in labels) == 3
    assert sum(label.startswith("attention on questions") for label in labels) == 1


def test_a_condition_equal_to_another_differs_by_nothing_on_these_problems(model, data, tmp_path, undrawn):
    same = {"conditions": ["one", "two"], "fillers": {"one": "he saw a bird", "two": "he saw a bird"}}
    folder = carried_out(model, tmp_path / "run", data, **same)
    (row,) = read_table(folder.path, "comparisons").to_dict("records")
    assert (row["difference"], row["p"], row["p_holm"]) == (0, 1, 1)
    assert row["lo"] == pytest.approx(-row["hi"])
    assert row["hi"] > 0  # other problems might come out differently
    assert (read_table(folder.path, "moved")["moved"] == 0).all()
    affine = read_table(folder.path, "affine")
    np.testing.assert_allclose(affine[["slope", "r2"]], 1, atol=1e-6)


@pytest.mark.parametrize("samples", [1, 3])
def test_a_planted_difference_is_found(model, data, tmp_path, monkeypatch, samples):
    """The model is replaced by one that answers right only where there are slashes in the prompt."""
    slash, settings = model.tokens("/")[0], {**BASE, "tasks": (data,), "n": 14}
    golds = [answers[0] for answers in open_problems(PromptsSettings(**settings), data, model).gold]

    def planted(_, prompts, **options):
        draw = np.random.default_rng(options["seed"])
        texts = [
            gold if slash in ids and draw.random() < 0.95 else "?"
            for ids, gold in zip(prompts, golds, strict=True)
        ]
        empty = [[[] for _ in prompts]]
        return Generated([texts], empty, np.ones((1, len(prompts)), dtype=bool), prompts, [])

    monkeypatch.setattr("headwise.studies.prompts.study.generate", planted)
    sampled = {"temperature": 1.0, "samples": samples} if samples > 1 else {}
    folder = carried_out(model, tmp_path / "run", data, n=14, attention_prompts=0, **sampled)
    found = read_table(folder.path, "comparisons").set_index("condition")
    assert found.loc["meaningless", "p_holm"] < 0.01
    assert found.loc["meaningless", "lo"] > 0.5
    assert found.loc["meaningful", ["difference", "p"]].tolist() == [0, 1]
    assert set(found["test"]) == {"McNemar" if samples == 1 else "sign flip"}
    assert read_table(folder.path, "accuracy")["samples"].unique() == [samples]
    assert (folder.path / "figures/prompts-questions.png").exists()


def test_the_chat_template_is_applied_once_and_the_filler_stands_inside_it(model, data):
    model.text.tokenizer.chat_template = TEMPLATE
    try:
        settings = PromptsSettings(**{**BASE, "tasks": (data,), "shots": 0, "system": "the cat"})
        task = open_problems(settings, data, model)
        assert task.chat
        none, slashes = conditions(["none", "meaningless:2"])
        question = task.questions[0]
        (plain,) = task.first(1).prompts(model, none)
        messages = [{"role": "system", "content": "the cat"}, {"role": "user", "content": question}]
        assert plain.ids == hw.generate(model, [messages], chat=True, max_new_tokens=1).prompts[0]
        (full,) = task.first(1).prompts(model, slashes)
        shown = model.text.decode(full.ids).split()
        assert shown == f"<system> the cat </system> <user> / / {question} </user> <assistant>".split()
        assert [shown[i] for i in np.flatnonzero(full.inserted)] == ["/", "/"]
    finally:
        model.text.tokenizer.chat_template = None


def test_a_template_without_system_messages_gets_the_system_prompt_in_the_first_message(model, data):
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    model.text.tokenizer.chat_template = refusing + TEMPLATE
    try:
        settings = PromptsSettings(**{**BASE, "tasks": (data,), "shots": 0, "system": "the cat"})
        task = open_problems(settings, data, model)
        (full,) = task.first(1).prompts(model, conditions(["meaningless:2"])[0])
        shown = model.text.decode(full.ids).split()
        assert shown == f"<user> the cat / / {task.questions[0]} </user> <assistant>".split()
        assert [shown[i] for i in np.flatnonzero(full.inserted)] == ["/", "/"]
    finally:
        model.text.tokenizer.chat_template = None


def test_one_condition_alone_is_measured_and_compared_with_nothing(model, data, tmp_path):
    folder = carried_out(model, tmp_path / "run", data, conditions=["meaningless:4"], attention_prompts=1)
    assert "comparisons" not in folder.written
    assert "moved" not in folder.written
    assert (read_table(folder.path, "activations")["near_zero_change"] == 0).all()
    assert list((folder.path / "figures").glob("prompts-questions-tiny-*.png"))
    assert not (folder.path / "figures/activations-questions.png").exists()


def test_two_tasks_of_one_name_are_refused(model, data, tmp_path):
    other = tmp_path / "questions.jsonl"
    other.write_text('{"prompt": "the cat", "target": " sat"}\n{"prompt": "the dog", "target": " ran"}\n')
    with pytest.raises(HeadwiseError, match="would both be called 'questions' with 'tiny'"):
        carried_out(model, tmp_path / "run", data, tasks=[str(other)], shots=1)


def test_lengths_arm_places_and_heads_can_be_chosen(model, data, tmp_path):
    chosen = {
        "conditions": ["none", "meaningless", "arm"],
        "lengths": [3, 9],
        "place": "end",
        "heads": ["L1H2", "L0H0"],
        "attention_prompts": 2,
        "n": 4,
    }
    folder = carried_out(model, tmp_path / "run", data, **chosen)
    curves = read_table(folder.path, "curves")
    assert list(zip(curves["series"], curves["k"], strict=True)) == [
        ("none", 0),
        ("meaningless", 3),
        ("meaningless", 9),
        ("arm", 0),
    ]
    profiles = read_table(folder.path, "profiles")
    assert set(zip(profiles["layer"], profiles["head"], strict=True)) == {(1, 2), (0, 0)}
    counts = profiles.groupby(["condition", "layer"])["inserted"].sum()
    assert (counts["meaningless:3"] == 3).all()
    assert (counts["meaningless:9"] == 9).all()
    # ARM changes the first MLP, so nothing before it.
    arm = read_table(folder.path, "moved").query("condition == 'arm'")
    assert (arm.loc[arm["layer"] == 0, "moved"] == 0).all()
    assert (arm.loc[arm["layer"] > 0, "moved"] > 0).all()
    assert (folder.path / "figures/lengths-questions.png").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"heads": ["L9H9"]}, "has no head L9H9"),
        ({"chat": True}, "has no chat template"),
        ({"shots": 40}, "different prompts, expected more than 40"),
    ],
)
def test_a_mistake_that_the_model_shows_is_one_sentence(model, data, tmp_path, settings, said):
    with pytest.raises(HeadwiseError, match=said):
        carried_out(model, tmp_path / "run", data, **settings)


def test_gsm8k_and_math500_are_asked_for_the_boxed_result_and_judged_by_it(model, tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    rows = [
        {"question": f"the cat {w} ?", "answer": f"it is <<1+1=2>>2.\n#### {i}"}
        for i, w in enumerate(WORDS[:9])
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    model.text.tokenizer.chat_template = TEMPLATE
    try:
        task = open_problems(PromptsSettings(tasks=(str(path),), n=4), str(path), model)
        assert (task.chat, task.shots, len(task.questions)) == (True, (), 4)
        assert "boxed" in task.system
        assert all("####" not in gold[0] and gold[0].isdecimal() for gold in task.gold)
    finally:
        model.text.tokenizer.chat_template = None
    task = open_problems(PromptsSettings(tasks=(str(path),), n=4), str(path), model)
    assert (task.chat, task.system, len(task.shots)) == (False, "", 4)
    assert all(answer.startswith(" it is 2.\n#### ") for _, answer in task.shots)


def test_answers_that_were_cut_off_or_say_nothing_are_not_guessed():
    texts = ["3 + 4 = 7", "3 + 4 = 7", r"\boxed{7} and then", "I do not know", "8"]
    cut = np.array([False, True, True, False, False])
    right, parsed = judged(texts, cut, (("7",),) * 5, "math")
    assert right.tolist() == [1, 0, 1, 0, 0]
    assert parsed == ["7", None, "7", None, "8"]
    assert not boxed(r"\boxed{7")
    assert result("no number") is None


def test_an_affine_change_is_recovered_and_noise_lowers_the_explained_share():
    draw = np.random.default_rng(0)
    old = draw.normal(size=(200, 6))
    new = 0.6 * old + draw.normal(size=6)
    noisy = new + draw.normal(0, 0.6, size=new.shape)  # as much noise as signal
    by_regression = np.linalg.lstsq(
        np.c_[(old - old.mean(0)).ravel()], (noisy - noisy.mean(0)).ravel(), rcond=None
    )[0]
    old, new, noisy = map(torch.from_numpy, (old, new, noisy))
    assert affine_fit(old, new)[:2] == pytest.approx((0.6, 1.0))
    slope, explained, unchanged = affine_fit(old, noisy)
    assert (slope, explained) == pytest.approx((0.6, 0.5), abs=0.05)
    assert unchanged < explained
    assert slope == pytest.approx(by_regression.item())
    assert np.isnan(affine_fit(old[:1], new[:1])).all()


@pytest.mark.parametrize("units", [9, 11])  # an even and an odd number of activations
def test_activation_statistics_equal_those_of_scipy_and_of_counting(units):
    from scipy.stats import kurtosis as theirs
    from scipy.stats import median_abs_deviation

    draw = np.random.default_rng(1)
    tokens = 40 if units == 9 else 41
    ground, gates = draw.standard_t(5, (tokens, units)), draw.normal(0, 2, (tokens, units))
    assert kurtosis(torch.from_numpy(gates)) == pytest.approx(theirs(gates, axis=None))
    assert kurtosis(torch.from_numpy(gates).float()) == pytest.approx(theirs(gates, axis=None), rel=1e-5)
    bound = 1.4826 * 0.13 * median_abs_deviation(np.abs(ground), axis=None)
    set_by_ground = near_zero_bound(torch.from_numpy(ground))
    assert float(set_by_ground) == pytest.approx(bound)
    share = sum(abs(x) < bound for x in gates.ravel()) / gates.size
    assert near_zero(torch.from_numpy(gates), set_by_ground) == share


def test_there_is_no_statistic_of_no_activations_nor_a_kurtosis_of_equal_ones():
    none = torch.zeros(0, 5)
    assert np.isnan(
        [kurtosis(none), near_zero(none, near_zero_bound(none)), kurtosis(torch.ones(3, 5))]
    ).all()


def plain_insides(model, ids):
    """Of each layer of a plain transformers model, the input of the output projection and the MLP's activations."""
    outputs, activations = [], []
    twin = tiny_model("llama", vocab_size=len(model.text.tokenizer), max_position_embeddings=512)
    for layer in twin.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, x: outputs.append(x[0][0]))
        layer.mlp.act_fn.register_forward_hook(lambda _, __, x: activations.append(x[0]))
    with torch.no_grad():
        twin(input_ids=torch.tensor([ids]))
    return [[part.double().numpy() for part in parts] for parts in (outputs, activations)]


@pytest.mark.parametrize("order", [["none", "meaningless"], ["meaningless", "none"]])
def test_fits_and_activations_equal_those_of_a_plain_model(model, data, tmp_path, undrawn, order):
    """Wherever the baseline stands among the conditions."""
    folder = carried_out(model, tmp_path / "run", data, conditions=order)
    task = open_problems(PromptsSettings(**{**BASE, "tasks": (data,)}), data, model)
    both = [task.first(3).prompts(model, condition) for condition in conditions(["none", "meaningless"])]
    found = []  # prompts, layers: slope, R², shares without and with the filler, kurtosis with it
    for plain, full in zip(*both, strict=True):
        own = np.flatnonzero(~full.inserted)  # of the same tokens, those after the filler
        later = own > np.argmax(full.inserted)
        outputs, activations = zip(
            *(plain_insides(model, prompt.ids) for prompt in (plain, full)), strict=True
        )
        of_layers = []
        for layer in range(len(outputs[0])):
            x, y = outputs[0][layer][later], outputs[1][layer][own[later]]
            shift = np.repeat(np.eye(y.shape[1])[None], len(y), 0).reshape(-1, y.shape[1])
            (fit, *_), (left,), *_ = np.linalg.lstsq(np.c_[x.ravel(), shift], y.ravel(), rcond=None)
            a, b = activations[0][layer][later], activations[1][layer][own[later]]
            size = np.abs(a)
            bound = 1.4826 * 0.13 * np.median(np.abs(size - np.median(size)))
            shares = [(np.abs(values) < bound).mean() for values in (a, b)]
            tails = ((b - b.mean()) ** 4).mean() / b.var() ** 2 - 3
            of_layers.append((fit, 1 - left / (y.var(0).sum() * len(y)), *shares, tails))
        found.append(of_layers)
    slope, r2, share, share_filled, tails = np.mean(found, axis=0).T
    affine, table = read_table(folder.path, "affine"), read_table(folder.path, "activations")
    without, filled = (table[table["condition"] == name] for name in ("none", "meaningless"))
    np.testing.assert_allclose(affine["slope"], slope, rtol=1e-4)
    np.testing.assert_allclose(affine["r2"], r2, rtol=1e-4)
    np.testing.assert_allclose(without["near_zero"], share, atol=1e-3)
    np.testing.assert_allclose(filled["near_zero"], share_filled, atol=1e-3)
    np.testing.assert_allclose(filled["near_zero_change"], share_filled - share, atol=1e-3)
    np.testing.assert_allclose(filled["kurtosis"], tails, rtol=1e-4)


def test_holm_runs_over_the_conditions_of_one_model():
    rows = [
        {
            "condition": name,
            "copies": 0,
            "seed": 0,
            "problem": i,
            "right": float(right),
            "truncated": False,
            "parsed": "1",
        }
        for name, pattern in {"none": "0" * 12, "a": "1" * 7 + "0" * 5, "b": "1" * 8 + "0" * 4}.items()
        for i, right in enumerate(map(int, pattern))
    ]
    found = summary_tables(pd.DataFrame(rows), "none", 0)["comparisons"].set_index("condition")
    assert found["p"].to_dict() == pytest.approx({"a": 2 / 2**7, "b": 2 / 2**8})
    assert found["p_holm"].to_dict() == pytest.approx({"a": 2 / 2**7, "b": 4 / 2**8})
