"""What a scoring costs in forward rows, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from headwise.scores.registry import method
from helpers import word_task

N = 6


@pytest.mark.parametrize(
    ("name", "reference", "options", "rows"),
    [
        ("ablation", "mean", {}, 0.5 * 16 * N),  # a row per head and example, which shares its first blocks
        ("attribution", "mean", {}, 3 * N),  # a forward and a backward pass
        ("integrated", "patch", {"most_steps": 40}, 3 * 5 * N),
        (
            "integrated",
            "mean",
            {"most_steps": 40},
            3 * 80 * N,
        ),  # 5 + 10 + 20 + 40 steps, below twice the last
        ("integrated", "mean", {"steps": 7}, 3 * 7 * N),
        ("nested", "mean", {"seeds": 2, "rows": 500}, 3 * 2 * 500),
        ("nested", "mean", {"seeds": 1, "objective": "most"}, 3 * 500 * 4),  # with defaults of its own
        ("nested", "mean", {"seeds": 1, "updates": 10, "masks": 4, "steps": 7}, 3 * 10 * 8 * 4),
    ],
)
def test_a_method_knows_its_forward_rows(tiny, name, reference, options, rows):
    assert len(tiny.heads()) == 16
    assert method(name).cost(tiny, word_task(N), reference, options) == rows
