"""One default ablation type, `mean`; every result names its own; every word means the same everywhere."""

from __future__ import annotations

import json
import logging

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.text import Text
from typer.testing import CliRunner

import headwise as hw
from headwise.cli.app import app
from headwise.errors import warn_once
from headwise.names import ablation_name
from headwise.runs import read_table
from headwise.studies.base import studies
from headwise.sweeps.edge_curve import edge_curve
from helpers import WORDS as VOCABULARY
from helpers import labelled_file, plain_logits, run_on, word_task
from one_voice import EXCEPTIONS, OTHER_MEANINGS, PAGE, ROWS, in_code, page, references, small, words_in_code
from planted import written

QUIET = {"progress": False}
SOME = ["L0H0", "L1H1"]


@pytest.fixture(scope="module")
def models():
    """Two tiny models, and a task of 16 examples."""
    return small()


@pytest.fixture(scope="module")
def found(models):
    return references(*models)


# ---- one default, and the page --------------------------------------------------------------------------------------


def test_every_default_is_the_mean_and_every_other_is_a_named_exception(found):
    other = {call: name for call, name in found.items() if name != "mean"}
    assert other == {call: name for call, (name, _) in EXCEPTIONS.items()}


def test_all_that_takes_a_reference_has_a_default_here(found):
    assert {call for call, names in in_code().items() if "reference" in names} <= set(found)
    for call in "score measure sweep card edges interactions diff explore".split():
        assert found[f"hw.{call}"] == "mean"


def test_every_call_study_and_command_is_listed_with_the_words_that_it_takes():
    assert {call: set(row.words.split()) for call, row in ROWS.items()} == words_in_code()
    for call, word in OTHER_MEANINGS:
        assert word in words_in_code()[call]


def test_the_page_is_what_the_code_says(found):
    assert PAGE.read_text(encoding="utf-8") == page(found), "run: PYTHONPATH=src python tests/one_voice.py"


def test_gates_without_examples_put_zeros_in_and_with_reference_prompts_their_mean(models):
    model, _, task = models
    prompts = [example.prompt for example in task]
    ids = model.tokens(prompts[0])

    def logits(**options):
        with model.gated(ablate=SOME, **options):
            return plain_logits(model, ids)

    assert torch.equal(logits(), logits(reference="zero"))
    mean = logits(reference_prompts=prompts)
    assert torch.equal(mean, logits(reference="mean", reference_prompts=prompts))
    assert not torch.allclose(mean, logits())
    written_with = {
        given: hw.generate(model, prompts[:2], ablate=SOME, max_new_tokens=1, **QUIET, **options).reference
        for given, options in (("no", {}), ("prompts", {"reference_prompts": prompts}))
    }
    assert written_with == {"no": "zero", "prompts": "mean"}
    assert hw.generate(model, prompts[:2], max_new_tokens=1, **QUIET).reference == ""


@pytest.mark.parametrize("name", ["direct", "pattern", "random"])
def test_a_method_that_removes_nothing_names_no_ablation(models, name):
    model, _, task = models
    scores = hw.score(model, task, name, **QUIET)
    assert scores.reference == ""
    assert set(scores.table()["reference"]) == {""}
    assert repr(scores).startswith(f"Scores({name} on words")


def test_direct_counts_the_whole_output_unless_a_reference_is_given_in_python_and_in_a_study(
    models, tmp_path, undrawn
):
    model, _, task = models
    file = written(task, tmp_path / "words.jsonl")
    examples = hw.task(file, model=model)
    whole, zero, mean = (
        hw.score(model, examples, "direct", **options, **QUIET)
        for options in ({}, {"reference": "zero"}, {"reference": "mean"})
    )
    np.testing.assert_array_equal(whole.examples, zero.examples)
    assert not np.allclose(whole.values, mean.values)
    assert (zero.reference, mean.reference) == ("", "mean")
    settings = {"tasks": [file], "n": 16, "methods": ["direct", "ablation"], "cards": 0}
    folder = run_on("score", tmp_path / "run", model, **settings)
    table = read_table(folder.path, "scores").set_index("method")
    np.testing.assert_allclose(table.loc["direct", "score"], whole.values.ravel())
    assert set(table.loc["direct", "reference"]) == {""}
    assert set(table.loc["ablation", "reference"]) == {"mean"}


# ---- a mean over few examples ---------------------------------------------------------------------------------------


def test_a_mean_over_fewer_than_16_examples_is_announced_once_and_over_16_not(models, caplog):
    model, *_ = models
    message = "heads are replaced by their mean output over {} examples; a steady mean needs 16"
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        hw.measure(model, word_task(16), ablate=SOME, **QUIET)
        assert "mean output" not in caplog.text
        for _ in range(2):
            hw.measure(model, word_task(15), ablate=SOME, **QUIET)
        assert caplog.messages.count(message.format(15)) == 1
        hw.measure(model, word_task(5), ablate=SOME, reference="zero", **QUIET)
    assert caplog.text.count("mean output") == 1


# ---- every result names its own -------------------------------------------------------------------------------------

RESULTS = {
    "Scores": lambda model, tuned, task, how: hw.score(model, task, "attribution", **how),
    "Edges": lambda model, tuned, task, how: hw.edges(model, task, into="logits", **how),
    "Sweep": lambda model, tuned, task, how: hw.sweep(model, task, model.heads(), k=[0, 4], **how),
    "EdgeCurve": lambda model, tuned, task, how: edge_curve(
        model, task, hw.edges(model, task, into="logits", out_of=SOME, **how), k=[0, 1, 2]
    ),
    "Measurement": lambda model, tuned, task, how: hw.measure(model, task, ablate=SOME, **how),
    "Interactions": lambda model, tuned, task, how: hw.interactions(model, task, [*SOME, "L2H0"], **how),
    "Card": lambda model, tuned, task, how: hw.card(model, "L0H0", task, **how),
    "Diff": lambda model, tuned, task, how: hw.diff(
        model, tuned, task, "attribution", reference=how["reference"]
    ),
}


@pytest.mark.parametrize("reference", ["mean", "patch"])
@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_names_its_ablation_in_repr_table_and_figure(models, kind, reference):
    result = RESULTS[kind](*models, {"reference": reference, **QUIET})
    assert type(result).__name__ == kind
    names = (ablation_name(reference), f"({reference})", f"'reference': '{reference}'")
    assert any(name in repr(result) for name in names), repr(result)
    table = result.table("examples") if kind == "Card" else result.table()
    assert set(table["reference"]) == {reference}
    if kind == "Card":
        assert set(result.table()["measure"]) == {f"ablation ({reference})", f"attribution ({reference})"}
    if hasattr(result, "plot"):
        figure = result.plot()
        shown = [text.get_text() for text in figure.findobj(Text)]
        plt.close(figure)
        assert any(name in text.lower() for text in shown for name in names[:2]), shown


def test_generated_texts_and_the_benchmark_name_theirs(models):
    model, _, task = models
    prompts = [example.prompt for example in task][:2]
    assert "zero ablation" in repr(hw.generate(model, prompts, ablate=SOME, max_new_tokens=1, **QUIET))
    assert "ablation" not in repr(hw.generate(model, prompts, max_new_tokens=1, **QUIET))
    scores = hw.score(model, task, "attribution", components=["heads", "mlps", "input"], **QUIET)
    assert "counterfactual patching" in repr(hw.sweep.mib(model, task, scores, **QUIET))


# ---- runs and commands ----------------------------------------------------------------------------------------------

FIT = {"updates": 2, "batch": 2, "keep": 2, "window": 2}
RUNS = {
    "score": {"cards": 0},
    "functions": {"methods": ["attribution"], "cards": 0},
    "wiring": {"heads": 3, "points": 4, "cards": 0},
    "circuits": {"orders": ["attribution"], "points": 4, "maps": 0, "draws": 2},
    "backups": {"first": 4, "curve": 2, "draws": 2},
    "diff": {"cards": 0},
    "masking": {"n": 3, "k": [1], "draws": 2, "max_new_tokens": 1, "layer_matched": [], "answer": "text"},
    "roles": {"seeds": 1, "k": [0, 2], "fit": FIT, "random_sets": 2},
    "contrast": {"seeds": 1, "fit": {"updates": 2, "batch": 4}, "held_out": ["b"]},
    "certify": {"heads": "L0H0,L1H1", "quick": True, "draws": 2},
    "reach": {"methods": ["ablation", "attribution"], "window": 2, "sink": 1, "budget": 0.8}
    | {"transfer": [], "texts": 2, "length": 40, "points": 4, "draws": 1},
    "prompts": {},
}
NOTHING_ABLATED = {("diff", "outcomes")}
"""Tables with intervals of the models with all heads."""


def test_every_study_is_among_the_small_runs():
    assert set(RUNS) == set(studies())


@pytest.mark.parametrize("name", [name for name in RUNS if name != "prompts"])  # prompts ablates nothing
def test_every_table_with_an_interval_names_the_ablation(models, name, tmp_path, undrawn):
    model, tuned, task = models
    file = written(task, tmp_path / "words.jsonl")
    settings: dict = {"tasks": [file], "n": 16}
    if name in ("functions", "masking"):
        kinds = {"animals": ("cat", "dog"), "colours": ("red", "blue")}
        settings = {"data": labelled_file(tmp_path / "kinds.jsonl", kinds, 16, lambda i: 5, foils=[" the"])}
    if name == "contrast":
        pairs = {}
        for number, pair in enumerate("ab"):
            for side, last in (("keep", "then"), ("lose", "and")):
                rows = [
                    {"prompt": f"{VOCABULARY[i + 8 * number]} {last}", "target": " cat"} for i in range(8)
                ]
                path = tmp_path / f"{pair}-{side}.jsonl"
                path.write_text("\n".join(map(json.dumps, rows)))
                pairs.setdefault(pair, {})[side] = str(path)
        settings = {"pairs": pairs}
    given = [model, tuned] if name == "diff" else [model]
    folder = run_on(name, tmp_path / "run", *given, **(settings | RUNS[name]))
    expected = set(EXCEPTIONS.get(f"study {name}", ("mean", ""))[0].split(", "))
    seen = 0
    for path in sorted((folder.path / "tables").glob("*.parquet")):
        table = read_table(folder.path, path.stem)
        if "lo" in table and (name, path.stem) not in NOTHING_ABLATED:
            assert set(table["reference"].str.split(":").str[0]) <= expected, path.stem
            assert table["reference"].all(), path.stem
            seen += 1
    assert seen
    if name == "circuits":
        assert set(read_table(folder.path, "circuits")["reference"]) == expected


@pytest.fixture
def folders(models, tmp_path):
    """Two models as folders, and the task as a file."""
    model, tuned, task = models
    paths = []
    for name, one in (("base", model), ("tuned", tuned)):
        one.hf.save_pretrained(tmp_path / name)
        one.text.tokenizer.save_pretrained(tmp_path / name)
        paths.append(str(tmp_path / name))
    return *paths, written(task, tmp_path / "words.jsonl")


def test_the_json_of_commands_names_the_ablation(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base, tuned, file = folders

    def answer(*arguments):
        done = CliRunner().invoke(app, [*arguments, "-n", "16", "--device", "cpu", "--json", "-q"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    card = answer("card", base, file, "L0H0")
    assert card["reference"] == "mean"
    assert {row["measure"] for row in card["scores"]} == {"ablation (mean)", "attribution (mean)"}
    pairs = answer("interactions", base, file, "--heads", "L0H0", "--heads", "L1H1")
    assert {row["reference"] for row in pairs["pairs"]} == {"mean"}
    changed = answer("diff", base, tuned, file, "--method", "attribution")
    assert {row["reference"] for row in changed["diff"]} == {"mean"}
