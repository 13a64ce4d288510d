"""YAML of other people's: plain values, bounded, every key once."""

from __future__ import annotations

import time

import pytest
import yaml

from headwise.errors import HeadwiseError
from headwise.studies.score.study import ScoreSettings
from headwise.studies.settings.plain_yaml import parse
from headwise.studies.settings.resolve import LARGEST_FILE, read_yaml, resolve

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine lines that stand for 387 million values."""


@pytest.mark.parametrize(
    "text", ["n: 3\ntasks: [a, b]\n", "a: {b: {c: 1.5}}", "x: &x [1]\ny: *x\n", "- 1\n- yes\n", "~"]
)
def test_good_yaml_is_read_as_pyyaml_reads_it(text):
    assert parse(text, "f") == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, r"f, line \d+ stands for more than 20,000 values"),
        ("a: &a [*a]\n", "f, line 1 has an alias inside what it stands for"),
        ("n: 1\nseed: 2\nn: 3\n", "f, line 3 has the key n twice"),
        ("a:\n  b: 1\n  b: 2\n", "f, line 3 has the key b twice"),
        ("[" * 300 + "]" * 300, "nested too deeply"),
        ("[" * 50_000, "nested too deeply"),
        ("n: " + "9" * 5000, "cannot be read"),
        ("n: 0x" + "f" * 40, "whole number of 160 bits"),
        ("when: 2020-99-99", "cannot be read"),
        ("a: [1\n", "f, line 2 is not YAML"),
        ("a: 'x\0y'\n", "is not YAML"),
        (
            "!!python/object/apply:os.system ['true']",
            "f, line 1 is not YAML: could not determine a constructor",
        ),
        ("--- 1\n--- 2\n", "is not YAML"),
    ],
)
def test_bad_yaml_is_one_sentence_with_the_line_at_once(text, said):
    began = time.process_time()
    with pytest.raises(HeadwiseError, match=said) as caught:
        parse(text, "f")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert time.process_time() - began < 5


def test_a_study_file_may_not_be_large_or_no_file(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("n: 1 #" + "x" * LARGEST_FILE)
    with pytest.raises(HeadwiseError, match="is larger than 200 kB"):
        read_yaml(path)
    with pytest.raises(HeadwiseError, match="is no file"):
        read_yaml(tmp_path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"n": 2**70}, "71 bits"),
        ({"n": 1.5}, "expected a whole number"),
        ({"tasks": {"a": 1}}, "expected text"),
        ({"x" * 5000: 1}, "unknown setting 'xxx"),
        ({"n": "x" * 5000}, "is 'xxx"),
    ],
)
def test_values_that_do_not_fit_are_quoted_briefly(values, said):
    with pytest.raises(HeadwiseError, match=said) as caught:
        resolve(ScoreSettings, None, values)
    assert len(str(caught.value)) < 700
