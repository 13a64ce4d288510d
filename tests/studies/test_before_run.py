"""What can be known to be wrong is said before a model is loaded and before a folder is made."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import headwise as hw
from headwise.cli import app
from headwise.errors import HeadwiseError
from headwise.studies.score.study import ScoreSettings
from headwise.studies.settings.resolve import resolve

PAIRS = {"a": {"keep": "ioi", "lose": "docstring"}, "b": {"keep": "ioi", "lose": "greater_than"}}


def refused(study, tmp_path, settings, said):
    """The model does not exist, and nothing is said about it: it was not looked for."""
    with pytest.raises(HeadwiseError) as caught:
        hw.run(study, tmp_path / "runs" / "run", **{"models": ["no-such-model"], **settings})
    assert said in str(caught.value)
    assert "no-such-model" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("study", ["score", "functions", "roles", "circuits", "masking", "prompts"])
@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("iio", "unknown task 'iio'; did you mean 'ioi'"),
        ("nope.jsonl", "there is no file nope.jsonl"),
        ("~/nope.jsonl", "there is no file ~/nope.jsonl"),
        ("/", "is a folder, expected a file"),
    ],
)
def test_a_misspelt_task_leaves_no_folder(study, task, said, tmp_path):
    refused(study, tmp_path, {"tasks": task}, said)
    if study in ("functions", "masking", "prompts"):
        refused(study, tmp_path, {"data": task}, said)


def test_a_file_of_an_unknown_format_leaves_no_folder(tmp_path):
    (tmp_path / "task.doc").write_text("x")
    refused("score", tmp_path, {"tasks": str(tmp_path / "task.doc")}, "not a known data format")


EARLY = {"precision": 0.1, "top": 3}


@pytest.mark.parametrize(
    ("study", "settings", "said"),
    [
        ("score", {"method_options": EARLY}, "cannot be combined"),
        ("score", {"method_options": {"confidence": 0.9}}, "are options of precision and top"),
        ("score", {"method_options": {"top": 3}, "metric": "accuracy"}, "takes few values"),
        ("score", {"methods": "attribution", "metric": "kl"}, "uses the gradient at all gates 1"),
        ("circuits", {"orders": "ablation", "method_options": EARLY}, "cannot be combined"),
        ("circuits", {"orders": "attribution", "metric": "kl"}, "uses the gradient at all gates 1"),
        ("masking", {"method": "ablation", "method_options": EARLY}, "cannot be combined"),
        ("masking", {"metric": "kl"}, "uses the gradient at all gates 1"),
        ("masking", {"limit": 3}, "limit cuts a file, and none is given"),
        ("functions", {"limit": 3}, "limit cuts a file, and none is given"),
        (
            "masking",
            {"method": "probe", "method_options": {"label": "x"}},
            "unknown option of method 'probe' 'label'",
        ),
        ("prompts", {"samples": 3}, "greedy decoding gives the same answer each time"),
        ("prompts", {"place": "end", "profile_prompts": 2}, "use profile_prompts=1"),
        ("circuits", {"models": list("abcd")}, "4 models are given; two are a pair"),
        ("circuits", {"models": "a", "pairs": [{"dense": "b"}]}, "give models or pairs"),
        ("circuits", {"pairs": [{"dense": "a", "spars": "b"}], "models": ()}, "did you mean 'sparse'"),
        ("circuits", {"models": ["a", "a"]}, "a pair names 'a' twice"),
        ("contrast", {}, "give at least two"),
        ("contrast", {"pairs": PAIRS, "held_out": "c"}, "unknown held-out pair 'c'"),
        ("contrast", {"pairs": PAIRS, "held_out": ["a", "b"]}, "every pair is held out"),
        ("contrast", {"pairs": PAIRS | {"c": {"keep": "no.csv", "lose": "ioi"}}}, "there is no file no.csv"),
        ("contrast", {"pairs": PAIRS | {"c": {"keep": "ioi"}}}, "setting 'pairs.c.lose' is missing"),
        ("circuits", {"pairs": [{"dense": "no-such", "tasks": "no.csv"}], "models": ()}, "no file no.csv"),
        (
            "score",
            {"tasks": "ioi", "task_options": {"pattern": "ABC"}},
            "unknown pattern of task 'ioi' 'ABC'",
        ),
        ("score", {"tasks": "ioi", "task_options": {"patern": "ABB"}}, "did you mean 'pattern'"),
        ("roles", {"tasks": "math", "task_options": {"math": {"length": "tiny"}}}, "unknown length of task"),
        ("score", {"tasks": "ioi", "task_options": {"seed": 3}}, "'seed' is not an option of a task"),
    ],
)
def test_contradictions_are_found_before_a_model_is_loaded(study, settings, said, tmp_path):
    refused(study, tmp_path, settings, said)


BAD_DATA = {
    "a bad line": (
        [{"prompt": "a", "target": " b"}, {"prompt": "a"}],
        {},
        "line 2: the field 'target' is missing",
    ),
    "no foils": (
        [{"prompt": "a", "target": " b"}, {"prompt": "c", "target": " d"}],
        {"metric": "logit_diff"},
        "2 of 2 examples in",
    ),
    "no counterfactual": (
        [{"prompt": "a", "target": " b"}],
        {"reference": "patch"},
        "have no counterfactual, which",
    ),
    "a wrong column": (
        [{"x": "a", "y": " b"}],
        {"columns": {"prompt": "xx", "target": "y"}},
        "did you mean 'x'",
    ),
    "a wrong token id": (
        [{"clean": "Ana saw Bob and Bob saw", "correct_idx": "x", "incorrect_idx": 2}],
        {},
        "'correct_idx' is text ('x'), expected a token id",
    ),
    "a chat without an answer": (
        [{"messages": [{"role": "user", "content": "hi"}]}],
        {},
        "the last message is from 'user', expected",
    ),
}


@pytest.mark.parametrize("name", BAD_DATA)
@pytest.mark.parametrize("study", ["score", "functions"])
def test_what_is_wrong_with_data_is_said_before_a_model_is_looked_for(study, name, tmp_path):
    rows, settings, said = BAD_DATA[name]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    refused(study, tmp_path, {"tasks": str(tmp_path / "mine.jsonl"), **settings}, said)


def test_what_only_the_tokenizer_shows_is_said_before_the_weights_are_loaded(
    tmp_path, word_tokenizer, monkeypatch
):
    """The folder has a tokenizer and weights that cannot be read."""
    folder = tmp_path / "model"
    word_tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"not weights")
    short = {"prompt": "the cat saw", "target": " it", "counterfactual": "the dog"}
    ids = {"clean": "the cat met the dog and the dog met", "correct_idx": 7, "incorrect_idx": 3}
    assert [word_tokenizer.decode([ids[name]]) for name in ("correct_idx", "incorrect_idx")] == [
        "bird",
        "the",
    ]
    chats = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    for row, said in (
        (short, "line 1: the counterfactual has 2 tokens and the prompt 3"),
        (
            ids,
            "correct_idx 7 is the token 'bird' of this model's tokenizer, but it does not occur in the prompt",
        ),
        (chats, "the tokenizer of this model has no chat template"),
    ):
        (tmp_path / "mine.jsonl").write_text(json.dumps(row))
        refused("score", tmp_path, {"models": str(folder), "tasks": str(tmp_path / "mine.jsonl")}, said)


def test_a_bad_file_is_refused_by_the_command_line_before_torch_is_imported(tmp_path):
    (tmp_path / "mine.csv").write_text("clean,reply\na, b\n")
    program = (
        "import sys; from headwise.cli import app; sys.argv = ['headwise', *sys.argv[1:]]\n"
        "try: app.main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    for command in (
        ["score", "smollm2", "mine.csv"],
        ["run", "masking", "--data", "mine.csv"],
        ["task", "mine.csv"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == ["2", "False"]
        assert "--set columns.prompt=clean --set columns.target=NAME" in done.stderr


def test_options_of_data_have_one_name_in_task_score_and_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.csv").write_text("query_text,reply\nthe cat, sat\n")
    columns = ["--set", "columns.prompt=query_text", "--set", "columns.target=reply"]
    seen = []

    def look(name, **options):
        raise HeadwiseError("far enough")

    monkeypatch.setattr("headwise.studies.workbench.load", look)
    for command in (["task"], ["score", "no-such"], ["run", "score", "--model", "no-such", "--data"]):
        arguments = [*command, str(tmp_path / "mine.csv"), *columns]
        arguments += ["--out", str(tmp_path / "run")] if command != ["task"] else []
        monkeypatch.setattr(sys, "argv", ["headwise", *arguments])
        with pytest.raises(SystemExit) as ended:
            app.main()
        seen.append((ended.value.code, "far enough" in capsys.readouterr().err))
    assert seen == [(0, False), (2, True), (2, True)]
    resolved = resolve(
        ScoreSettings, None, {"columns": {"prompt": "a"}, "task_options": {"columns": {"target": "b"}}}
    )
    assert resolved.task_options == {"columns": {"prompt": "a", "target": "b"}}
    with pytest.raises(HeadwiseError, match="did you mean 'methods'"):  # also an option of a mapping
        resolve(ScoreSettings, None, {"method": "ablation"})


def test_options_that_are_right_come_as_far_as_the_model(tmp_path):
    rows = [{"prompt": "a", "target": " b"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for study, settings in (
        ("score", {"tasks": ["ioi", str(tmp_path / "rows.jsonl")], "method_options": {"top": 3}}),
        ("score", {"tasks": "ioi", "task_options": {"shots": 2, "template": "{prompt}", "pattern": "ABB"}}),
        ("roles", {"tasks": "math", "task_options": {"math": {"length": "short"}}}),
        ("contrast", {"pairs": PAIRS}),
        ("functions", {"data": str(tmp_path / "rows.jsonl"), "limit": 3}),
        ("prompts", {"samples": 3, "quick": True}),
    ):
        with pytest.raises(HeadwiseError, match="no-such-model"):
            hw.run(study, tmp_path / "run", models="no-such-model", **settings)


@pytest.mark.parametrize(
    ("task", "flags", "said"),
    [
        ("iio", [], "unknown task 'iio'"),
        ("ioi", ["--precision", "0.1", "--top", "3"], "precision (0.1) and top (3) cannot be combined"),
        ("ioi", ["--confidence", "0.9"], "are options of precision and top"),
        ("ioi", ["--precision", "0.1", "--metric", "accuracy"], "takes few values"),
    ],
)
def test_the_command_line_ends_with_one_sentence_and_no_folder(
    task, flags, said, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "runs" / "run"
    monkeypatch.setattr(sys, "argv", ["headwise", "score", "no-such-model", task, "--out", str(out), *flags])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_typed_flags_reach_the_settings_as_values(tmp_path, monkeypatch):
    """As text, 1e-07 and a name such as 1e5 would be read again, and might come out as something else."""
    given = {}

    def carry_out(study, out, file, **settings):
        given.update(settings)
        raise HeadwiseError("far enough")

    monkeypatch.setattr("headwise.studies.base.run", carry_out)
    flags = ["--precision", "1e-07", "--confidence", "0.9", "-n", "5", "--metric", "1e5", "--seed", "3"]
    more = ["--set", "method_options.population=true", "--set", "n=7"]
    monkeypatch.setattr(sys, "argv", ["headwise", "score", "m", "010", *flags, *more])
    with pytest.raises(SystemExit):
        app.main()
    assert given["method_options"] == {"precision": 1e-07, "confidence": 0.9, "population": True}
    assert (given["tasks"], given["metric"], given["seed"]) == (["010"], "1e5", 3)
    assert given["n"] == 7  # what --set says wins, as it always did
