"""Settings of studies: shrunk for `quick`, and listed with their descriptions."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import ConfigDict, Field

from headwise.settings import Settings, build, field_texts
from headwise.studies.base import studies
from headwise.studies.settings.resolve import assignments
from headwise.studies.settings.shared import StudySettings, described


class Inner(Settings):
    depth: int = 3
    """How deep."""


class Outer(StudySettings):
    n: int | None = None
    """How many."""
    seed: int = 7
    """Of the draws."""
    names: tuple[str, ...] = ("a", "b")
    joint: str = "\n"
    inner: Inner = Inner()


def test_quick_numbers_are_never_larger_than_those_given():
    assert Outer(n=5).at_most(n=12).n == 5
    assert Outer(n=50).at_most(n=12).n == 12
    assert Outer().at_most(n=12).n == 12
    assert Outer(n=50).at_most(seed=3) == Outer(n=50, seed=3)


@pytest.mark.parametrize("name", sorted(studies()))
def test_the_settings_of_a_quick_run_are_those_of_its_record(name):
    pairs = {pair: {"keep": "ioi", "lose": "syntax"} for pair in ("a", "b")}
    of_study = {"contrast": {"pairs": pairs}}.get(name, {})
    quick = build(studies()[name].settings, {**of_study, "quick": True}).quickened()
    assert build(type(quick), quick.model_dump()).quickened() == quick


def test_a_setting_is_listed_with_its_default_and_the_text_under_it():
    rows = {row.name: row for row in described(Outer)}
    assert (rows["n"].default, rows["n"].about) == ("–", "How many.")
    assert (rows["seed"].default, rows["seed"].about) == (
        "7",
        "Of the draws.",
    )  # its own, not the one of all studies
    assert (rows["inner.depth"].default, rows["inner.depth"].about) == ("3", "How deep.")
    assert rows["names"].default == "[a, b]"
    assert rows["joint"].default == r"'\n'"
    assert rows["quick"].default == "false"
    assert next(iter(rows)) == "n"  # a study's own come first


@pytest.mark.parametrize("name", sorted(studies()))
def test_every_listed_setting_of_a_study_can_be_set_and_says_what_it_is(name):
    kind = studies()[name].settings
    rows = described(kind)
    assert {row.name.split(".")[0] for row in rows} == set(kind.model_fields)
    for row in rows:
        assert row.about, row.name
        if row.default not in ("–",) and "'" not in row.default:
            given = build(kind, assignments([f"{row.name}={row.default}"]))
            value = given
            for part in row.name.split("."):
                value = getattr(value, part)
            original = kind()
            for part in row.name.split("."):
                original = getattr(original, part)
            assert value == original, row.name


def test_the_texts_are_those_of_the_source():
    import headwise.studies.masking.settings as module
    from headwise.studies.settings import shared

    texts = []
    for file, name in ((shared.__file__, "AbilitySettings"), (module.__file__, "MaskingSettings")):
        tree = ast.parse(Path(file).read_text())
        (body,) = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name]
        texts += [
            one.value.value
            for one in body.body[1:]
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        ]
    listed = [row.about for row in described(module.MaskingSettings)]
    assert sorted(" ".join(text.split()) for text in texts) == sorted(listed[: len(texts)])


class Texts(Settings):
    """Settings with and without texts."""

    one: int = 1
    """The first,
    on two lines."""
    two: int = 2
    three: Annotated[int, Field(ge=0)] = 3
    """The “third”."""


class MoreTexts(Texts):
    two: int = 22
    """The second."""


class ByPydantic(MoreTexts):
    model_config = ConfigDict(use_attribute_docstrings=True)

    one: int = 1
    """The first,
    on two lines."""
    two: int = 22
    """The second."""
    three: int = 3
    """The “third”."""


def test_the_texts_below_fields_are_those_that_pydantic_reads():
    texts = {name: inspect.cleandoc(text) for name, text in field_texts(MoreTexts).items()}
    assert texts == {name: field.description for name, field in ByPydantic.model_fields.items()}


def test_a_class_typed_at_a_prompt_has_no_texts():
    scope = {"Texts": Texts}
    exec("class Typed(Texts):\n    four: int = 4\n", scope)  # noqa: S102 - what a prompt does
    assert set(field_texts(scope["Typed"])) == {"one", "three"}
