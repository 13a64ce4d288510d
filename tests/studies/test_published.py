"""The study files that ship are valid, and name what the papers used."""

from __future__ import annotations

import pytest

from headwise.errors import HeadwiseError
from headwise.studies.base import published, studies, study_named
from headwise.studies.settings.resolve import resolve

NAMES = ("functions", "roles", "circuits", "masking", "prompts")


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_is_valid_and_another_model_can_take_its_place(name):
    settings = resolve(study_named(name).settings, published(name))
    assert "smollm2" not in settings.models
    assert resolve(study_named(name).settings, published(name), {"models": ["smollm2"]}).models == (
        "smollm2",
    )


def test_there_is_one_for_each_of_the_five_questions():
    assert set(NAMES) <= set(studies())
    with pytest.raises(HeadwiseError, match="published study"):
        published("score")
