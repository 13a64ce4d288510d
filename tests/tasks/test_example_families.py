"""Families: how examples are like each other, in built-in tasks, files and lists."""

import json
import re

import pandas as pd
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.tasks import families

FACETS = {
    "abilities": {"ability"},
    "commonsense": {"topic", "form"},
    "docstring": {"parameters", "documented"},
    "docstring_negative": {"parameters", "documented"},
    "docstring_rewrite": {"parameters", "documented", "template"},
    "greater_than": {"century", "noun", "template"},
    "induction": {"pattern"},
    "ioi": {"order", "template", "length"},
    "ioi_long": {"order", "template", "length"},
    "math": {"steps"},
    "needle": {"depth", "length"},
    "recall": {"relation"},
    "recall_from_context": {"fact", "length"},
    "syntax": {"phenomenon"},
    "word_problems": {"level"},
}
SAME = {"commonsense": ("negative",), "induction": ("negative",), "word_problems": ("negative", "rewrite")}
SAME |= {"recall": ("negative", "rewrite"), "syntax": ("negative", "rewrite")}
FACETS |= {f"{name}_{kind}": FACETS[name] for name, kinds in SAME.items() for kind in kinds}
FACETS |= {f"{name}_rewrite": FACETS[name] | {"template"} for name in ("induction", "math")}
FACETS |= {f"greater_than_{kind}": FACETS["greater_than"] for kind in ("negative", "rewrite")}
FACETS |= {f"{name}_{kind}": FACETS[name] for name in ("ioi", "ioi_long") for kind in ("negative", "rewrite")}


@pytest.mark.parametrize("name", FACETS)
def test_every_facet_of_a_built_in_task_has_each_example_once(name):
    made = hw.task(name, 100)
    assert set(made.families()) == FACETS[name]
    for levels in made.families().values():
        assert sorted(index for indices in levels.values() for index in indices) == list(range(100))


def test_the_levels_can_be_read_from_the_prompts():
    for name in ("ioi", "ioi_long"):
        for e in hw.task(name, 60):
            receiver, giver = e.target.strip(), e.foils[0].strip()
            first = re.search(rf"\b({receiver}|{giver})\b", e.prompt)[0]
            assert e.family["order"] == ("ABB" if first == receiver else "BAB")
            assert e.family["length"] == ("long" if e.prompt.count(".") else "short")
    openings = {}
    for e in hw.task("ioi", 100):
        openings.setdefault(e.family["template"], set()).add(e.prompt.split()[0])
    assert sorted(map(len, openings.values())) == [1] * 6
    for e in hw.task("greater_than", 60):
        noun, year = re.match(r"The (\w+) .*? the year (\d{4}) ", e.prompt).groups()
        assert (e.family["noun"], e.family["century"]) == (noun, year[:2])
    for e in hw.task("docstring", 60):
        signature = re.search(r"\(self, (.*)\):", e.prompt)[1].split(", ")
        assert e.family == {
            "parameters": str(len(signature)),
            "documented": str(e.prompt.count(":param ")),
        }


def test_a_family_changes_the_key_of_a_step_and_not_the_fingerprint():
    plain, one, other = (
        hw.Task("t", (hw.Example("a", " b", family=family),)) for family in ({}, {"x": "1"}, {"x": "2"})
    )
    assert plain.fingerprint == one.fingerprint == other.fingerprint
    assert len({str(task.step_key) for task in (plain, one, other)}) == 3
    assert plain.families() == {}


def test_taken_examples_and_few_shot_prompts_keep_their_families():
    made = hw.task("ioi", 30)
    part = made.take([4, 2])
    assert [e.family for e in part] == [made.examples[4].family, made.examples[2].family]
    shown = hw.task(made, shots=2)
    assert all(set(e.family) == FACETS["ioi"] for e in shown)


ROWS = [
    {"prompt": f"Say {word}", "target": f" {word}", "kind": kind, "size": size, "label": "l"}
    for word, kind, size in (("one", "odd", 3), ("two", "even", 3), ("three", "odd", None))
]
EXPECTED = {"parity": {"odd": [0, 2], "even": [1]}, "size": {"3": [0, 1]}}


def family(row):
    given = {"parity": row["kind"], "size": row["size"]}
    return {facet: level for facet, level in given.items() if level is not None}


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
def test_a_file_has_an_object_or_a_column_for_each_facet(ending, tmp_path):
    plain = [{"prompt": row["prompt"], "target": row["target"]} for row in ROWS]
    objects = [
        {**p, "family": json.dumps(family(r)) if ending == "csv" else family(r)}
        for p, r in zip(plain, ROWS, strict=True)
    ]
    columns = [
        {**p, "family.parity": r["kind"], "family.size": r["size"]} for p, r in zip(plain, ROWS, strict=True)
    ]
    for rows in (objects, columns):
        path = tmp_path / f"file.{ending}"
        frame = pd.DataFrame(rows).astype({"family.size": "Int64"} if rows is columns else {})
        if ending == "csv":
            frame.to_csv(path, index=False)
        elif ending == "parquet":
            frame.to_parquet(path)
        elif ending == "json":
            path.write_text(json.dumps(rows))
        else:
            path.write_text("\n".join(map(json.dumps, rows)))
        made = hw.task(path)
        assert made.families() == EXPECTED
        assert made.settings["notices"] == []


def test_the_option_family_names_the_columns_of_facets():
    made = hw.task(ROWS, family={"parity": "kind", "size": "size", "what": "{label} {kind}"})
    assert made.families() == {**EXPECTED, "what": {"l odd": [0, 2], "l even": [1]}}
    assert [e.label for e in made] == ["l"] * 3
    assert made.settings["notices"] == []
    assert hw.task(list(made)).families() == made.families()


def test_the_option_works_with_ready_mappings_too():
    rows = [{"question": r["prompt"], "answer": r["target"], **r} for r in ROWS]
    rows = [{k: v for k, v in row.items() if k not in ("prompt", "target")} for row in rows]
    made = hw.task(rows, family={"parity": "kind", "size": "size", "what": "label"})
    assert made.settings["mapping"] == "questions"
    assert made.families() == {**EXPECTED, "what": {"l": [0, 1, 2]}}
    assert [e.label for e in made] == ["l"] * 3
    assert made.settings["notices"] == []


def test_a_column_family_of_plain_texts_is_one_facet():
    made = hw.task([{"prompt": "a", "target": " b", "family": "cats"}, {"prompt": "c", "target": " d"}])
    assert made.families() == {"family": {"cats": [0]}}


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"family": '{"order": ABB}'}, {}, 'expected an object such as {"order": "ABB"}'),
        ({"family": {"order": ["ABB"]}}, {}, "'order' is a list"),
        ({"family.order": ["ABB"]}, {}, "'family.order' is a list"),
        (
            {"kind": "x"},
            {"family": "kind"},
            "family is text ('kind'), expected a mapping such as family={'order'",
        ),
        ({"kind": "x"}, {"family": {"order": "knd"}}, "'knd'; did you mean 'kind'"),
    ],
)
def test_what_is_wrong_with_a_family_is_said(row, options, message):
    with pytest.raises(HeadwiseError, match=re.escape(message)):
        hw.task([{"prompt": "a", "target": " b", **row}], **options)


def test_a_family_that_is_no_mapping_of_texts_is_refused():
    for wrong in ("ABB", {"order": 1}, {"": "x"}, {"order": ""}, None):
        with pytest.raises(HeadwiseError, match="expected a mapping of facets to levels"):
            hw.Example("a", " b", family=wrong)


def test_all_built_in_tasks_are_here():
    assert set(FACETS) == set(families())
