"""The study files that ship are valid, and name what the papers used."""

from __future__ import annotations

import pytest
import yaml

from headwise.errors import HeadwiseError
from headwise.studies.base import published, studies, study_named
from headwise.studies.settings.resolve import resolve
from helpers import REPOSITORY

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


@pytest.mark.parametrize("name", NAMES)
def test_the_page_about_papers_names_every_setting_of_a_shipped_file(name):
    page = (REPOSITORY / "docs" / "goals" / "papers.md").read_text(encoding="utf-8")
    section = page.partition(f"**{name}**")[2].partition("\n**")[0].partition("\n## ")[0]
    for setting in yaml.safe_load(published(name).read_text(encoding="utf-8")):
        assert setting in ("models", "pairs") or f"`{setting}`" in section, setting
