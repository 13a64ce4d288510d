"""The eight abilities: every example is sound, and its words do not give its ability away."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections import Counter, defaultdict
from typing import Any

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks import families, task
from headwise.tasks.builtin.abilities import ABILITIES, abilities
from headwise.tasks.builtin.word_lists import read
from headwise.tasks.wording import bag_of_words_accuracy

# What a bag of words may reach at most; chance is 1/8. Measured over ten seeds: .39, .25 and .56.
NEW_SCENE, SEEN_SCENE, OWN_WORDS = 0.45, 0.30, 0.60

FIELDS = {"scene", "label", "prompt", "target", "foils"}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def read_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in read("abilities.jsonl").rstrip("\n").split("\n")]


ROWS = read_rows()
by_label = defaultdict(list)
for _row in ROWS:
    by_label[_row["label"]].append(_row)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def says(text: str, answer: str) -> bool:
    """Whether the words of the answer stand in the text, one after the other, as `contains` looks for them."""
    return f" {' '.join(words(answer))} " in f" {' '.join(words(text))} "


def calculate(expression: str) -> float:
    def value(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        assert isinstance(node, ast.Constant)
        assert isinstance(node.value, int)
        return node.value

    return value(ast.parse(expression, mode="eval").body)


def test_the_calculator_of_these_tests_calculates_and_runs_nothing_else():
    assert calculate("2 + 3 * 4 - 10 / 5") == 12
    with pytest.raises(AssertionError):
        calculate("abs(3)")


def test_there_are_eight_abilities_of_at_least_sixty_examples_each_and_as_many_of_each():
    counts = Counter(row["label"] for row in ROWS)
    assert set(counts) == set(ABILITIES)
    assert len(ABILITIES) == 8
    assert len(set(counts.values())) == 1
    assert min(counts.values()) >= 60


def test_every_line_has_the_fields_of_an_example_and_only_sums_have_a_check():
    for row in ROWS:
        assert row.keys() - {"check"} == FIELDS, row
        assert ("check" in row) == (row["label"] == "Math Calculation"), row
        assert row["prompt"] == row["prompt"].strip(), row


def test_every_prompt_is_asked_once():
    assert len({row["prompt"] for row in ROWS}) == len(ROWS)


def test_answers_have_one_to_four_words_after_a_space():
    for row in ROWS:
        for answer in (row["target"], *row["foils"]):
            assert answer[0] == " ", row
            assert answer[1:] == answer.strip(), row
            assert 1 <= len(answer.split()) <= 4, row


def test_every_target_has_two_or_three_foils_that_differ_from_it_and_from_each_other():
    for row in ROWS:
        answers = [row["target"], *row["foils"]]
        assert 2 <= len(row["foils"]) <= 3, row
        assert len({answer.lower() for answer in answers}) == len(answers), row


def test_target_and_foils_differ_from_their_first_word_on():
    for row in ROWS:
        first = row["target"].split()[0]
        assert all(foil.split()[0] != first for foil in row["foils"]), row


def test_no_foil_contains_the_target_or_is_contained_in_it():
    for row in ROWS:
        for foil in row["foils"]:
            assert not says(foil, row["target"]), row
            assert not says(row["target"], foil), row
            if row["target"].strip().isdigit():  # "2" in "12" would deceive even a search for characters
                assert foil.strip() not in row["target"], row
                assert row["target"].strip() not in foil, row


def test_what_is_to_be_retrieved_stands_in_the_prompt():
    for row in by_label["Retrieval"]:
        assert says(row["prompt"], row["target"]), row


@pytest.mark.parametrize("label", ["Knowledge Recall", "Inference", "Math Calculation"])
def test_what_is_to_be_known_or_found_out_does_not_stand_in_the_prompt(label: str):
    for row in by_label[label]:
        assert not says(row["prompt"], row["target"]), row


def test_every_sum_is_right_and_no_foil_is():
    for row in by_label["Math Calculation"]:
        assert calculate(row["check"]) == int(row["target"]), row
        assert all(int(foil) != int(row["target"]) for foil in row["foils"]), row


def test_every_check_uses_a_number_of_its_prompt():
    # One and not all: "half of 10" and "next year" leave the other number unsaid.
    for row in by_label["Math Calculation"]:
        numbers = re.findall(r"\d+", row["check"])
        assert set(numbers) & set(re.findall(r"\d+", row["prompt"])), row


def test_a_sum_written_out_in_the_prompt_gives_the_target():
    written_out = 0
    for row in by_label["Math Calculation"]:
        found = re.search(r"(\d+) (\+|-|x|plus|minus) (\d+)\D*$", row["prompt"])
        if found:
            sign = {"x": "*", "plus": "+", "minus": "-"}.get(found[2], found[2])
            assert calculate(f"{found[1]} {sign} {found[3]}") == int(row["target"]), row
            written_out += 1
    assert written_out >= 30


def in_scenes() -> dict[str, list[dict[str, Any]]]:
    scenes = defaultdict(list)
    for row in ROWS:
        scenes[row["scene"]].append(row)
    return scenes


def shared_beginning(rows: list[dict[str, Any]]) -> str:
    """The whole words that all prompts of a scene begin with."""
    length = 0
    while len({row["prompt"][length] for row in rows}) == 1:
        length += 1
    return rows[0]["prompt"][:length].rpartition(" ")[0]


def test_each_scene_asks_once_for_every_ability_and_begins_the_same_way():
    for name, rows in in_scenes().items():
        assert Counter(row["label"] for row in rows) == dict.fromkeys(ABILITIES, 1), name
        assert len(shared_beginning(rows)) >= 50, name


def test_no_answer_is_the_right_one_for_a_quarter_of_an_ability():
    for label, rows in by_label.items():
        answer, times = Counter(row["target"] for row in rows).most_common(1)[0]
        assert times < len(rows) / 4, f"{label}: {answer!r} {times} times"


def test_a_bag_of_words_can_hardly_tell_the_abilities_apart():
    texts, labels = [row["prompt"] for row in ROWS], [row["label"] for row in ROWS]
    scenes = [row["scene"] for row in ROWS]
    assert bag_of_words_accuracy(texts, labels, seed=0, groups=scenes) < NEW_SCENE
    assert bag_of_words_accuracy(texts, labels, seed=0) < SEEN_SCENE


def test_nor_can_it_from_the_words_that_are_an_examples_own():
    # The shared beginning is noise to a bag of words but not to a model, so the rest is measured by itself.
    texts, labels, scenes = [], [], []
    for name, rows in in_scenes().items():
        texts += [row["prompt"].removeprefix(shared_beginning(rows)) for row in rows]
        labels += [row["label"] for row in rows]
        scenes += [name] * len(rows)
    assert bag_of_words_accuracy(texts, labels, seed=0, groups=scenes) < OWN_WORDS


def test_the_task_gives_the_written_examples():
    written = {(r["prompt"], r["target"], tuple(r["foils"]), r["label"]) for r in ROWS}
    made = task("abilities", len(ROWS))
    assert {(e.prompt, e.target, e.foils, e.label) for e in made} == written
    assert made.metric == "logit_diff"
    assert families()["abilities"].options["ability"] == ("all", *ABILITIES)


def test_the_same_seed_gives_the_same_examples_and_another_seed_others():
    assert task("abilities", 64, seed=3).fingerprint == task("abilities", 64, seed=3).fingerprint
    assert set(task("abilities", 64, seed=3)) != set(task("abilities", 64, seed=4))


@pytest.mark.parametrize("n", [8, 64, 100, 599, 600])
def test_any_number_of_examples_is_balanced_over_the_abilities_and_so_are_its_halves(n: int):
    whole = task("abilities", n)
    for part in (whole, *whole.halves()):
        counts = Counter(example.label for example in part)
        times = [counts[label] for label in ABILITIES]
        assert max(times) - min(times) <= 1


def test_one_ability_can_be_chosen():
    chosen = task("abilities", 75, ability="Retrieval")
    assert {example.label for example in chosen} == {"Retrieval"}
    assert set(chosen) == set(abilities("Retrieval"))


def test_more_than_there_are_is_refused_with_the_number_there_is():
    with pytest.raises(HeadwiseError, match=r"only 600 of 601 .* at most 600"):
        task("abilities", 601)
    with pytest.raises(HeadwiseError, match=r"only 75 of 76 .* at most 75"):
        task("abilities", 76, ability="Inference")


def test_an_unknown_ability_is_refused_with_the_nearest_one():
    with pytest.raises(HeadwiseError, match="did you mean 'Inference'"):
        task("abilities", 8, ability="inference")
