"""What a finding says of R² whose interval leaves the question open."""

from __future__ import annotations

import pytest

from headwise.studies.circuits.section import following


@pytest.mark.parametrize(("lo", "hi", "says"), [(-59, 0.82, "cannot tell"), (0.05, 0.4, "only weakly")])
def test_a_wide_interval_of_r2_says_that_so_few_prompts_cannot_tell(lo, hi, says):
    sentence = following({"r2": 0.3, "r2_lo": lo, "r2_hi": hi, "within": 0.5})
    assert says in sentence
    assert ("only weakly" in sentence) == (says == "only weakly")


def test_the_sentence_says_answers_and_the_lowest_family_where_they_are_known():
    row = {"r2": -1.1, "r2_lo": -1.6, "r2_hi": -0.7, "within": 0.25}
    assert following(row).endswith("of prompts within a fifth of the effect)")
    row |= {"agreement": 0.94, "agreement_lo": 0.85, "agreement_hi": 0.98}
    row |= {"lowest_family": 0.75, "lowest_family_lo": 0.61, "lowest_family_hi": 0.9, "family": "order = BAB"}
    assert following(row) == (
        "; prompt by prompt they do not follow the model: a constant does better (R² −1.1 [−1.6, −0.7], 25 % of "
        "prompts within a fifth of the effect, the model's answer in 94 % [0.85, 0.98]); of the family of prompts that "
        "they explain least (order = BAB) they recover 75 % [0.61, 0.9]"
    )
    assert "explain least" not in following(row | {"lowest_family": float("nan")})
