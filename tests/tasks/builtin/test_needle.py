"""Needles and long chats: length, depth, what is asked, and filler of the user's."""

import re
from itertools import pairwise

import pytest

import headwise as hw
from headwise.errors import HeadwiseError


@pytest.mark.parametrize("name", ["needle", "recall_from_context"])
@pytest.mark.parametrize("length", [120, 512, 2000])
def test_a_prompt_has_the_length_in_tokens_that_was_asked_for(tokens, name, length):
    least = length - (45 if name == "needle" else 75)  # a sentence or a request that no longer fitted
    for e in hw.task(name, 8, tokens=tokens, length=length):
        assert least <= len(tokens(e.prompt)) <= length
        assert e.family["length"] == str(length)


def test_the_question_repeats_the_needle_up_to_its_answer_and_foils_are_said_by_other_sentences():
    for e in hw.task("needle", 40, needles=2, distractors=2):
        from_, to = e.spans["needle"]
        asked = re.search(r"[A-Z][^.]*$", e.prompt)[0]
        assert e.prompt[from_:to] == f"{asked}{e.target}."
        assert e.prompt[slice(*e.spans["answer"])] == e.target.strip()
        kind, name = re.match(r"The (.*) of (\w+) is", asked).groups()
        others = [
            m for m in re.findall(r"The ([\w ]+) of (\w+) is (\w+)\.", e.prompt) if m[:2] != (kind, name)
        ]
        assert {f" {answer}" for *_, answer in others} == set(e.foils[:3])
        assert sorted((k == kind, n == name) for k, n, _ in others) == [
            (False, True),
            (False, True),
            (True, False),
        ]
        message = e.prompt.replace(e.prompt[from_:to], e.prompt[from_:to].replace(e.target, e.foils[0]))
        assert e.counterfactual == message


def test_the_depth_is_the_third_of_the_text_that_has_the_needle():
    for depth, (least, most) in {"early": (0, 0.33), "middle": (0.27, 0.63), "late": (0.57, 0.93)}.items():
        for e in hw.task("needle", 30, depth=depth, length=1000):
            assert least <= e.spans["needle"][0] / len(e.prompt) <= most
            assert e.family["depth"] == depth


def test_answers_are_words_phrases_or_codes():
    patterns = {"word": r" [a-z]+", "phrase": r" [a-z]+ [a-z]+", "code": r" \d{5}"}
    for answer, pattern in patterns.items():
        for e in hw.task("needle", 20, answer=answer, length=100):
            assert all(re.fullmatch(pattern, text) for text in (e.target, *e.foils))


def test_a_chat_says_early_what_its_last_question_asks():
    for e in hw.task("recall_from_context", 40, length=300):
        lines = e.prompt.split("\n")
        assert e.target in lines[0]
        assert lines[0].startswith("User: ")
        assert not any(e.target in line for line in lines[1:])
        assert [line.split(": ")[0] for line in lines[:-1:2]] == ["User"] * (len(lines) // 2)
        assert lines[-1].startswith("Assistant: ")


def test_the_filler_can_be_a_text_file_whose_sentences_stay_in_order(tmp_path):
    path = tmp_path / "filler.txt"
    sentences = [f"Sentence number {i} is here." for i in range(50)]
    path.write_text("\n".join(sentences))
    (e,) = hw.task("needle", 1, filler=str(path), length=200)
    numbers = [int(n) for n in re.findall(r"number (\d+)", e.prompt)]
    assert len(numbers) > 30
    assert [(b - a) % 50 for a, b in pairwise(numbers)] == [1] * (len(numbers) - 1)
    path.with_name("few.txt").write_text("One. Two.")
    with pytest.raises(HeadwiseError, match=r"has 2 sentences; expected a plain text of at least 20"):
        hw.task("needle", 1, filler=str(path.with_name("few.txt")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 12}, "length of task 'needle' is 12; expected 512 (from 100 to 131,072)"),
        ({"length": True}, "length of task 'needle' is True"),
        ({"filler": "nowhere.txt"}, "expected sentences, or a text file"),
        ({"needles": "two"}, "needles of task 'needle' is 'two'"),
        ({"depth": "deep"}, "unknown depth of task 'needle'"),
    ],
)
def test_an_option_with_a_wrong_value_is_refused(options, message):
    with pytest.raises(HeadwiseError, match=re.escape(message)):
        hw.task("needle", 2, **options)
