"""YAML of other people's: plain values, bounded, every key once."""

from __future__ import annotations

import time

import pytest
import yaml

from headwise.errors import HeadwiseError
from headwise.studies.score.study import ScoreSettings
from headwise.studies.settings.resolve import LARGEST_FILE, assignments, parse, read_yaml, resolve

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine lines that stand for 387 million values."""


@pytest.mark.parametrize(
    "text",
    ["n: 3\ntasks: [a, b]\n", "a: {b: {c: 1.5}}", "x: &x [1]\ny: *x\n", "- 1\n- true\n- null\n", "~", "a:"],
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
        (f"n: {2**159}", "whole number of 160 bits"),
        (
            "n: 010",
            "f, line 1 has 010, a number with a leading zero; write 10, or put it in quotes if it is text",
        ),
        ("a: 1\nn: [-007.5]", "f, line 2 has -007.5, a number with a leading zero; write -7.5"),
        ("n: !!int 0x10", "f, line 1 has 0x10 tagged as int, which it is not"),
        ("n: !!float 1:30", "tagged as float"),
        ("n: !!bool yes", "tagged as bool"),
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


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("10", 10), ("-3", -3), ("+4", 4), ("0", 0), ("-0", 0), ("1.5", 1.5), ("1e-3", 0.001), ("1E5", 1e5),
        ("-2.5e+3", -2500.0), ("0.95", 0.95), (".5", 0.5), ("3.", 3.0), ("0e0", 0.0),
        ("1:30", "1:30"), ("0x10", "0x10"), ("0o17", "0o17"), ("0b11", "0b11"), ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"), ("2020-99-99", "2020-99-99"), ("'010'", "010"), ('"1e3"', "1e3"),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("Y", "Y"), ("true", True), ("False", False),
        ("null", None), ("~", None), ("=", "="), ("1e", "1e"), ("e3", "e3"), ("007a", "007a"), ("0.0.1", "0.0.1"),
    ],
)  # fmt: skip
def test_numbers_are_read_in_one_way_and_all_else_is_text(written, value):
    for found in (parse(f"a: {written}", "f")["a"], assignments([f"a={written}"])["a"]):
        assert found == value
        assert type(found) is type(value)


def test_a_leading_zero_on_the_command_line_is_refused():
    with pytest.raises(HeadwiseError, match=r"--set 'n', line 1 has 010, .* write 10"):
        assignments(["n=010"])


def test_a_study_file_may_not_be_large_or_no_file(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("n: 1 #" + "x" * LARGEST_FILE)
    with pytest.raises(HeadwiseError, match="is larger than 200 kB"):
        read_yaml(path)
    with pytest.raises(HeadwiseError, match="is not a file"):
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
