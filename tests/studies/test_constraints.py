"""Every setting is checked, used or not, before a model is loaded; Python callers get the same sentences."""

from __future__ import annotations

import json

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.scores.registry import methods
from headwise.settings import Count, Settings, Several, build
from headwise.sparsify.settings import SparsifySettings
from headwise.studies.base import studies
from headwise.studies.settings.resolve import assignments
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
        ("positions=[]", "positions is (); give"),
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
        ("tasks=nope", "unknown task"), ("methods=prob", "did you mean 'probe'"),
    ],
    "roles": [
        ("n=1", "n is 1"), ("seeds=0", "seeds is 0"), ("held_out=0", "held_out is 0"),
        ("k=[0]", "at least one above 0"),
        ("k=[-1,5]", "k is"), ("random_sets=-1", "random_sets is -1"), ("reference=nope", "unknown reference"),
        ("positions=[]", "positions is (); give"), ("fit.updates=0", "updates is 0"), ("fit.rate=[0.5,0]", "rate is"),
        ("fit.rate=[0.5]", "two learning rates"), ("fit.clip=nope", "unknown clip"), ("fit.stop=-1", "stop is -1"),
        ("fit.gradient_norm=0", "gradient_norm is 0"), ("tasks=[]", "tasks is empty"),
        ("fit.update=3", "did you mean 'updates'"), ("random_set=3", "did you mean 'random_sets'"),
    ],
    "circuits": [
        ("n=3", "n is 3; expected at least 4"), ("orders=[]", "orders is empty"), ("by=[]", "by is empty"),
        ("orders=nope", "unknown method"), ("by=nope", "unknown ranking"), ("action=nope", "unknown action"),
        ("threshold=0", "threshold"), ("threshold=1.2", "is 1.2; expected a number above 0, at most 1"),
        ("method_options.stepps=3", "did you mean 'steps'"), ("references=[nope]", "unknown reference"),
        ("metric=nope", "unknown metric"),
        ("k=[-1]", "k is"), ("points=2", "points is 2"), ("controls=nope", "unknown control"),
        ("draws=0", "draws is 0"),
        ("maps=-1", "maps is -1"), ("method_options.steps=0", "steps is 0"), ("tasks=[ioi,ioi]", "named twice"),
        ("pairs=[{dense: a, tasks: nope}]", "unknown task"),
    ],
    "masking": [
        ("n=1", "n is 1"), ("k=[0]", "k is"), ("draws=0", "draws is 0"), ("layer_matched=[0]", "layer_matched is"),
        ("scale=-1", "scale is -1"), ("positions=nope", "unknown positions"), ("max_new_tokens=0", "max_new_tokens is"),
        ("accuracy=nope", "unknown text metric"), ("similarity=nope", "unknown text metric"),
        ("answer=nope", "unknown answer"), ("cross_k=0", "cross_k is 0"), ("intervene=nope", "unknown intervention"),
        ("intervene_k=0", "intervene_k is 0"), ("strengths.nope=[1]", "unknown intervention"),
        ("strengths.shift=[.inf]", "finite"), ("method=nope", "unknown method"), ("metric=nope", "unknown metric"),
        ("order=nope", "unknown order"), ("limit=0", "limit is 0"), ("method_options.x=1", "unknown option"),
    ],
    "prompts": [
        ("n=0", "n is 0"), ("conditions=[]", "conditions is empty"), ("conditions=nope", "unknown condition"),
        ("lengths=[0]", "lengths is"), ("place=nope", "unknown place"), ("shots=-1", "shots is -1"),
        ("max_new_tokens=0", "max_new_tokens is 0"), ("temperature=-1", "temperature is -1"), ("top_p=0", "top_p is 0"),
        ("samples=0", "samples is 0"), ("metric=nope", "unknown text metric"), ("heads=[L1]", "is not a head"),
        ("attention_prompts=-1", "attention_prompts is -1"), ("profile_prompts=0", "profile_prompts is 0"),
        ("arm.c=0", "c is 0"), ("arm.p1=101", "p1 is 101"), ("arm.mode=nope", "unknown mode"),
        ("arm.seed=-1", "seed is -1"), ("condition=[none]", "did you mean 'conditions'"),
    ],
    "contrast": [
        ("n=1", "n is 1"), ("seeds=0", "seeds is 0"), ("reference=nope", "unknown reference"),
        ("pairs={a: {keep: nope, lose: ioi}}", "unknown task"),
    ],
    "wiring": [
        ("n=3", "n is 3"), ("tasks=[nope]", "unknown task"), ("order=nope", "unknown method"),
        ("heads=0", "heads is 0"), ("into=[L1]", "is not a head"),
        ("method=nope", "unknown edge method"), ("gradient=nope", "unknown edge method"),
        ("metric=nope", "unknown metric"), ("reference=nope", "unknown reference"), ("threshold=2", "threshold"),
        ("points=1", "points is 1"), ("cards=-1", "cards is -1"),
    ],
    "diff": [
        ("n=0", "n is 0"), ("tasks=[nope]", "unknown task"), ("methods=[nope]", "unknown method"),
        ("methods=[sensitivity]", "has no sign"), ("reference=nope", "unknown reference"),
        ("metric=nope", "unknown metric"), ("positions=[]", "positions is (); give"),
    ],
    "backups": [
        ("n=4", "n is 4; expected at least 8"), ("tasks=[]", "tasks is empty"), ("metric=nope", "unknown metric"),
        ("reference=nope", "unknown reference"), ("primary=[L1]", "is not a head"), ("first=2", "first is 2"),
        ("primary=[L0H1,L0H1]", "names L0H1 twice"), ("primary_heads=0", "primary_heads is 0"),
        ("draws=0", "draws is 0"), ("candidates=0", "candidates is 0"), ("least=2", "least is 2"),
        ("curve=0", "curve is 0"),
    ],
    "reach": [
        ("n=3", "n is 3; expected at least 4"), ("tasks=[nope]", "unknown task"), ("methods=[nope]", "unknown method"),
        ("metric=nope", "unknown metric"), ("unit=nope", "unknown unit"), ("window=0", "window is 0"),
        ("sink=-1", "sink is -1"), ("budget=0", "budget is 0"), ("budget=1", "budget is 1"),
        ("threshold=0", "threshold"), ("points=2", "points is 2"), ("draws=0", "draws is 0"),
        ("texts=-1", "texts is -1"), ("transfer=[nope]", "unknown task"), ("method_options.x=1", "unknown option"),
    ],
    "certify": [
        ("n=3", "n is 3; expected at least 4"), ("tasks=[nope]", "unknown task"), ("method=nope", "unknown method"),
        ("metric=nope", "unknown metric"), ("reference=nope", "unknown reference"), ("top=0", "top is 0"),
        ("draws=0", "draws is 0"), ("subsets=0", "subsets is 0"), ("negatives=nope", "unknown task"),
        ("others=[nope]", "unknown task"), ("beside=[nope]", "unknown method"),
        ("thresholds.nope=1", "nope"), ("method_options.x=1", "unknown option"),
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
    *("quick", "compile", "revision", "base", "trust_remote_code", "task_options", "method_options", "data"),
    *("abilities", "chat", "cross", "working", "system", "template", "separator", "stop", "joint", "fillers"),
    *(
        "held_out",
        "text",
        "curve",
        "fit",
        "arm",
        "pairs",
        "dense",
        "truncate",
        "models",
        "floor",
        "strengths",
        "bias",
    ),
    *("heads", "thresholds"),
}
"""Settings of which anything of the right type (a number: if it is finite) may be right, and those
that are settings themselves."""


@pytest.mark.parametrize("kind", [*(one.settings for one in studies().values()), SparsifySettings])
def test_every_setting_has_a_constraint_or_is_free_by_intention(kind):
    assert {name for name in kind.model_fields if not checked(kind, name)} <= FREE


def checked(kind, name):
    """Whether an absurd value of the right type is refused: text that names nothing, a number far from 0."""
    schema = json.dumps(kind.model_json_schema()["properties"][name])
    for given in ("no such thing", "", [], -(2.0**62), -(2**62), 2.0**62):
        if (isinstance(given, str) and '"string"' not in schema) or (given == [] and '"array"' not in schema):
            continue
        try:
            build(kind, {name: given})
        except HeadwiseError as error:
            if not str(error).startswith("setting "):  # of the wrong type
                return True
    return False


@pytest.mark.parametrize("name", sorted(methods()))
def test_every_number_among_the_options_of_a_method_has_bounds(name):
    options = methods()[name].settings.model_json_schema().get("properties", {})
    for option, schema in options.items():
        text = json.dumps(schema)
        if '"integer"' in text or '"number"' in text:
            assert "inimum" in text, option


@pytest.mark.parametrize("kind", [*(one.settings for one in studies().values()), SparsifySettings])
def test_the_defaults_keep_their_own_constraints(kind):
    assert build(kind, {}) == kind()
    assert build(kind, kind().model_dump()) == kind()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"batch_tokens": 0}, "batch_tokens is 0"),
        ({"reference": "nope"}, "unknown reference 'nope'"),
        ({"positions": "nope"}, "unknown positions 'nope'|ablates nothing, so it cannot be restricted"),
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


class Some(Settings):
    n: Count = 1
    share: float = 0.5
    ks: Several[Count] = ()
    name: str | None = None


class Outer(Settings):
    inner: Some = Some()
    several: Several[Some] = ()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "3", 2.5, None])
def test_a_number_is_a_whole_or_finite_number_and_never_a_truth_or_a_text(value):
    with pytest.raises(HeadwiseError, match=r"setting 'n' is .*; expected a whole number"):
        Some(n=value)
    if value != 2.5:
        with pytest.raises(HeadwiseError, match=r"setting 'share' is .*; expected a (finite )?number"):
            Some(share=value)


def test_numbers_of_numpy_are_numbers():
    assert Some(n=np.int64(3), share=np.float32(0.25), ks=[np.int32(2), 3]) == Some(
        n=3, share=0.25, ks=(2, 3)
    )
    assert type(Some(n=np.int64(3)).n) is int
    assert type(Some(ks=np.int64(3)).ks[0]) is int


def test_a_sentence_names_the_whole_way_to_a_setting():
    for given, said in (
        ({"inner": {"n": 0}}, "inner.n is 0; expected at least 1"),
        ({"inner": {"n": "x"}}, "setting 'inner.n' is 'x'; expected a whole number"),
        ({"inner": 3}, "setting 'inner' is 3; expected a mapping of settings"),
        ({"inner": {"nn": 1}}, "unknown setting of 'inner' 'nn'; did you mean 'n'?"),
        ({"several": [{}, {"ks": [4, 0]}]}, "several.ks is 0; expected at least 1"),
        ({"inne": {}}, "unknown setting 'inne'; did you mean 'inner'?"),
        ({"inner": {"n": 2**80}}, "setting 'n' has 81 bits; expected a whole number of at most 64"),
    ):
        with pytest.raises(HeadwiseError) as caught:
            Outer(**given)
        assert said in str(caught.value)


def test_settings_cannot_be_changed_and_a_replaced_value_is_checked():
    some = Some(n=2)
    with pytest.raises(Exception, match="frozen"):
        some.n = 3
    assert some.replaced(n=3) == Some(n=3)
    with pytest.raises(HeadwiseError, match="n is 0"):
        some.replaced(n=0)
