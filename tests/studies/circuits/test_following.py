"""What a finding says of R² whose interval leaves the question open."""

from __future__ import annotations

import pytest

from headwise.studies.circuits.findings import following


@pytest.mark.parametrize(("lo", "hi", "says"), [(-59, 0.82, "cannot tell"), (0.05, 0.4, "only weakly")])
def test_a_wide_interval_of_r2_says_that_so_few_prompts_cannot_tell(lo, hi, says):
    sentence = following({"r2": 0.3, "r2_lo": lo, "r2_hi": hi, "within": 0.5})
    assert says in sentence
    assert ("only weakly" in sentence) == (says == "only weakly")
