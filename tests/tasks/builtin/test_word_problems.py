"""Word problems: each story worked out by hand once, and the levels."""

import re
from collections import Counter

import pytest

from headwise.tasks import families, task
from headwise.tasks.builtin.arithmetic import PLAIN, REWRITE, stories, work
from headwise.tasks.shots import few_shot

KINDS = {"one step": {1}, "two steps": {2}, "three steps": {3, 4}}
STORIES = [story for texts in (PLAIN, REWRITE) for kind in KINDS for story in stories(texts[kind])]

# Words that only one story has, its numbers in the order in which they are told, and the answer found by
# reading the story.
BY_HAND = [
    ("{things} and gets {b} more", (4, 3), 7),
    ("and gave {b} to {B}. How", (9, 4), 5),
    ("on the table and {b}", (6, 8), 14),
    ("{b} more than {A}. How many {things} does {B}", (7, 5), 12),
    ("{b} fewer than {A}. How many {things} does {B}", (7, 5), 2),
    ("A box holds", (4, 6), 24),
    ("{A} shares {a} {things} equally", (12, 3), 4),
    ("{b} people get off", (20, 6), 14),
    ("passengers on a train", (20, 6), 26),
    ("pages on Monday and {b} pages on Tuesday", (11, 15), 26),
    ("has read {b} of them", (50, 20), 30),
    ("A notebook costs", (3, 4), 12),
    ("and spends {b} dollars", (10, 7), 3),
    ("How old will {A} be", (9, 5), 14),
    ("How old was {A}", (9, 5), 4),
    ("{b} years younger", (30, 4), 26),
    ("A week has 7 days", (3,), 21),
    ("A spider has 8 legs", (2,), 16),
    ("{b} flew away", (8, 3), 5),
    ("{a} girls and {b} boys", (12, 13), 25),
    ("{b} of them are boys", (25, 12), 13),
    ("into bags of {k}", (20, 5), 4),
    ("walks {k} miles every day", (2, 5), 10),
    ("{b} degrees warmer", (15, 8), 23),
    ("{b} degrees colder", (15, 8), 7),
    ("but has only {b}", (10, 6), 4),
    ("A rope is", (12, 5), 7),
    ("points in the first game", (10, 9), 19),
    ("gives away half of", (14,), 7),
    ("{B} has twice as many. How", (6,), 12),
    ("buys {b} more and then gives {c} away", (5, 4, 2), 7),
    ("in each and then finds {b} more", (3, 4, 5), 17),
    ("in each and loses {b}", (3, 4, 5), 7),
    ("{b} got off and {c} got on", (10, 4, 7), 13),
    ("{b} more than {A}. How many {things} do they", (6, 2), 14),
    ("{b} fewer than {A}. How many {things} do they", (6, 2), 10),
    ("buys a shirt for", (50, 20, 12), 18),
    ("{a} red and {b} blue {things}", (7, 5, 4), 3),
    ("works {m} hours on Monday", (5, 2, 3), 25),
    ("{k} times as old", (4, 3, 6), 18),
    ("A farmer has {k} hens", (4, 5, 7), 13),
    ("rows with {m} chairs", (3, 5, 4), 11),
    ("{k} pages a day for {m} days", (40, 5, 6), 10),
    ("A baker makes", (20, 15, 12), 23),
    ("points in three games", (4, 10, 2), 16),
    ("{b} to {B} and {c} to {C}", (20, 6, 5), 9),
    ("{k} times as many. How many {things} do they", (4, 3), 16),
    ("A tank holds", (30, 4, 5), 10),
    ("A basket has", (6, 7, 5), 8),
    ("and gets {b} dollars as a gift", (3, 5, 4), 19),
    ("A pen costs", (2, 5, 3, 4), 26),
    ("twice as many, and {C} has {b} fewer", (10, 4), 46),
    ("A bus starts with", (12, 5, 3, 4), 18),
    ("red and {p} blue balls", (3, 4, 2, 5), 13),
    ("twice as many on Tuesday", (10, 5), 45),
    ("cows with 4 legs", (3, 5), 22),
    ("buys a toy for {b} dollars and then finds", (5, 6, 12, 4), 22),
    ("A ticket costs", (4, 7, 3), 26),
    ("bags of {m} {things}, gives", (4, 5, 8, 3), 4),
    ("{k} tickets for {m} dollars each and a drink", (40, 3, 8, 5), 11),
    ("others arrive by truck", (12, 5), 17),
    ("{A} sold {b} at the fair", (20, 6), 14),
    ("{b} tulips in autumn", (7, 8), 15),
    ("the wind blew out {b}", (9, 4), 5),
    ("Every shelf carries", (6, 4), 24),
    ("divide {a} cookies fairly", (4, 20), 5),
    ("The tank held", (30, 12), 42),
    ("A tower of {a} blocks", (15, 6), 9),
    ("A ticket is {k} euros", (7, 3), 21),
    ("{B} caught {b}", (5, 8), 13),
    ("by evening {c} were eaten", (10, 14, 9), 15),
    ("{b} loose ones", (3, 6, 4), 22),
    ("{c} in a coat", (9, 5, 3), 7),
    ("{k} trays of {m} {things}", (4, 5, 7, 6), 21),
    ("{d} were rotten", (3, 4, 5, 2), 10),
]


def test_the_table_below_knows_every_story():
    for story in STORIES:
        assert sum(words in story.text for words, _, _ in BY_HAND) == 1, story.text
    assert len(BY_HAND) == len(STORIES) >= 48


@pytest.mark.parametrize(("words", "numbers", "answer"), BY_HAND)
def test_a_story_is_worked_out_as_by_hand(words, numbers, answer):
    (story,) = [story for story in STORIES if words in story.text]
    told = list(dict.fromkeys(re.findall(r"{([a-z])}", story.text)))
    assert work(story.steps, dict(zip(told, numbers, strict=True)))[-1].result == answer


def test_stories_have_the_number_of_steps_they_are_filed_under():
    for texts in (PLAIN, REWRITE):
        for kind, steps in KINDS.items():
            assert {len(story.steps) for story in stories(texts[kind])} <= steps


def test_a_prompt_is_a_bare_question_and_the_target_a_bare_number():
    for e in task("word_problems", 300):
        assert "?" in e.prompt
        assert "\n" not in e.prompt
        assert "{" not in e.prompt
        assert re.fullmatch(r" [1-9]\d*", e.target)
        assert all(re.fullmatch(r" [1-9]\d*", foil) for foil in e.foils)


def test_levels_grow_in_numbers_and_steps():
    def all_numbers(level):
        texts = [e.prompt + e.target for e in task("word_problems", 200, level=level)]
        return [int(n) for text in texts for n in re.findall(r"\d+", text)]

    def steps(level):
        worked = task("word_problems", 200, level=level, answer="worked")
        return Counter(e.target.count("=") for e in worked)

    assert max(all_numbers("2")) <= 40 < max(all_numbers("3"))
    assert max(all_numbers("4")) <= 30
    assert set(steps("1")) == set(steps("2")) == set(steps("3")) == {1}
    assert set(steps("4")) == {2}
    assert min(steps("5")) == 2
    assert max(steps("5")) >= 3


def test_level_one_says_what_to_calculate_and_the_others_do_not():
    for e in task("word_problems", 100, level="1"):
        left, operation, right = re.fullmatch(r".*\? Calculate (\d+) ([-+*/]) (\d+)\.", e.prompt).groups()
        a, b = int(left), int(right)
        assert int(e.target) == {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[operation]
    for level in "2345":
        assert all(e.prompt.endswith("?") for e in task("word_problems", 100, level=level))


def test_the_worked_answer_ends_with_the_number_that_is_the_bare_answer():
    bare = {e.prompt: e.target for e in task("word_problems", 2000, level="2")}
    worked = task("word_problems", 2000, level="2", answer="worked")
    both = [e for e in worked if e.prompt in bare]
    assert len(both) > 5
    for e in both:
        assert e.target.endswith(f"={bare[e.prompt]}")


def test_worked_shots_go_before_a_question_that_asks_for_the_number():
    asked = task("word_problems", 20)
    shown = few_shot(
        asked, 8, template="Q: {prompt}\nA:{target}", pool=task("word_problems", 64, seed=1, answer="worked")
    )
    assert len(shown) == 20
    for e, bare in zip(shown, asked, strict=True):
        *shots, question = e.prompt.split("\n\n")
        assert len(shots) == 8
        assert all(" = " in shot for shot in shots)
        assert question == f"Q: {bare.prompt}\nA:"
        assert e.target == bare.target


def test_names_in_one_story_are_different_people():
    names = re.compile(r"\b[A-Z][a-z]+\b")
    common = {"How", "There", "Calculate", "Monday", "Tuesday", "Wednesday", "At", "By", "It", "First", "The"}
    for e in task("word_problems", 200, level="5"):
        people = Counter(n for n in names.findall(e.prompt) if n not in common)
        assert len(people) <= 3


def test_the_mixture_has_every_level_and_level_one_most_often():
    counts = Counter(e.label for e in task("word_problems", 600))
    assert set(counts) == {f"level {level}" for level in families()["word_problems"].options["level"][1:]}
    assert counts.most_common(1)[0][0] == "level 1"
