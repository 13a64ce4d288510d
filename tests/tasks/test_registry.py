"""The registry: which candidates it keeps, and what it hands to a generator."""

import itertools
import random

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks import Example, families, register, task
from headwise.tasks import registry as the_registry


@pytest.fixture
def made_for_this_test():
    """Registrations that are gone after the test."""
    with the_registry.FAMILIES.restored():
        yield


def characters(text):
    return [ord(c) for c in text]


@pytest.mark.usefixtures("made_for_this_test")
def test_a_generator_is_given_the_encode_function_only_where_it_names_it():
    given = []

    @register("asks", metric="logprob", about="")
    def asks(draw, tokens=None):
        given.append(tokens)
        return Example(f"n {draw.random()}", " x", (" y",))

    @register("does_not_ask", metric="logprob", about="")
    def does_not_ask(draw):
        return Example(f"n {draw.random()}", " x", (" y",))

    task("asks", 2)
    task("asks", 1, tokens=characters)
    assert given == [None, None, characters]
    assert len(task("does_not_ask", 3, tokens=characters)) == 3


@pytest.mark.usefixtures("made_for_this_test")
def test_examples_that_differ_in_their_foils_alone_count_once():
    @register("repeats", metric="logprob", about="")
    def repeats(draw):
        return Example(f"n {draw.randrange(5)}", " x", (f" {draw.random()}",))

    made = task("repeats", 5)
    assert sorted(e.prompt for e in made) == [f"n {i}" for i in range(5)]
    with pytest.raises(HeadwiseError, match="only 5 of 6 distinct examples"):
        task("repeats", 6)


@pytest.mark.usefixtures("made_for_this_test")
@pytest.mark.parametrize(
    ("foil", "encode", "fits"),
    [
        (" x", characters, False),  # the target itself
        (" xy", characters, False),  # begins with the target
        (" ", characters, False),  # the target begins with it
        (" y", characters, True),
        (" xy", lambda text: [hash(word) for word in text.split()], True),  # another word is another token
        (" xy", None, True),
    ],
)
def test_an_answer_that_another_begins_with_is_not_kept(foil, encode, fits):
    numbers = itertools.count()

    @register("pair", metric="logprob", about="")
    def pair(draw):
        return Example(f"n {next(numbers)}", " x", (foil,))

    if fits:
        assert len(task("pair", 3, tokens=encode)) == 3
    else:
        with pytest.raises(HeadwiseError, match="only 0 of 3"):
            task("pair", 3, tokens=encode)


@pytest.mark.usefixtures("made_for_this_test")
def test_a_counterfactual_of_another_length_is_drawn_again():
    @register("lengths", metric="logprob", about="")
    def lengths(draw):
        return Example(f"say {draw.random():.3f}", " x", (" y",), "say " + "0" * draw.randint(4, 6))

    for e in task("lengths", 20, tokens=characters):
        assert len(e.counterfactual) == len(e.prompt)


def test_errors_name_what_was_probably_meant():
    with pytest.raises(HeadwiseError, match="unknown task 'recal'; did you mean 'recall'"):
        task("recal")
    with pytest.raises(HeadwiseError, match="did you mean 'relation'"):
        task("recall", relations="capital")
    with pytest.raises(HeadwiseError, match="did you mean 'capital'"):
        task("recall", relation="capitals")
    with pytest.raises(HeadwiseError, match="from 1 to 1,000,000 examples, not 0"):
        task("recall", 0)


def test_a_generator_alone_depends_on_its_source_of_randomness_only():
    for family in families().values():
        if family.draw is None:  # a fixed list has no randomness of its own
            continue
        first, second = (family.draw(random.Random(11)) for _ in range(2))
        assert first == second
