"""Other recipes beside `nested`: their gradients against autograd, their draws, and a whole part on a tiny model."""

import argparse
import json
import time

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.model.verify.tiny import tiny_model
from helpers import REPOSITORY, make_word_tokenizer, word_task

pytestmark = pytest.mark.usefixtures("benchmarks_on_path")


def by_mask(recipe, masks):
    """The gradient of a made-up loss of each row: a quadratic form."""
    matrix = torch.from_numpy(np.random.default_rng(0).normal(size=(recipe.size, recipe.size)))
    leaf = torch.tensor(masks, requires_grad=True)
    loss = torch.einsum("srn,nm,srm->sr", leaf, matrix, leaf)
    return torch.autograd.grad(loss.sum(), leaf)[0].numpy(), lambda z: torch.einsum(
        "srn,nm,srm->sr", z, matrix, z
    )


def gradient_taken(recipe, given):
    """What the recipe hands to its optimiser."""
    taken = []
    recipe.adam = lambda gradient, *rest: taken.append(gradient) or np.zeros_like(gradient)
    recipe.learn(given)
    return taken[0]


def test_the_gradient_of_hard_concrete_gates_and_their_target_is_that_of_autograd():
    from recipes import STEP_ROWS, NodePruning, copy_slopes

    recipe = NodePruning(6, (0, 1), 100, copy_slopes)
    recipe.done = 40
    recipe.values = np.random.default_rng(1).normal(size=(2, 6))
    recipe.multipliers = np.array([[0.3, 0.2], [-0.1, 0.5]])
    u = np.random.default_rng([0, 21])
    u.normal(0, 0.01, 6)  # the start
    recipe.random[0] = np.random.default_rng([0, 21])
    recipe.random[0].normal(0, 0.01, 6)
    given, loss = by_mask(recipe, recipe.masks())
    values = torch.tensor(recipe.values, requires_grad=True)
    drawn = torch.tensor(
        np.stack([u.uniform(size=(STEP_ROWS, 6)), np.zeros((STEP_ROWS, 6))]).clip(1e-6, 1 - 1e-6)
    )
    z = (1.2 * torch.sigmoid((torch.logit(drawn) + values[:, None]) * 1.5) - 0.1).clamp(0, 1)
    kept = torch.sigmoid(values - 2 / 3 * np.log(0.1 / 1.1))
    gap = 1 - kept.mean(1) - 0.9 * 0.4 / 0.83
    one, two = torch.tensor(recipe.multipliers).T
    whole = (loss(z).mean(1) + one * gap + two * gap**2).sum()
    expected = torch.autograd.grad(whole, values)[0].numpy()
    assert np.allclose(gradient_taken(recipe, given)[0], expected[0], atol=1e-9)


def test_gates_of_ugs_have_mean_p_and_are_uniform_as_often_as_it_says():
    from recipes import Ugs, copy_slopes

    recipe = Ugs(2000, (0,), 10, copy_slopes)
    recipe.values = np.full((1, 2000), 0.8)
    drawn = np.concatenate([recipe.masks()[0].ravel() for _ in range(20)])
    p = 1 / (1 + np.exp(-0.8))
    inside = drawn[(drawn > 0) & (drawn < 1)]
    assert abs(drawn.mean() - p) < 0.005
    assert abs(len(inside) / len(drawn) - p * (1 - p)) < 0.005
    assert np.abs(np.quantile(inside, [0.1, 0.5, 0.9]) - [0.1, 0.5, 0.9]).max() < 0.02


def test_every_recipe_puts_helping_components_first():
    """The explained effect is a sum over gates: 10 of 100 help, unequally; 5 harm."""
    from recipes import RECIPES, most_slopes

    worth = np.zeros(100)
    worth[:10], worth[10:15] = np.linspace(3, 1, 10), -1
    worth /= worth.sum()
    for name, make in RECIPES.items():
        recipe = make(100, (0, 1), 500)
        for _ in range(500):
            masks = recipe.masks()
            errors = (masks - 1) @ worth
            slopes = recipe.slopes(errors.ravel()).reshape(errors.shape)
            recipe.learn(slopes[:, :, None] * np.broadcast_to(worth, masks.shape))
            recipe.done += 1
        ranks = np.argsort(np.argsort(-recipe.values, axis=1), axis=1)
        assert (ranks[:, :10].mean(1) < 20).all(), (name, ranks[:, :15])
        if name.startswith("mattr") and recipe.slopes is most_slopes:  # others do not say what harms most
            assert (ranks[:, 10:15].mean(1) > 30).all(), (name, ranks[:, :15])


def test_a_part_measures_what_the_sweep_measures(tmp_path):
    import recipes

    model = hw.load(tiny_model("llama"), tokenizer=make_word_tokenizer(), device="cpu", dtype="float32")
    halves = word_task(12).halves()
    args = argparse.Namespace(rows=16, seeds=2, until=time.time() + 1e6, quick=False)
    for key in ("patch", "mean"):
        file = tmp_path / f"tiny-words-{key}.json"
        recipes.run_part(model, halves, key, args, file)
        result, arrays = json.loads(file.read_text()), np.load(file.with_suffix(".npz"))
        assert set(result["refused"]) <= {"eap-ig inputs"}, result["refused"]
        for name in ("atp*", "ugs", "nested"):
            one = result["ranked"][name][-1]
            rows = result["curves"][name][str(one["seed"])]
            order = [result["listed"][i] for i in one["signed"]]
            swept = hw.sweep(
                model, halves[1], order, reference=result["reference"], components=result["components"],
                k=rows["signed"], controls=(), reference_task=halves[0] if key == "mean" else None, progress=False,
            )  # fmt: skip
            assert np.allclose(arrays["values"][rows["signed_rows"]], swept.values, atol=1e-5), (key, name)
    import recipes_table

    summary = recipes_table.summarised(tmp_path)
    case = summary["patch"]["tiny/words"]
    scored = hw.score(model, halves[0], "attribution", reference="patch", components=hw.heads.COMPONENTS)
    expected = hw.sweep.mib(model, halves[1], scored, progress=False)
    assert abs(case["recipes"]["attribution"]["cpr"] - expected.cpr.value) < 1e-3
    assert abs(case["recipes"]["attribution"]["cmd"] - expected.cmd.value) < 1e-3
    mean, lo, hi = case["differences"]["cmd"]["nested"]["mattr"]
    recipes_of = case["recipes"]
    assert abs(mean - (recipes_of["mattr"]["cmd"] - recipes_of["nested"]["cmd"])) < 2e-4
    assert lo <= mean <= hi
    assert "| `node pruning` |" in recipes_table.tables(json.loads(json.dumps(summary)))


def test_the_tables_of_the_page_are_those_of_the_results():
    import recipes_table

    result = json.loads((REPOSITORY / "benchmarks/results/recipes.json").read_text())
    text = recipes_table.PAGE.read_text(encoding="utf-8")
    assert recipes_table.page(text, result) == text, "run benchmarks/recipes_table.py"
