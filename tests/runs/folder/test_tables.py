"""Tables: fixed columns and types, the same bytes every time, never more than a part in memory."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.errors import HeadwiseError
from headwise.runs import RunFolder, read_table, tables, write_table
from runs.toy_study import tables_of

SCORES = ["model", "task", "method", "layer", "head", "score", "stderr", "lo", "hi", "n", "p", "q"]
CURVES = ["model", "task", "series", "action", "k", "metric", "value", "lo", "hi", "n", "draw"]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "tables").mkdir()
    return tmp_path


def scores(**changed: Any) -> pd.DataFrame:
    return tables_of(0, "model0")["scores"].assign(**changed)


def test_the_contracts_columns_come_first_in_their_types(out: Path) -> None:
    shuffled = scores()[
        ["part", "q", "head", "score", "model", "layer", "task", "method", "n", "p", "stderr", "hi", "lo"]
    ]
    path = write_table(out, "scores", [shuffled])
    assert path == out / "tables" / "scores.parquet"
    schema = pq.read_schema(path)
    assert schema.names[:12] == SCORES
    assert schema.names[12:] == ["part"]
    for name, kind in zip(schema.names, schema.types, strict=True):
        expected = {"layer": "int32", "head": "int32", "n": "int32"} | dict.fromkeys(
            ("score", "stderr", "lo", "hi", "p", "q"), "double"
        )
        assert str(kind) == expected.get(name, "string")
    found = read_table(out, "scores")
    assert found["layer"].dtype == np.int32
    pd.testing.assert_frame_equal(found[shuffled.columns], shuffled, check_dtype=False)


def test_columns_that_do_not_apply_may_be_left_out_and_whole_numbers_stay_whole(out: Path) -> None:
    of_a_score = {
        "model": "m",
        "task": "t",
        "method": "ablation",
        "layer": 3,
        "head": 1,
        "example": [0, 1],
        "value": 0.5,
    }
    of_a_point = {
        "model": "m",
        "task": "t",
        "series": "top",
        "action": "mask",
        "k": [4.0],
        "example": 7,
        "value": 1.0,
    }
    write_table(out, "examples", [pd.DataFrame(of_a_score), pd.DataFrame(of_a_point)])
    found = read_table(out, "examples")
    assert found["k"].dtype == "Int32"
    assert found.loc[found["k"] == 4, "example"].tolist() == [7]
    assert found["layer"].isna().tolist() == [False, False, True]
    assert found["series"].isna().tolist() == [True, True, False]
    assert found["example"].dtype == np.int32


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (scores().drop(columns=["lo", "q"]), "lacks lo, q"),
        (scores(layer=1.5), "scores.layer must be int32"),
        (scores(head="x"), "scores.head must be int32"),
        (scores(n=2**40), "scores.n must be int32"),
        (scores(extra=[1, "a", None]), "scores.extra holds values of more than one kind"),
        (pd.concat([scores(), scores()["part"]], axis=1), "two columns named part"),
    ],
)
def test_a_frame_that_breaks_the_contract_is_refused_by_column(
    out: Path, frame: pd.DataFrame, says: str
) -> None:
    with pytest.raises(HeadwiseError, match=says):
        write_table(out, "scores", [frame])
    assert not list((out / "tables").iterdir())


def test_further_columns_are_united_in_order_of_appearance_and_widened(out: Path) -> None:
    frames = [
        pd.DataFrame({"a": [1]}),
        pd.DataFrame({"b": ["x"], "a": [2.5]}),
        pd.DataFrame({"a": [3], "c": [None]}),
    ]
    write_table(out, "extra", frames)
    found = read_table(out, "extra")
    assert list(found.columns) == ["a", "b", "c"]
    assert found["a"].tolist() == [1, 2.5, 3]
    assert found["b"].isna().tolist() == [True, False, True]
    with pytest.raises(HeadwiseError, match="do not agree"):
        write_table(out, "extra", [pd.DataFrame({"a": [1]}), pd.DataFrame({"a": ["x"]})])


def test_the_bytes_depend_on_the_rows_and_not_on_how_they_are_cut(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_ROWS", 1_000)
    random = np.random.default_rng(0)
    whole = pd.DataFrame(
        {
            "model": random.choice(["a", "bb", "ccc"], 5_500),
            "task": "t",
            "k": pd.array(random.integers(0, 50, 5_500), dtype="Int32").copy(),
            "example": np.arange(5_500),
            "value": random.normal(size=5_500),
        }
    )
    whole.loc[random.random(5_500) < 0.3, "k"] = pd.NA
    first = write_table(out, "examples", [whole]).read_bytes()
    assert pq.ParquetFile(out / "tables" / "examples.parquet").num_row_groups == 6
    for sizes in ([1] * 1_200 + [4_300], [999, 2, 3_000, 0, 1_499], [5_000, 500]):
        ends = np.cumsum(sizes)
        cut = [whole.iloc[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        assert write_table(out, "examples", cut).read_bytes() == first
    assert write_table(out, "examples", [whole.iloc[::-1]]).read_bytes() != first
    assert read_table(out, "examples")["value"].tolist() == whole["value"].tolist()[::-1]


def test_only_a_part_of_a_large_table_is_in_memory(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROWS", 20_000)
    held = []
    before = pa.total_allocated_bytes()
    rows, count = 2_000, 400

    class Frames:
        def __iter__(self) -> Iterator[pa.Table]:
            for i in range(count):
                held.append(pa.total_allocated_bytes() - before)
                yield pa.table({"x": pa.array(np.arange(rows) + float(i)), "y": pa.array(np.arange(rows))})

    write_table(out, "large", Frames())
    assert len(read_table(out, "large")) == rows * count
    assert max(held) < rows * count * 16 / 4


def test_frames_that_can_be_gone_through_only_once_are_refused(out: Path) -> None:
    with pytest.raises(TypeError, match="twice"):
        write_table(out, "scores", (frame for frame in [scores()]))


def test_a_table_without_rows_keeps_its_columns(out: Path) -> None:
    write_table(out, "curves", [])
    found = read_table(out, "curves")
    assert len(found) == 0
    assert list(found.columns) == CURVES


def test_a_failure_while_writing_leaves_the_old_table(out: Path) -> None:
    path = write_table(out, "scores", [scores()])
    old = path.read_bytes()

    class Frames:
        rounds = 0

        def __iter__(self) -> Iterator[pd.DataFrame]:
            Frames.rounds += 1
            yield scores(score=9.0)
            if Frames.rounds == 2:
                raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(HeadwiseError, match="is full"):
        write_table(out, "scores", Frames())
    assert path.read_bytes() == old
    assert [file.name for file in path.parent.iterdir()] == ["scores.parquet"]


def test_reading_says_what_there_is_and_what_is_wrong(out: Path) -> None:
    with pytest.raises(HeadwiseError, match="it has none yet"):
        read_table(out, "curves")
    write_table(out, "scores", [scores()])
    with pytest.raises(HeadwiseError, match="no table 'curves'; it has scores"):
        read_table(out, "curves")
    assert list(read_table(out, "scores", ["head", "score"]).columns) == ["head", "score"]
    (out / "tables" / "scores.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(HeadwiseError, match="not a readable table"):
        read_table(out, "scores")


@pytest.mark.parametrize("name", ["../evil", "/etc/x", "Scores", "", "a b", "a.b"])
def test_a_table_name_cannot_lead_out_of_the_run(tmp_path: Path, name: str) -> None:
    with (
        RunFolder(tmp_path / "run") as folder,
        pytest.raises(HeadwiseError, match="not a valid name of a table"),
    ):
        write_table(folder, name, [scores()])
