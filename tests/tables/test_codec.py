"""One codec for every result: what is stored or saved comes back equal, in values and types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.heads import Edge, Edges, Head, PositionScores, Scores, head_list
from headwise.runs import Store
from headwise.runs.store import encode_result
from headwise.scores.gates.contrastive import Contrast
from headwise.scores.gates.fit import Fit
from headwise.scores.interactions.interactions import Interactions
from headwise.studies.masking.texts import Written
from headwise.studies.roles.study import Ended
from headwise.studies.wiring.study import MeasuredEdges
from headwise.sweeps.curve import Sweep
from headwise.sweeps.edge_curve import EdgeCurve
from headwise.tables.codec import Packed, load_result, pack, save_result, unpack

NAN = float("nan")
NAMES: dict[str, Any] = {"model": "m", "task": "t", "method": "ablation", "metric": "logit_diff"}
VALUES = np.random.default_rng(0).normal(size=(3, 2, 4))
DETAILS = {"reference": "mean", "rows": 12, "gap": NAN, "held_out": [0, 2], "options": {"by": ("a", 1)}}


def equal(one: Any, other: Any) -> bool:
    """Whether two values are equal in types and content, NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other, check_dtype=len(one) > 0)  # no rows, no gaps
        return True
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and not hasattr(one, "_asdict"):
        return len(one) == len(other) and all(map(equal, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(equal(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return bool(one == other)


FRAME = pd.DataFrame(
    {
        "text": ["a", None, "ü"],
        "number": [1.5, np.nan, np.inf],
        "whole": np.array([1, 2, 3], dtype=np.int32),
        "gap": pd.array([1, None, 3], dtype="Int32"),
        "yes": [True, False, True],
    }
)
UPDATES = np.where(
    np.arange(3)[:, None] < [3, 1], 0.5, NAN
)  # the second of two seeds stopped after one update
FIT = Fit(
    VALUES[:2],
    UPDATES,
    -UPDATES,
    UPDATES / 5,
    np.array([3, 1]),
    {0: VALUES[1:], 2: -VALUES[:2], 3: VALUES[:2]},
)
HEADS = head_list(["L0H1", "L1H0", "L0H0"])
CURVE = Sweep(
    k=np.array([0, 1, 3]),
    values=VALUES[:, 0],
    none=VALUES[0, 0],
    full=VALUES[2, 0],
    order=HEADS,
    model="m",
    task="t",
    series="ablation",
    action="keep",
    metric="logit_diff",
    reference="mean",
    total=3,
    groups=("a", "a", None, "b"),
    numbers=(1, 3, 5, 7),
    details={"order": "ablation", "rows": 12},
)
CONTROL = replace(CURVE, series="random_layer", draw=0, sets=(HEADS[:0], HEADS[:1], HEADS), moved=(0, 0, 1))
RESULTS = {
    "numbers": {"a": 1, "b": 1.5, "c": [True, None, "x"], "d": (NAN, float("-inf")), "e": {}},
    "mapping": {1: "a", (2, "b"): [3]},
    "arrays": [
        np.arange(6, dtype=np.int8).reshape(2, 3),
        np.array([True, False]),
        np.zeros((0, 3)),
        np.float32([[NAN]]),
        np.array(["a", None, "ü"], dtype=object),
    ],
    "frame": FRAME,
    "empty frame": FRAME.iloc[:0],
    "heads": [Head(1, 2), Head(3, -1), Head(0, -2)],
    "scores": Scores.from_examples(
        VALUES, **NAMES, details=DETAILS, groups=("a", "a", None), numbers=(4, 7, 9), exists=VALUES[0] > -9
    ),
    "adaptive scores": Scores(
        VALUES[0],
        VALUES[1],
        np.where(VALUES > 0, VALUES, NAN),
        **NAMES,
        own={"lo": VALUES[0], "n": np.ones((2, 4))},
    ),
    "components": Scores.from_examples(VALUES, **NAMES, components=("heads", "mlps", "input")),
    "positions": PositionScores(
        head_list(["L0H0", "L0H1"]), VALUES, ["a", "b", "c", "d"], **NAMES, details=DETAILS, numbers=(4, 7, 9)
    ),
    "edges": Edges(
        [Edge.parse("L0H1->L2H0.Q"), Edge.parse("MLP1->logits @ S2")],
        VALUES[:, :, 0],
        **NAMES,
        sharing={2: 3},
        details=DETAILS,
        tests={"q": np.array([0.5, NAN])},
    ),
    "gates": FIT,
    "gates and seeds": Ended(FIT, FRAME),
    "contrastive gates": Contrast(FRAME, FIT),
    "texts": Written([["a", "ü"], ["", "b"]], {"chrf": VALUES[0, :, :2]}, (1, 3), ("g", None)),
    "curve of edges": EdgeCurve(
        k=np.array([0, 1, 5]),
        values=VALUES[:, 0],
        tokens=np.array([0, 2.5, NAN]),
        model="m",
        task="t",
        series="exact absolute",
        metric="logit_diff",
        groups=("a", None, "a", "b"),
        numbers=(1, 3, 5, 7),
        details=DETAILS,
    ),
    "interactions": Interactions(
        [(Head(0, 1), Head(1, 2)), (Head(2, 0),)],
        np.array([[0, 1]]),
        VALUES[0].T,
        np.array([[1.5], [NAN], [0.0], [2.0]]),
        *("m", "t", "logit_diff", "mean"),
        tests={name: np.array([0.5]) for name in ("values", "stderr", "lo", "hi", "p", "n")},
        groups=("a", None, "a", "b"),
        given=True,
        details=DETAILS,
    ),
    "sweep": replace(CURVE, controls=(CONTROL, replace(CONTROL, values=np.full((3, 4), NAN)))),
}
RESULTS["measured edges"] = MeasuredEdges(RESULTS["edges"], FRAME)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_comes_back_equal_from_memory_from_a_store_and_from_a_file(name, tmp_path):
    result = RESULTS[name]
    assert equal(unpack(pack(result)), result)
    with Store(tmp_path / "cells.sqlite") as store:
        store.put("a call", encode_result(result))
        (key,) = store.keys()
        assert equal(store.get(key), result)
        assert store.text(key) == "a call"
    save_result(tmp_path / "result.npz", result)
    assert equal(load_result(tmp_path / "result.npz", type(result)), result)


@pytest.mark.parametrize("name", ["scores", "positions", "edges", "sweep"])
def test_save_and_load_are_methods_of_every_result(name, tmp_path):
    result = RESULTS[name]
    result.save(tmp_path / "result.npz")
    assert equal(type(result).load(tmp_path / "result.npz"), result)


def test_a_file_of_another_class_is_refused_by_name(tmp_path):
    RESULTS["edges"].save(tmp_path / "edges.npz")
    with pytest.raises(HeadwiseError, match=r"not a file written by Scores\.save: it has a Edges"):
        Scores.load(tmp_path / "edges.npz")


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 0, complex(1, 2)])
def test_what_has_no_plain_form_is_refused(value):
    with pytest.raises(HeadwiseError, match="cannot be stored"):
        pack({"value": value})


def test_a_class_without_the_decorator_is_refused_by_name():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Unknown:
        x: int

    with pytest.raises(HeadwiseError, match="Unknown cannot be stored; put @stored above its class"):
        pack(Unknown(1))


@pytest.mark.parametrize(
    "content",
    [
        {"$type": "Popen", "fields": {"args": "x"}},
        {"$type": "Scores", "fields": {"values": 1}},
        {"$type": "Scores", "fields": {}},
        {"$type": "Head", "text": "L1"},
        {"$type": "Head", "texts": ["L1H2", "L1"]},
        {"$type": "Head", "texts": [1]},
        {"$array": "7"},
        {"$mapping": [1]},
        {"$float": "x"},
    ],
)
def test_content_that_nobody_packed_is_refused(content):
    with pytest.raises((ValueError, HeadwiseError)):
        unpack(Packed(content, {}))


def test_an_array_keeps_its_order_in_memory_so_that_its_means_keep_their_last_bits(tmp_path):
    values = np.asfortranarray(np.random.default_rng(0).normal(size=(40, 30)))
    assert (values.mean(axis=0) != values.copy(order="C").mean(axis=0)).any()
    with Store(tmp_path / "cells.sqlite") as store:
        store.put("a call", encode_result(values))
        (key,) = store.keys()
        assert (store.get(key).mean(axis=0) == values.mean(axis=0)).all()
    save_result(tmp_path / "result.npz", values)
    assert (load_result(tmp_path / "result.npz", np.ndarray).mean(axis=0) == values.mean(axis=0)).all()


def test_a_curve_whose_arrays_do_not_belong_together_is_refused(tmp_path):
    changes = {
        "values": VALUES[:2, 0],
        "none": VALUES[0],
        "k": np.array([]),
        "numbers": (1,),
        "groups": ("a",),
    }
    for name, value in changes.items():
        replace(CURVE, **{name: value}).save(tmp_path / "curve.npz")
        with pytest.raises(HeadwiseError, match=r"not a file written by Sweep\.save: "):
            Sweep.load(tmp_path / "curve.npz")
