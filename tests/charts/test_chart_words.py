"""Numbers as sentences have them."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from headwise.charts.section import SECTIONS
from headwise.charts.words import percent, plus, with_minus
from report import small_tables as small


@pytest.mark.parametrize(
    ("number", "digits", "written"),
    [(-0.03, 1, "+0.0"), (-0.0, 2, "+0.00"), (-0.06, 1, "−0.1"), (0.31, 1, "+0.3"), (math.nan, 1, "+nan")],
)
def test_a_change_that_rounds_to_0_has_no_minus(number, digits, written):
    assert plus(number, digits) == written


def test_a_share_that_rounds_to_0_has_no_minus():
    assert percent(-0.004, -0.011, -0.001) == "0 % (95 % CI -1–0 %)"


@pytest.mark.parametrize(
    "kept", ["a-1b", "layers 4-7", "token “-5”", "owner/-7b", "lr-3e-4", "in [2]-3", "headwise run -n 8"]
)
def test_names_tokens_and_ranges_of_a_sentence_keep_their_hyphens(kept):
    assert (
        with_minus(f"{kept}, -0.5 [-1, -.3], q = 2.5e-05, −1") == f"{kept}, −0.5 [−1, −.3], q = 2.5e−05, −1"
    )


def test_every_negative_number_of_a_finding_has_a_minus_sign():
    scores = small.score_rows("a-1b", "ioi", "ablation", [-0.7, 0.05, -0.02, 0.3, 0.2, -0.01])
    tables = {"score": {"scores": pd.DataFrame(scores)}, "roles": small.roles(), "backups": small.backups()}
    for study, of_study in tables.items():
        sentences = " ".join(f"{one.sentence} {one.plain}" for one in SECTIONS.get(study).findings(of_study))
        words = [word.strip("[(") for word in sentences.split()]
        assert any(word.startswith("−") for word in words), study
        assert not [word for word in words if word.startswith("-")], study
