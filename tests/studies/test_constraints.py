"""Every setting is checked, used or not, before a model is loaded; Python callers get the same sentences."""

from __future__ import annotations

import dataclasses
import typing

import pytest

import headwise as hw
from headwise.constraints import Number, check_settings
from headwise.errors import HeadwiseError
from headwise.scores.registry import methods
from headwise.sparsify.settings import SparsifySettings
from headwise.studies import studies
from headwise.studies.settings.resolve import assignments, build
from helpers import word_task

BAD = {
    "every": [
        ("seed=-1", "seed is -1; expected at least 0"),
        ("batch_tokens=0", "batch_tokens is 0; expected at least 1"),
        ("device=gpu", "device is 'gpu'; expected cpu, cuda"),
        ("dtype=float8", "unknown dtype 'float8'"),
        ("quick=yes", "'quick' is 'yes'; expected true or false"),
    ],
    "score": [
        ("models=[]", "models is empty; expected at least one model"),
        ("tasks=[]", "tasks is empty; expected at least one task"),
        ("tasks=iio", "unknown task 'iio'; did you mean 'ioi'"),
        ("methods=[]", "methods is empty; expected at least one method"),
        ("methods=ablate", "unknown method 'ablate'; did you mean 'ablation'"),
        ("n=0", "n is 0; expected at least 1"),
        ("n=1:30", "'n' is '1:30'; expected a whole number"),
        ("n=1e3", "'n' is 1000.0; expected a whole number"),
        ("metric=logits", "unknown metric 'logits'"),
        ("reference=nope", "unknown reference 'nope'"),
        ("positions=first", "unknown positions 'first'"),
        ("method_options.confidence=1.5", "confidence is 1.5; expected above 0 and below 1"),
        ("method_options.top=0", "top is 0; expected at least 1"),
        ("method_options.top=2.5", "'top' is 2.5; expected a whole number"),
        ("method_options.precision=-1e-3", "precision is -0.001; expected at least 0"),
        ("method_options.order=up", "unknown order 'up'"),
        ("method_options.steps=5", "steps is an option of integrated"),
    ],
    "functions": [
        ("n=0", "n is 0"), ("methods=[]", "methods is empty"), ("reference=nope", "unknown reference"),
        ("metric=nope", "unknown metric"), ("limit=0", "limit is 0"), ("answer_tokens=0", "answer_tokens is 0"),
        ("tasks=nope", "unknown task"),
    ],
    "roles": [
        ("n=1", "n is 1"), ("seeds=0", "seeds is 0"), ("held_out=0", "held_out is 0"),
        ("ks=[0]", "at least one above 0"),
        ("ks=[-1,5]", "ks is"), ("random_sets=-1", "random_sets is -1"), ("reference=nope", "unknown reference"),
        ("positions=nope", "unknown positions"), ("fit.updates=0", "updates is 0"), ("fit.rate=[0.5,0]", "rate is"),
        ("fit.rate=[0.5]", "two numbers"), ("fit.clip=nope", "unknown clip"), ("fit.stop=-1", "stop is -1"),
        ("fit.gradient_norm=0", "gradient_norm is 0"), ("tasks=[]", "tasks is empty"),
    ],
    "circuits": [
        ("n=3", "n is 3; expected at least 4"), ("orders=[]", "orders is empty"), ("by=[]", "by is empty"),
        ("orders=nope", "unknown method"), ("by=nope", "unknown ranking"), ("action=nope", "unknown action"),
        ("threshold=0", "threshold"), ("reference=nope", "unknown reference"), ("metric=nope", "unknown metric"),
        ("k=[-1]", "k is"), ("points=2", "points is 2"), ("controls=nope", "unknown control"),
        ("draws=0", "draws is 0"),
        ("maps=-1", "maps is -1"), ("method_options.steps=0", "steps is 0"), ("tasks=[ioi,ioi]", "named twice"),
        ("pairs=[{dense: a, tasks: nope}]", "unknown task"),
    ],
    "masking": [
        ("n=1", "n is 1"), ("k=[0]", "k is"), ("draws=0", "draws is 0"), ("layer_matched=[0]", "layer_matched is"),
        ("scale=-1", "scale is -1"), ("positions=nope", "unknown positions"), ("new_tokens=0", "new_tokens is 0"),
        ("accuracy=nope", "unknown text metric"), ("similarity=nope", "unknown text metric"),
        ("answer=nope", "unknown answer"), ("cross_k=0", "cross_k is 0"), ("intervene=nope", "unknown intervention"),
        ("intervene_k=0", "intervene_k is 0"), ("strengths.nope=[1]", "unknown intervention"),
        ("strengths.shift=[.inf]", "finite"), ("method=nope", "unknown method"), ("metric=nope", "unknown metric"),
        ("order_by=nope", "unknown order_by"), ("limit=0", "limit is 0"), ("method_options.x=1", "unknown option"),
    ],
    "prompts": [
        ("n=0", "n is 0"), ("conditions=[]", "conditions is empty"), ("conditions=nope", "unknown condition"),
        ("lengths=[0]", "lengths is"), ("place=nope", "unknown place"), ("shots=-1", "shots is -1"),
        ("max_new_tokens=0", "max_new_tokens is 0"), ("temperature=-1", "temperature is -1"), ("top_p=0", "top_p is 0"),
        ("samples=0", "samples is 0"), ("metric=nope", "unknown text metric"), ("heads=[L1]", "is not a head"),
        ("attention_prompts=-1", "attention_prompts is -1"), ("profile_prompts=0", "profile_prompts is 0"),
        ("arm.c=0", "c is 0"), ("arm.p1=101", "p1 is 101"), ("arm.mode=nope", "unknown mode"),
        ("arm.seed=-1", "seed is -1"),
    ],
    "contrast": [
        ("n=1", "n is 1"), ("seeds=0", "seeds is 0"), ("reference=nope", "unknown reference"),
        ("pairs={a: {keep: nope, lose: ioi}}", "unknown task"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("study", "given", "said"),
    [(study, *one) for study in sorted(studies()) for one in [*BAD["every"], *BAD[study]]],
)
def test_a_bad_setting_is_refused_before_a_model_is_loaded(study, given, said, tmp_path):
    with pytest.raises(HeadwiseError) as caught:
        hw.run(study, tmp_path / "run", **({"models": ["no-such-model"]} | assignments([given])))
    assert said in str(caught.value)
    assert "no-such-model" not in str(caught.value)
    assert not (tmp_path / "run").exists()


FREE = {
    "quick",
    "compile",
    "revision",
    "trust_remote_code",
    "task_options",
    "method_options",
    "data",
    "abilities",
}
FREE |= {
    "chat",
    "cross",
    "working",
    "system",
    "template",
    "separator",
    "stop",
    "joint",
    "fillers",
    "held_out",
}
FREE |= {"fit", "arm", "pairs", "dense"}
"""Settings of which anything of the right type may be right, and those that are settings themselves."""


@pytest.mark.parametrize("kind", [*(one.settings for one in studies().values()), SparsifySettings])
def test_every_setting_has_a_constraint_or_is_free_by_intention(kind):
    table = {name for one in kind.__mro__ for name in vars(one).get("CONSTRAINTS", {})}
    fields = {one.name for one in dataclasses.fields(kind)}
    assert table <= fields
    assert fields - table <= FREE


@pytest.mark.parametrize("name", sorted(methods()))
def test_every_number_among_the_options_of_a_method_has_bounds(name):
    method = methods()[name]
    hints = typing.get_type_hints(method.run)
    numbers = {
        option for option in method.options if {int, float} & {hints[option], *typing.get_args(hints[option])}
    }
    assert numbers <= set(method.constraints)
    assert set(method.constraints) <= set(method.options)


@pytest.mark.parametrize("kind", [*(one.settings for one in studies().values()), SparsifySettings])
def test_the_defaults_keep_their_own_constraints(kind):
    check_settings(kind())
    assert build(kind, {}) == kind()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"batch_tokens": 0}, "batch_tokens is 0"),
        ({"reference": "nope"}, "unknown reference 'nope'"),
        ({"positions": "nope"}, "unknown positions 'nope'"),
    ],
)
@pytest.mark.parametrize("method", ["ablation", "random", "pattern"])
def test_python_callers_get_the_same_sentences(tiny, options, said, method):
    task = word_task(4)
    with pytest.raises(HeadwiseError, match=said):
        hw.score(tiny, task, method, **options)
    if "positions" not in options:
        with pytest.raises(HeadwiseError, match=said):
            hw.sweep(tiny, task, tiny.heads(), **options)


def test_options_of_a_method_are_checked_for_python_callers_too(tiny):
    with pytest.raises(HeadwiseError, match="confidence is 2"):
        hw.score(tiny, word_task(4), "ablation", precision=0.1, confidence=2)
    with pytest.raises(HeadwiseError, match="'steps' is 'many'; expected a whole number"):
        hw.score(tiny, word_task(4), "integrated", steps="many")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "3"])
def test_a_number_within_bounds_is_a_finite_number(value):
    with pytest.raises(HeadwiseError, match=r"n is .*; expected at least 1"):
        Number(least=1).check("n", value)
