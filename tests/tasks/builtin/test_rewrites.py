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


def test_a_rewritten_rule_is_shown_and_a_negative_shows_none():
    for e in hw.task("induction_rewrite", 100):
        *shown, last = e.prompt.split("\n")
        told = [re.findall(r"\w+", line) for line in shown]
        asked = re.findall(r"\w+", last)
        template = {"rewrite 1": (1, 3), "rewrite 2": (1, 3), "rewrite 3": (0, 1)}[e.family["template"]]
        place = template[e.family["pattern"] == "ABB"]
        assert all(words[place] == words[-1] for words in told)
        assert e.target.strip() == asked[place]
        assert e.foils[0].strip() == asked[template[e.family["pattern"] == "ABA"]]
    for e in hw.task("induction_negative", 100):
        for prompt in (e.prompt, e.counterfactual):
            words = prompt.split()
            assert len(set(words)) == len(words) == 14
        assert e.prompt.split()[-2:] == e.counterfactual.split()[-2:]
        assert {e.target.strip(), e.foils[0].strip()} == set(e.prompt.split()[-2:])


@pytest.mark.parametrize(("name", "facet"), [("recall", "relation"), ("syntax", "phenomenon")])
def test_a_blank_stands_for_what_decides_and_a_rewrite_has_no_sentence_of_the_task(name, facet):
    plain, rewrite, negative = (hw.task(name + kind, 400) for kind in ("", "_rewrite", "_negative"))
    assert set(plain.families()[facet]) == set(rewrite.families()[facet]) == set(negative.families()[facet])
    blank = re.compile(r"____|\.{4}|\*{4}|-{4}|#{4}|={4}")
    for e in negative:
        assert len(blank.findall(e.prompt)) == 1
        assert blank.sub("", e.prompt) == blank.sub("", e.counterfactual)
        assert e.prompt != e.counterfactual
    assert not any(blank.search(e.prompt) for e in (*plain, *rewrite))
    starts = [{" ".join(e.prompt.split()[:3]) for e in task} for task in (plain, rewrite)]
    assert not starts[0] & starts[1]


def test_the_facts_of_recall_are_the_same_in_other_words():
    facts = {(e.group, e.target) for e in hw.task("recall", 1000)}
    asked = [(e.group, e.target) for e in hw.task("recall_rewrite", 300)]
    assert sum(one in facts for one in asked) > 200  # a thousand prompts ask most of the facts


def test_stories_are_told_with_other_people_and_without_numbers():
    plain, rewrite, negative = (
        hw.task(f"word_problems{kind}", 200) for kind in ("", "_rewrite", "_negative")
    )
    assert not {e.prompt[:25] for e in plain} & {e.prompt[:25] for e in rewrite}
    for e in rewrite:
        if worked := re.search(r"Calculate (.*)\.", e.prompt):
            assert eval(worked[1]) == int(e.target)  # noqa: S307
    for e in negative:
        assert set(re.findall(r"\d+", e.prompt)) <= {"7", "8"}  # days of a week, legs of a spider
        assert e.target.strip().isdigit()


def test_calculations_are_asked_in_other_words_and_answered_as_before():
    for e in hw.task("math_rewrite", 100):
        assert "Problem:" not in e.prompt
        last = e.target.split("\n")[-2]
        left, right = last.split(" = ")
        assert eval(left) == int(right) == int(e.target.split()[-1])  # noqa: S307
