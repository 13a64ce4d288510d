"""Sentences that users read are plain technical English: no phrase of the old dialect, no fragment as a description."""

from __future__ import annotations

import re

import pytest

from headwise.metrics import metric, metrics, text_metric, text_metrics
from headwise.scores.registry import method, methods
from headwise.studies.base import studies
from headwise.studies.settings.shared import described
from helpers import REPOSITORY

PHRASES = [
    "how many times as long",
    "reach every head",
    "of everything random",
    "gated-out head",
    "slope of the metric",
    "from no heads to all heads",
    "text under gates",
    "what is wanted again",
    "are alike up to",
    "no more remembered",
    "if they are the ability's first",
    "always and",
    "ever help",
    "finished before:",
    "begun otherwise",
    "written on from",
    "told from 0",
    "smallest difference",
    "lie the other way",
    "nothing tells right from wrong",
    "by heart",
    "was begun with",
    "goes on from there",
    "would mostly be missed",
    "every position has its partner",
    "yet to be written",
    ", say)",
    "all else as it is",
]
SUFFIXES = {".py", ".md", ".ipynb", ".yaml", ".html", ".js"}
FOLDERS = ("src", "docs", "gallery", "benchmarks", "companions")
FILES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md"] + [
    path for name in FOLDERS for path in sorted((REPOSITORY / name).rglob("*")) if path.suffix in SUFFIXES
]


def test_no_phrase_of_the_old_dialect_is_anywhere():
    for path in FILES:
        text = " ".join(path.read_text(encoding="utf-8").split()).lower()
        assert not [phrase for phrase in PHRASES if phrase in text], path


@pytest.mark.parametrize("name", sorted(studies()))
def test_the_description_of_a_setting_says_what_the_setting_is(name):
    for row in described(studies()[name].settings):
        fragment = re.match(r"(Of|Where|By default|The same|Between|As many|Most)\b", row.about)
        assert fragment is None, f"{row.name}: {row.about}"
        assert row.about.endswith("."), row.name


def test_methods_and_metrics_are_described_by_the_terms_of_the_field():
    assert method("attribution").about == "gradient attribution (first-order estimate of the ablation effect)"
    assert method("integrated").about.startswith("integrated gradients over head gates")
    assert method("direct").about.startswith("direct logit attribution")
    every = [method(name) for name in methods()]
    every += [metric(name) for name in metrics()]
    every += [text_metric(name) for name in text_metrics()]
    assert not [one.name for one in every if "slope" in one.about or one.about.startswith("1 where")]
