"""The study files that ship are valid, and name what the papers used."""

from __future__ import annotations

import pytest
import yaml

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.runs import read_info
from headwise.studies.base import plan, published, studies, study_named
from headwise.studies.settings.resolve import about_of, resolve
from helpers import REPOSITORY, bench_of, labelled_file
from papers import COLUMNS, PAGE, page

IN_OTHER_WORDS = {
    ("masking", "`scale` of a masked head"),
    ("masking", "`similarity`"),
    ("roles", "`seeds`"),
    ("circuits", "`tasks`"),
    ("wiring", "`tasks`, `n`"),
    ("prompts", "problems (`tasks`, `n`)"),
}
"""Settings that are the paper's, or lie within what it says, and are written otherwise."""
NAMES = ("functions", "roles", "circuits", "masking", "prompts", "wiring")


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_is_valid_and_another_model_can_take_its_place(name):
    settings = resolve(study_named(name).settings, published(name))
    assert "smollm2" not in settings.models
    # The device decides: bfloat16 on an accelerator, float32 on a CPU, where bfloat16 is slow and coarse.
    assert settings.dtype is None
    assert resolve(study_named(name).settings, published(name), {"models": ["smollm2"]}).models == (
        "smollm2",
    )


def test_there_is_one_for_each_of_the_six_questions():
    assert set(NAMES) <= set(studies())
    with pytest.raises(HeadwiseError, match="published study"):
        published("score")


def test_the_page_about_papers_is_what_the_study_files_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: PYTHONPATH=src python tests/papers.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_explains_itself_and_every_deviation_has_a_reason(name):
    about = about_of(published(name))
    assert {"paper", "figure", "first", "cost", "settings"} <= set(about)
    for row in about["settings"]:
        assert set(row) <= set(COLUMNS)
        followed = "paper" not in row or row["published"].startswith("the same")
        assert followed or "why" in row or (name, row["setting"]) in IN_OTHER_WORDS, row


@pytest.mark.parametrize("given", [False, True])
def test_a_published_run_says_whether_it_has_the_papers_questions_and_keeps_where_it_comes_from(
    given, tmp_path, undrawn, tiny
):
    """In the plan, in run.json and in the report."""
    answers = {"Retrieval": ("cat", "dog"), "Inference": ("red", "blue")}
    data = labelled_file(tmp_path / "questions.jsonl", answers, 20, lambda i: 5, foils=[" the"])
    settings = {"models": ["tiny"], "n": 6, "cards": 0, "methods": ["attribution"]}
    tasks = [data] if given else ["abilities"]
    missing = "the paper's own questions (CogQA) were not given"
    planned = plan("functions", "published", workbench=bench_of(tiny), tasks=tasks, **settings)
    assert (missing in str(planned)) is not given
    assert "Cognitive Mirrors" in str(planned)
    if not given:
        return  # the words of the built-in questions are not in the tiny tokenizer
    folder = hw.run(
        "functions", tmp_path / "run", "published", workbench=bench_of(tiny), tasks=tasks, **settings
    )
    assert read_info(folder.path)["about"] == about_of(published("functions"))
    assert not any(missing in notice for notice in folder.notices)
    html = (folder.path / "report.html").read_text(encoding="utf-8")
    assert "the five most telling tokens, chosen by a large model" in html
    assert "a choice that everybody can repeat without that model" in html


@pytest.mark.parametrize("name", NAMES)
def test_the_page_about_papers_names_every_setting_of_a_shipped_file(name):
    page = (REPOSITORY / "docs" / "goals" / "papers.md").read_text(encoding="utf-8")
    section = page.partition(f"**{name}**")[2].partition("\n**")[0].partition("\n## ")[0]
    for setting in yaml.safe_load(published(name).read_text(encoding="utf-8")):
        assert setting in ("about", "models", "pairs") or f"`{setting}`" in section, setting
