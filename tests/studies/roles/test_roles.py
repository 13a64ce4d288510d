"""The study `roles` on a tiny model: tables that agree with one another, curves by hand, a resumed run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch

import headwise as hw
from headwise.runs import Job, read_table
from headwise.scores.gates.fit import FitSettings
from headwise.scores.gates.gating import ROLES, role_labels
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.studies.roles import study as roles_study
from headwise.studies.roles.curves import curve_rows, expected_order
from headwise.studies.roles.settings import (
    QUICK_FEWEST,
    QUICK_FIT,
    QUICK_KS,
    RolesSettings,
    few_tokens,
)
from headwise.studies.roles.study import joint_row, overfitted
from headwise.studies.run import Pair
from headwise.studies.workbench import Workbench
from headwise.tasks.registry import available
from helpers import (
    HeadsByHook,
    assert_figures,
    assert_same_again,
    every_format,
    plain_logits,
    resumed,
    run_on,
    word_model,
    word_task,
)

TABLES = ("scores", "examples", "curves", "gates", "objective", "fits", "roles", "shares", "order", "joint")
FIT = {"updates": 6, "batch": 2, "keep": 4, "window": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two files of made-up sentences; the second has targets of two words, and two of its sentences are one group."""
    folder = tmp_path_factory.mktemp("data")
    paths = []
    for name, more in (("short", ""), ("long", " then")):
        lines = [
            json.dumps(
                {"prompt": e.prompt, "target": e.target + more}
                | ({"group": "both"} if more and number < 2 else {})
            )
            for number, e in enumerate(word_task(8, equal_length=False))
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
        paths.append(str(folder / f"{name}.jsonl"))
    return paths


@pytest.fixture(scope="module")
def model():
    return word_model("llama", name="tiny", max_position_embeddings=512)


def carried_out(model, out, data, **settings):
    chosen = {"seeds": 2, "k": [0, 1, 3], "fit": FIT, "random_sets": 5, **settings}
    return run_on("roles", out, model, tasks=data, **chosen)


@pytest.fixture(scope="module")
def finished(model, data, tmp_path_factory):
    with every_format():
        return carried_out(model, tmp_path_factory.mktemp("runs") / "run", data)


def test_every_table_and_figure_is_there_and_they_agree_with_one_another(finished):
    tables = {name: read_table(finished.path, name) for name in TABLES}
    assert (
        list(tables["curves"].columns[:11]) == "model task series action k metric value lo hi n draw".split()
    )
    assert (
        list(tables["scores"].columns[:12]) == "model task method layer head score stderr lo hi n p q".split()
    )
    assert set(tables["scores"]["task"]) == {"short", "long"}

    gates = tables["gates"]
    last = gates[gates["step"] == 6].pivot_table(
        index=["task", "seed", "layer", "head"], columns="fit", values="gate"
    )
    roles = tables["roles"].set_index(["task", "seed", "layer", "head"]).loc[last.index]
    np.testing.assert_allclose(roles["facilitation"], last["minus"])
    np.testing.assert_allclose(roles["interference"], 1 - last["plus"])
    np.testing.assert_allclose(roles["irrelevance"], last["plus"] * (1 - last["minus"]))
    assert (roles["label"] == role_labels(last["plus"].to_numpy(), last["minus"].to_numpy())).all()
    means = tables["roles"].groupby(["task", "layer", "head"], sort=False)[list(ROLES)].mean()
    scores = tables["scores"].set_index(["task", "layer", "head"]).loc[means.index]
    np.testing.assert_allclose(scores[list(ROLES)], means)
    np.testing.assert_allclose(scores["score"], means["facilitation"])

    shares = tables["shares"]
    np.testing.assert_allclose(shares.groupby("task")["share"].sum(), 1)
    for row in shares.to_dict("records"):
        own = tables["roles"][tables["roles"]["task"] == row["task"]]
        having = own[own["label"] == row["label"]].groupby(["layer", "head"]).size()
        assert (row["always"], row["ever"]) == ((having == 2).sum(), len(having))

    examples = tables["examples"].groupby(["task", "series", "k"])["value"].mean()
    curves = tables["curves"].set_index(["task", "series", "k"])
    np.testing.assert_allclose(examples[curves.index], curves["value"])
    assert (curves.xs(0, level="k")[["value", "lo", "hi"]] == 0).all().all()
    assert_figures(finished.path, "roles", "role-map-tiny", "role-shares")


def test_the_trajectory_of_a_fit_goes_on_from_where_the_free_one_ended(finished):
    gates = read_table(finished.path, "gates").set_index(["fit", "task", "seed", "step", "layer", "head"])[
        "logit"
    ]
    for fit in ("plus", "minus"):
        pd.testing.assert_series_equal(gates[fit].xs(0, level="step"), gates["free"].xs(6, level="step"))
    assert set(gates["free"].index.get_level_values("step")) == {0, 4, 6}
    objective = read_table(finished.path, "objective")
    assert len(objective) == 2 * 3 * 2 * 6
    fits = read_table(finished.path, "fits")
    assert np.isfinite(fits["held_out_objective"]).all()
    free = fits[fits["fit"] == "free"]
    np.testing.assert_allclose(free["held_out_objective"], -free["held_out_likelihood"])


def test_points_of_the_curves_equal_one_forward_pass_per_example_with_hooks(model, data, finished):
    """From G⁺: log p(target) with the first k heads at 0 minus the same with them at 1, summed over its tokens."""
    roles = read_table(finished.path, "roles")
    examples = read_table(finished.path, "examples").set_index(["task", "series", "k", "draw", "example"])[
        "value"
    ]
    task = hw.task(data[1], model=model)
    for role, k, seed, number in [
        ("facilitation", 3, 1, 2),
        ("interference", 1, 0, 7),
        ("irrelevance", 3, 0, 3),
    ]:
        own = roles[(roles["task"] == "long") & (roles["seed"] == seed)].sort_values(["layer", "head"])
        first = own.sort_values(role, ascending=False, kind="stable")[:k]
        sides = []
        for value in (0.0, 1.0):
            gates = own["plus"].to_numpy().reshape(model.shape).copy()
            gates[first["layer"], first["head"]] = value

            def edit(layer, z, gates=gates):
                return z * torch.tensor(gates[layer], dtype=z.dtype)[:, None]

            prompt = model.tokens(task.examples[number].prompt)
            whole = model.tokens(task.examples[number].prompt + task.examples[number].target)
            with HeadsByHook(model, edit):
                logits = plain_logits(model, whole).log_softmax(-1)
            sides.append(sum(float(logits[i - 1, whole[i]]) for i in range(len(prompt), len(whole))))
        assert len(whole) - len(prompt) == 2
        assert examples["long", role, k, seed, number] == pytest.approx(sides[0] - sides[1], abs=1e-5)


def test_gates_are_fitted_on_one_half_and_curves_drawn_on_the_other(model, data, finished, tmp_path, undrawn):
    """Other targets in the second half change the curves and no gate; in the first half they change the gates."""
    rows = [json.loads(line) for line in Path(data[0]).read_text().splitlines()]
    before = read_table(finished.path, "gates")
    before = before[before["task"] == "short"].reset_index(drop=True)
    for half, same in ((1, True), (0, False)):
        changed = [r | {"target": " blue"} if i % 2 == half else r for i, r in enumerate(rows)]
        path = tmp_path / f"{half}" / "short.jsonl"
        path.parent.mkdir()
        path.write_text("\n".join(map(json.dumps, changed)))
        folder = carried_out(model, tmp_path / f"run{half}", [str(path)], random_sets=0)
        assert read_table(folder.path, "gates")["logit"].equals(before["logit"]) is same


def test_a_run_cut_short_between_fits_resumes_and_ends_with_the_same_tables(
    model, data, finished, tmp_path, monkeypatch, undrawn
):
    cut = tmp_path / "cut"
    carry_out = partial(carried_out, model, cut, data)
    calls = resumed(monkeypatch, roles_study, "one_fit", 4, carry_out, cut, finished.path, stored=3)
    assert [args[1] for args, _ in calls] == ["free", "free", "plus", "minus", "minus", "plus", "minus"]


def test_other_points_are_measured_without_fitting_again(
    model, data, finished, tmp_path, monkeypatch, undrawn
):
    import shutil

    shutil.copytree(finished.path, tmp_path / "run")
    monkeypatch.setattr(roles_study, "one_fit", None)
    folder = carried_out(model, tmp_path / "run", data, k=[2])
    assert set(read_table(folder.path, "curves")["k"]) == {0, 2}


def test_of_the_other_half_only_so_many_examples_are_held_out(model, data, finished, tmp_path, undrawn):
    folder = carried_out(model, tmp_path / "run", data[:1], held_out=2)
    fewer, all_of_them = (read_table(path, "examples") for path in (folder.path, finished.path))
    assert sorted(fewer["example"].unique()) == [1, 3]
    assert set(read_table(folder.path, "joint")["n"]) == {2}
    both = fewer.merge(all_of_them, on=["task", "series", "k", "draw", "example"])
    assert len(both) == len(fewer)
    np.testing.assert_allclose(both["value_x"], both["value_y"], atol=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "held_out", "overfit"),
    [
        ([-2.0, -3.0], [-5.0, -6.0], True),
        ([-2.0, -3.0], [-3.0, -3.5], False),  # learnt
        ([-9.0, -9.0], [-10.0, -10.0], False),  # not learnt
    ],
)
def test_gates_that_suit_only_their_own_examples_are_called_overfitted(likelihood, held_out, overfit):
    columns = {"likelihood": likelihood, "held_out_likelihood": held_out, "ungated_likelihood": [-4.0, -4.0]}
    sentences = overfitted(pd.DataFrame(columns))
    assert len(sentences) == overfit
    for sentence in sentences:
        assert sentence.startswith("the gates OVERFIT")
        assert "-2.50 nats on the examples they were fitted to, -5.50 on held-out ones" in sentence
        assert "(-4.00 without gates)" in sentence


def test_the_run_warns_of_overfitting_where_the_gates_pulled_open_do(
    finished, model, data, tmp_path, undrawn
):
    fits = read_table(finished.path, "fits")
    ends = fits[fits["fit"] == "plus"].groupby("task").mean(numeric_only=True)
    worse = ends["held_out_likelihood"] < ends["ungated_likelihood"]
    overfit = ends.index[worse & (ends["ungated_likelihood"] < ends["likelihood"])]
    warned = [notice.partition(",")[0] for notice in finished.notices if "OVERFIT" in notice]
    assert sorted(warned) == sorted(overfit)
    assert warned
    quick = carried_out(model, tmp_path / "run", data, quick=True, random_sets=0)
    assert not any("OVERFIT" in notice for notice in quick.notices)


def test_the_sentences_of_a_run_have_the_numbers_of_its_tables(finished):
    order, joint = (read_table(finished.path, name) for name in ("order", "joint"))
    assert len(finished.findings) == len(order) + len(joint) == 4
    for row in order.to_dict("records"):
        sentence = finished.findings[list(order["task"]).index(row["task"])]
        assert sentence.startswith(f"On {row['task']}, tiny: ablating the {row['k']} most facilitating heads")
        assert ("not significantly lower" in sentence, "not significantly higher" in sentence) == (
            not row["below"],
            not row["above"],
        )
    for row, sentence in zip(joint.to_dict("records"), finished.findings[2:], strict=True):
        assert f"On {row['task']}, tiny" in sentence
        assert f"costs {row['effect']:.2f} nats".replace("-", "−") in sentence


@pytest.mark.parametrize("name", ["fit", "curves", "joint"])
def test_a_step_costs_the_rows_that_it_runs(name, model, data, monkeypatch):
    """The cost is worked out before; rows with gradients are counted where they run, the others by the engine."""
    task = hw.task(data[1], model=model)
    pair = Pair(model, task, {"model": "tiny", "task": "long"})
    settings = RolesSettings(seeds=2, fit=FitSettings(**FIT | {"stop": None}), held_out=3)
    case = roles_study._case(settings, pair)
    gates = np.random.default_rng(0).uniform(0.1, 0.9, (2, 2, *model.shape))
    call = {
        "fit": lambda: roles_study.fit_gates(case, "free"),
        "curves": lambda: roles_study.measure_curves(case, *gates, [0, 1, 3]),
        "joint": lambda: roles_study.remove_together(case, *gates, 5),
    }[name]()
    real, with_gradients, counted = GateLikelihood.gradients, [], []

    def noted(likelihood, gates, examples):
        with_gradients.append(examples.size)
        return real(likelihood, gates, examples)

    monkeypatch.setattr(GateLikelihood, "gradients", noted)
    call.compute(Job(counted.append))
    assert sum(counted) == call.cost
    without = {"fit": (1 + 2) * 3, "curves": 2 * 3 * 2 * 2 * 3, "joint": (1 + 5 + len(model.heads())) * 3}
    assert sum(with_gradients) + without[name] == call.cost


# ---- the order of the curves -----------------------------------------------------------------------


def made_curves(facilitation, irrelevance, interference, spread=0.1):
    """Curves of four seeds over k = 0, 10, 20, 30 from the values at each k."""
    ks = [0, 10, 20, 30]
    middle = np.array([facilitation, irrelevance, interference], dtype=float)
    y = np.stack([middle - spread, middle, middle, middle + spread])[..., None].repeat(3, axis=3)
    y[:, :, 0] = 0
    return curve_rows(y, ks)


def test_curves_in_the_expected_order_are_found_to_be_so():
    row = expected_order(made_curves([0, -1, -2, -3], [0, 0, 0, 0], [0, 1, 0.5, 0]))
    assert (row["k"], row["below"], row["peak"], row["above"]) == (20, True, 10, True)
    assert (row["facilitation"], row["irrelevance"]) == pytest.approx((-2, 0))
    assert (row["interference_at_peak"], row["irrelevance_at_peak"]) == pytest.approx((1, 0))


def test_where_the_order_does_not_show_the_row_says_which_part():
    row = expected_order(made_curves([0, -1, -0.1, -3], [0, 0, 0, 0], [0, 1, 0.5, 0]))
    assert (row["below"], row["above"]) == (False, True)
    row = expected_order(made_curves([0, -1, -2, -3], [0, 0, 0, 0], [0, 0.05, -0.5, -1]))
    assert (row["below"], row["above"], row["peak"]) == (True, False, 10)


def test_bands_are_those_of_students_t_over_seeds_and_the_wider_ones_over_examples_too():
    draw = np.random.default_rng(0)
    y = draw.normal(0, 1, (5, 3, 1, 20)) + draw.normal(0, 0.2, (5, 1, 1, 1))
    rows = curve_rows(y, [4])
    means = y[:, 0, 0].mean(axis=1)
    theirs = scipy.stats.ttest_1samp(means, 0).confidence_interval()
    np.testing.assert_allclose(rows.loc[0, ["lo", "hi"]].astype(float), [theirs.low, theirs.high])
    both = scipy.stats.sem(means) ** 2 + scipy.stats.sem(y[:, 0, 0].mean(axis=0)) ** 2
    half = (rows["both_hi"] - rows["both_lo"]).iloc[0] / 2
    assert 2.09 * np.sqrt(both) < half < 2.78 * np.sqrt(both)  # t of 19 and of 4 degrees of freedom
    single = curve_rows(y[:1], [4])
    assert (single["lo"] == single["both_lo"]).all()


def test_the_joint_effect_is_ranked_among_the_random_sets():
    row = joint_row(np.array([2.0, 4.0]), np.array([[1.0, 1.0], [5.0, 3.0], [2.0, 2.0], [0.0, 0.0]]))
    assert (row["effect"], row["larger_than"], row["sets"], row["n"]) == (3.0, 0.75, 4, 2)


def test_the_random_sets_hold_none_of_the_heads_they_are_compared_with(
    model, data, tmp_path, monkeypatch, undrawn
):
    real, masked = roles_study.mask_gates, []

    def noted(heads, shape):
        masked.append(set(heads))
        return real(heads, shape)

    monkeypatch.setattr(roles_study, "mask_gates", noted)
    monkeypatch.setattr(roles_study, "TOP", 4)
    carried_out(model, tmp_path / "run", data[:1])
    top, *sets = masked
    assert len(sets) == 5
    assert len({frozenset(drawn) for drawn in sets}) > 1
    assert all(len(drawn) == len(top) == 4 and not drawn & top for drawn in sets)


# ---- settings --------------------------------------------------------------------------------------


def test_quick_means_two_seeds_few_updates_and_short_targets_unless_told_otherwise():
    quick = RolesSettings(quick=True).quickened()
    assert (quick.seeds, quick.n, quick.fit, quick.k, quick.random_sets) == (2, 800, QUICK_FIT, QUICK_KS, 0)
    assert quick.task_options == {"math": {"length": "short"}}
    published = RolesSettings(quick=True, fit=FitSettings(updates=500, stop=None)).quickened()
    assert published.fit == QUICK_FIT
    own = RolesSettings(quick=True, fit=FitSettings(updates=7), k=(0, 1), tasks=("ioi",)).quickened()
    assert (own.fit.updates, own.k, own.task_options) == (7, (0, 1), {})


def test_quick_takes_more_short_examples_than_long_ones(model):
    short = hw.Task("s", tuple(hw.Example("the cat", " sat") for _ in range(60)))
    long = hw.Task("l", tuple(hw.Example("the cat " * 20, " sat") for _ in range(60)))
    assert few_tokens(short, model) == 70 // 3
    assert few_tokens(long, model) == QUICK_FEWEST


@pytest.mark.bundled
def test_a_task_with_fewer_examples_than_asked_for_gives_all_it_has(smollm2):
    settings = RolesSettings(tasks=("abilities",), n=4000)
    bench = Workbench(progress=False)
    there_are = available("abilities", tokens=smollm2.tokens)
    assert 500 < there_are < 800
    assert len(roles_study._task(settings, bench, smollm2, "abilities")) == there_are
    assert len(roles_study._task(RolesSettings(n=30), bench, smollm2, "abilities")) == 30


def test_a_quick_run_takes_small_batches_and_few_held_out_examples(
    model, data, tmp_path, monkeypatch, undrawn
):
    seen = []
    real = roles_study.one_fit
    monkeypatch.setattr(
        roles_study,
        "one_fit",
        lambda likelihood, *rest: seen.append(rest[2].batch) or real(likelihood, *rest),
    )
    monkeypatch.setattr("headwise.studies.roles.settings.QUICK_FEWEST", 1)
    monkeypatch.setattr("headwise.studies.roles.settings.QUICK_TOKENS", 20)
    folder = carried_out(model, tmp_path / "run", data[:1], quick=True, fit={}, k=[])
    lengths = [len(model.tokens(e.prompt + e.target)) for e in hw.task(data[0], model=model)]
    few = int(20 / np.mean(lengths))
    assert 1 <= few < 4
    assert seen == [few] * 3
    assert read_table(folder.path, "examples")["example"].nunique() == min(2 * few, len(lengths) // 2)


def test_steps_computed_again_are_the_same_to_the_bit(model, finished, undrawn):
    assert_same_again(finished, model, steps=3)
