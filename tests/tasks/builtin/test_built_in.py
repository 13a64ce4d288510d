"""What holds for every built-in task, under tokenizers of different kinds."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from headwise.tasks import families, task

NAMES = list(families())
CHOICES = [
    (name, option, value)
    for name, family in families().items()
    for option, values in family.options.items()
    for value in (values if isinstance(values, tuple) else [values.default])
]
REWRITTEN = ("docstring", "greater_than", "induction", "ioi", "ioi_long", "recall", "syntax")
WITH_COUNTERFACTUALS = {f"{name}{kind}" for name in REWRITTEN for kind in ("", "_rewrite", "_negative")}
WITH_COUNTERFACTUALS |= {"needle", "recall_from_context"}


@pytest.fixture(scope="session")
def many(tokens):
    """200 examples of each task under this tokenizer."""
    return {name: task(name, 200, tokens=tokens) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_two_hundred_distinct_prompts_or_targets(many, name):
    assert len({(e.prompt, e.target) for e in many[name]}) == len(many[name]) == 200


@pytest.mark.parametrize("name", NAMES)
def test_a_counterfactual_is_another_prompt_of_equal_length_in_tokens(many, tokens, name):
    for e in many[name]:
        assert (e.counterfactual is not None) == (name in WITH_COUNTERFACTUALS)
        if e.counterfactual is not None:
            assert e.counterfactual != e.prompt
            assert len(tokens(e.counterfactual)) == len(tokens(e.prompt))


@pytest.mark.parametrize("name", NAMES)
def test_no_foil_is_right_and_none_is_given_twice(many, name):
    for e in many[name]:
        assert e.foils
        answers = [e.target, *e.also, *e.foils]
        assert len(set(answers)) == len(answers)


@pytest.mark.parametrize("name", NAMES)
def test_some_token_tells_the_target_from_every_foil(many, tokens, name):
    for e in many[name]:
        target = tokens(e.prompt + e.target)
        for foil in e.foils:
            other = tokens(e.prompt + foil)
            assert any(a != b for a, b in zip(target, other, strict=False))


@pytest.mark.parametrize("name", NAMES)
def test_texts_join_with_one_space_and_need_no_trimming(many, name):
    for e in many[name]:
        if name.startswith("greater_than"):  # its answers go on inside a number
            continue
        assert e.prompt == e.prompt.strip()
        for answer in (e.target, *e.also, *e.foils):
            assert answer[0] == " "
            assert answer[1:] == answer.strip()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_examples_and_another_seed_does_not(tokens, name):
    first, again, other = (task(name, 40, seed=seed, tokens=tokens) for seed in (3, 3, 4))
    assert first.examples == again.examples
    assert first.examples != other.examples


@pytest.mark.parametrize("name", NAMES)
def test_a_smaller_task_is_the_beginning_of_a_larger_one(many, tokens, name):
    assert task(name, 30, tokens=tokens).examples == many[name].examples[:30]


def test_examples_do_not_depend_on_the_hash_seed():
    program = (
        "import json; from headwise.tasks import families, task; "
        "print(json.dumps({n: task(n, 30, seed=5).fingerprint for n in families()}))"
    )
    here = {name: task(name, 30, seed=5).fingerprint for name in NAMES}
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        there = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        )
        assert json.loads(there.stdout) == here


@pytest.mark.parametrize(("name", "option", "value"), CHOICES)
def test_every_value_of_every_option_gives_a_task_of_the_default_size(byte_bpe, name, option, value):
    made = task(name, 64, tokens=byte_bpe, **{option: value})
    assert made.settings[option] == value
    assert len(made) == 64


@pytest.mark.parametrize(
    ("name", "option"), [("syntax", "phenomenon"), ("recall", "relation"), ("induction", "pattern")]
)
def test_an_option_that_selects_a_label_gives_that_label_alone_and_a_mixture_gives_all(
    byte_bpe, name, option
):
    mixed, *labels = families()[name].options[option]
    for label in labels:
        assert {e.label for e in task(name, 12, tokens=byte_bpe, **{option: label})} == {label}
    counts = Counter(e.label for e in task(name, 40 * len(labels), **{option: mixed}))
    assert set(counts) == set(labels)
    assert min(counts.values()) > 15  # 40 expected of each


@pytest.mark.parametrize("name", NAMES)
def test_a_task_needs_no_tokenizer(name):
    assert len(task(name, 50)) == 50
