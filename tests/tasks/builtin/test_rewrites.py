"""The same behaviour in other words, and the same form without the behaviour."""

import re

import pytest

import headwise as hw


def names(texts):
    return {word for text in texts for word in re.findall(r"\w+", text)}


@pytest.mark.parametrize("name", ["ioi", "ioi_long", "greater_than", "docstring"])
def test_a_rewrite_shares_no_sentence_beginning_and_a_negative_every_template(name):
    plain, rewrite, negative = (hw.task(name + kind, 150) for kind in ("", "_rewrite", "_negative"))
    assert plain.metric == rewrite.metric == negative.metric
    if name != "docstring":
        templates = [set(task.families()["template"]) for task in (plain, rewrite, negative)]
        assert not templates[0] & templates[1]
        assert templates[2] == templates[0]
    else:
        assert not names(e.target for e in plain) & names(e.target for e in rewrite)
        assert all(e.prompt.startswith("def ") for e in (*plain, *negative))
        assert not any("def " in e.prompt or ":param" in e.prompt for e in rewrite)


@pytest.mark.parametrize("name", ["ioi", "ioi_long"])
def test_ioi_is_rewritten_with_other_people_and_negatives_repeat_nobody(name):
    plain, rewrite, negative = (hw.task(name + kind, 150) for kind in ("", "_rewrite", "_negative"))
    people = [names((*e.foils, e.target)[i] for e in task for i in (0, 1)) for task in (plain, rewrite)]
    assert not people[0] & people[1]
    for e in rewrite:
        receiver, giver = e.target.strip(), e.foils[0].strip()
        found = re.findall(rf"\b(?:{receiver}|{giver})\b", e.prompt)
        assert sorted(map(found.count, (receiver, giver))) == [1, 2]
        assert found.count(giver) == 2
        assert e.family["order"] == ("ABB" if found[0] == receiver else "BAB")
    for e in negative:
        told = [word for word in re.findall(r"\w+", e.prompt) if word in people[0]]
        instead = [word for word in re.findall(r"\w+", e.counterfactual) if word in people[0]]
        assert len(set(told)) == len(told) == 3
        assert {e.target.strip(), e.foils[0].strip()} == set(told[:2])
        assert instead[:2] == told[:2]
        assert instead[2] not in told
        assert e.label == ("ABC" if told[0] == e.target.strip() else "BAC")


def test_greater_than_is_rewritten_and_a_negative_tells_no_first_year():
    for e in hw.task("greater_than_rewrite", 100):
        (first,) = re.findall(r"\d{4}", e.prompt)
        assert all(int(ending) > int(first[2:]) for ending in (e.target, *e.also))
        assert all(int(ending) <= int(first[2:]) for ending in e.foils)
    for e in hw.task("greater_than_negative", 100):
        assert re.findall(r"\d+", e.prompt) == re.findall(r"\d+", e.counterfactual) == [e.family["century"]]
        assert e.foils


def test_a_negative_docstring_documents_no_parameter_of_its_function():
    for e in hw.task("docstring_negative", 100):
        signature = re.search(r"\(self, (.*)\):", e.prompt)[1].split(", ")
        assert not set(signature) & set(re.findall(r":param (\w+):", e.prompt))
        assert {e.target.strip(), *(foil.strip() for foil in e.foils)} == set(signature)


def test_a_rewritten_docstring_asks_for_the_next_parameter():
    lists = {"list": r"\((.*?)\)", "table": r"\((.*?)\)", "prose": r" needs (.*?), in this order"}
    seen = set()
    for e in hw.task("docstring_rewrite", 100):
        parameters = re.search(lists[e.family["template"]], e.prompt)[1].replace(" and ", ", ").split(", ")
        assert e.target.strip() == parameters[int(e.family["documented"])]
        seen.add(e.family["template"])
    assert seen == set(lists)
