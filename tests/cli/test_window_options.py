"""--window and --sink become part of the reference's name, wherever --reference is."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from headwise.cli.app import app


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--reference", "window", "--window", "128"], "window:128"),
        (["--reference", "window:16", "--sink", "0"], "window:16:0"),
        (["--reference", "window:16"], "window:16"),
        (["--reference", "zero"], "zero"),
    ],
)
def test_sizes_reach_the_study_in_the_name_of_the_reference(monkeypatch, given, expected):
    seen = {}
    monkeypatch.setattr(
        "headwise.cli.short.run_study", lambda name, settings, flags, show: seen.update(flags) or {}
    )
    result = CliRunner().invoke(app, ["score", "smollm2", "ioi", *given])
    assert result.exit_code == 0, result.output
    assert seen["reference"] == expected
    assert "window" not in seen


@pytest.mark.parametrize("command", [["score", "smollm2", "ioi"], ["card", "smollm2", "ioi", "L0H0"]])
def test_sizes_without_the_reference_are_refused_before_a_model_is_loaded(command):
    result = CliRunner().invoke(app, [*command, "--window", "8"])
    assert "sizes of the reference 'window'" in str(result.exception or result.output)
