"""Files and arrays of a user's, made bad: task files, study files, heads files, gates."""

from __future__ import annotations

import csv
import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import headwise as hw
from fuzz.mutate import WORDS, bent, damaged, dumped, hostile
from headwise.errors import HeadwiseError
from headwise.heads import Head, Scores
from headwise.heads.heads_file import read_heads
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.studies.base import studies
from headwise.studies.settings.resolve import assignments, resolve
from headwise.tasks.files.load_task import load_task
from headwise.tasks.files.mappings.registry import registered
from helpers import make_word_tokenizer, word_task

PLAIN = [
    {"prompt": f"a {i}", "target": f" {i}", "foils": [" x", " y"], "counterfactual": f"b {i}", "label": "l"}
    for i in range(4)
]
PUBLIC: dict[str, Any] = {
    "bigbench": {"name": "sums", "examples": [{"input": "1+1", "target_scores": {"2": 1, "3": 0}}] * 1},
    "bigbench target": {"examples": [{"input": "1+1", "target": ["2", "two"]}, {"input": "1+2", "target": "3"}]},
    "gsm8k": [{"question": "How many?", "answer": "One <<1+1=2>>.\n#### 2"}],
    "math500": [{"problem": "$1+1$", "answer": "2", "subject": "Algebra", "solution": "so \\boxed{2}"}],
    "blimp": [{"sentence_good": "He sits.", "sentence_bad": "He sit.", "linguistics_term": "agreement",
               "one_prefix_prefix": "He", "one_prefix_word_good": "sits", "one_prefix_word_bad": "sit"}],
    "cogqa": [{"question": "Why?", "answer": "So", "generated": [
        {"subquestion": "What?", "answer": "That", "cognitive_skill": "Retrieval"}]}],
    "csqa": [{"question": "Where?", "choices": {"label": ["A", "B"], "text": ["here", "there"]}, "answerKey": "A"}],
    "csqa lines": [{"input": "Where?\na: here\nb: there", "output": "a"}],
    "words": [{"input": "hot", "output": "cold"}, {"input": "big", "output": "small"}],
}  # fmt: skip


# --- task files -----------------------------------------------------------------------------------------


def task_files(draw: random.Random, place: Path) -> str:
    ending = draw.choice(("jsonl", "json", "csv", "tsv", "parquet", "txt", "ndjson"))
    rows = PLAIN if draw.random() < 0.5 else draw.choice(list(PUBLIC.values()))
    beside = rows if isinstance(rows, dict) else None
    listed = rows["examples"] if beside else rows
    if draw.random() < 0.6:
        listed = bent(listed, draw)
        rows = {**beside, "examples": listed} if beside else listed
        rows = bent(rows, draw) if beside and draw.random() < 0.3 else rows
    raw = _written(ending, rows, listed)
    if draw.random() < 0.35:
        raw = damaged(raw, draw)
    path = place / f"task.{ending}"
    path.write_bytes(raw)
    options: dict[str, Any] = {}
    if draw.random() < 0.25:
        options["mapping"] = draw.choice(["fields", *registered()])
    if draw.random() < 0.15:
        options["columns"] = bent({"prompt": "{question} {x", "target": "answer", "foils": ["a", "b"]}, draw)
    if draw.random() < 0.15:
        options[draw.choice(("limit", "duplicates", "records", "metric", "letters"))] = draw.choice(
            (1, 0, -1, "drop")
        )
    task = load_task(path, **options)
    assert len(task.examples) > 0
    for example in task.examples:
        assert example.target.strip(), "a target is empty"
    if ending in ("jsonl", "ndjson") and task.settings["mapping"] == "fields" and not options:
        # Counted a second way: every line that is not blank is an example, or the file is refused.
        lines = [line for line in raw.decode("utf-8-sig").split("\n") if line.strip()]
        assert len(lines) == len(task.examples), "an example was skipped without a word"
        assert [json.loads(line)["prompt"] for line in lines] == [e.prompt for e in task.examples]
    return "read"


def _written(ending: str, rows: Any, listed: Any) -> bytes:
    if ending in ("jsonl", "ndjson"):
        return "".join(
            dumped(row) + "\n" for row in (listed if isinstance(listed, list) else [listed])
        ).encode()
    if ending == "json":
        return dumped(rows).encode()
    if ending == "txt":
        return dumped(listed).replace(",", "\n").encode()
    flat = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    if ending == "parquet":
        return _parquet(flat)
    names = list(dict.fromkeys(str(name) for row in flat for name in row))
    out = io.StringIO()
    writer = csv.writer(out, delimiter="," if ending == "csv" else "\t")
    try:
        writer.writerow(names)
        for row in flat:
            writer.writerow([v if isinstance(v := row.get(n, ""), str) else dumped(v) for n in names])
    except csv.Error:
        return b'"prompt","target"\n"a'
    return out.getvalue().encode("utf-8", "surrogatepass")


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    sink = io.BytesIO()
    try:
        parquet.write_table(pa.Table.from_pylist(rows or [{"prompt": "a", "target": " b"}]), sink)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError, RecursionError, ValueError):
        parquet.write_table(pa.Table.from_pylist([{"prompt": "a", "target": " b"}]), sink)
    return sink.getvalue()


# --- study files ----------------------------------------------------------------------------------------

SNIPPETS = (
    "n: 1_0\n", "seed: 0x" + "f" * 40 + "\n", "a: &a [*a]\n", "<<: {n: 3}\n", "n: !!int '3'\n", "n: 2020-99-99\n",
    "n: !!python/object/apply:os.system ['true']\n", "? [1, 2]\n: 3\n", "n: .nan\n", "quick: yes\n", "n: 1\nn: 2\n",
    "a: &a [1,1]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c]\ntasks: [*d,*d,*d,*d]\n",
    "n: " + "9" * 5000 + "\n", "---\nn: 1\n---\nn: 2\n", "%YAML 9.9\n---\nn: 1\n", "\ufeffn: 1\n",
    "models: !!binary aaa\n", "tasks: !!set {a, b}\n", "tasks: " + "[" * 4000 + "\n", "seed: 1e3\n", "n: '\0'\n",
    "models: ~\n", "n: 0o17\n",
)  # fmt: skip


def study_files(draw: random.Random, place: Path) -> str:
    import yaml

    chosen = draw.choice(list(studies().values()))
    values = resolve(chosen.settings, None).model_dump()
    for name in list(values):
        if draw.random() < 0.5:
            values.pop(name)
    if draw.random() < 0.7:
        values = bent(values or {"n": 1}, draw)
    try:
        text = yaml.safe_dump(values, allow_unicode=draw.random() < 0.5)
    except (yaml.YAMLError, RecursionError, UnicodeEncodeError, ValueError):
        text = dumped(values)
    if draw.random() < 0.4:
        lines = text.splitlines(keepends=True)
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(SNIPPETS))
        text = "".join(lines)
    raw = text.encode("utf-8", "replace")
    if draw.random() < 0.4:
        raw = damaged(raw, draw)
    path = place / "study.yaml"
    path.write_bytes(raw)
    overrides = {}
    if draw.random() < 0.2:
        pairs = [f"{draw.choice(['n', 'task_options.x', 'a.b.c', '', 'seed', *WORDS])}{draw.choice('=:')}"
                 f"{dumped(hostile(draw))}" for _ in range(2)]  # fmt: skip
        overrides = assignments(pairs)
    settings = resolve(chosen.settings, path, overrides)
    # What was understood, written out and read again, is understood in the same way.
    again = resolve(chosen.settings, None, settings.model_dump())
    assert repr(again.model_dump()) == repr(settings.model_dump())
    return "read"


# --- heads files ----------------------------------------------------------------------------------------


def heads(draw: random.Random, place: Path) -> str:
    ending = draw.choice(("json", "json", "npz", "parquet"))
    path = place / f"heads.{ending}"
    listed = [f"L{draw.randrange(4)}H{draw.randrange(4)}" for _ in range(draw.randrange(1, 5))]
    if ending == "json":
        path.write_text(
            dumped(bent(listed, draw)) if draw.random() < 0.7 else dumped(listed), errors="replace"
        )
    else:
        _scores(path, ending, draw)
    if draw.random() < 0.5:
        path.write_bytes(damaged(path.read_bytes(), draw))
    top = draw.choice((None, 1, 2, 3, 0, -1, 10**6))
    by = draw.choice(("signed", "signed", "absolute", "hinders", "size"))
    found = read_heads(path, top, by=by, task=draw.choice((None, None, "t", "u")))
    assert all(isinstance(head, Head) for head in found)
    assert len(set(found)) == len(found), "a head occurs twice"
    assert top is None or len(found) == top
    return "read"


def _scores(path: Path, ending: str, draw: random.Random) -> None:
    values = np.random.default_rng(draw.randrange(2**32)).normal(size=(3, 4, 4))
    if draw.random() < 0.3:
        values[draw.randrange(3), draw.randrange(4)] = draw.choice((np.nan, np.inf, -np.inf))
    scores = Scores.from_examples(values, model="m", task="t", method="ablation")
    if ending == "npz":
        scores.save(path)
        if draw.random() < 0.4:
            with np.load(path) as file:
                arrays = dict(file)
            name = draw.choice(list(arrays))
            arrays[name] = draw.choice(
                (np.zeros(3), np.array(["x"]), np.zeros((4, 4), complex), np.array(dumped(1)))
            )
            np.savez(path.open("wb"), **arrays)
        return
    table = scores.table()
    if draw.random() < 0.7:
        column = draw.choice(list(table.columns))
        change = draw.random()
        if change < 0.3:
            table = table.drop(columns=[column])
        elif change < 0.6:
            table[column] = draw.choice((-1, 1.5, "x", np.nan, 10**9, None))
        else:
            table = pd.concat([table, table.iloc[: draw.randrange(4)]])
    table.to_parquet(path)


# --- gates ----------------------------------------------------------------------------------------------


@cache
def tiny_model() -> Any:
    from headwise.model.verify.tiny import tiny_model as make

    tokenizer = make_word_tokenizer()
    return hw.load(make("llama", vocab_size=len(tokenizer)), tokenizer=tokenizer, name="tiny")


@cache
def _engine() -> tuple[Engine, np.ndarray]:
    engine = Engine(tiny_model(), word_task(3), metric("logit_diff"))
    return engine, engine.full()


def gates(draw: random.Random, place: Path) -> str:
    engine, full = _engine()
    model = engine.model
    given = _gates(draw, model.shape)
    use = draw.choice(("measure", "measure", "gradients", "generate", "baseline"))
    if use == "generate":
        hw.generate(model, ["the cat"], given, max_new_tokens=1)
        return "written"
    if use == "gradients":
        values, slopes = engine.gradients(given)
        assert values.shape == (3,)
        assert slopes.shape == (3, *model.shape)
        return "slopes"
    if use == "baseline":
        engine.measure(np.ones((1, *model.shape)), baseline=given)
        return "measured"
    found = engine.measure(given)
    assert found.values.shape == (len(np.asarray(given)), 3)
    for variant, row in zip(np.asarray(given, dtype=float), found.values, strict=True):
        if (variant == 1).all():
            np.testing.assert_allclose(row, full, atol=1e-4)
    return "measured"


def _gates(draw: random.Random, shape: tuple[int, int]) -> Any:
    seeded = np.random.default_rng(draw.randrange(2**32))
    size = draw.choice(
        (shape, (1, *shape), (2, *shape), (0, *shape), (*shape, 1), (3,), (), (2, 99, 4), (1, 1, *shape))
    )
    array: Any = seeded.choice([0.0, 1.0, 2.0, 0.5], size=size)
    change = draw.randrange(14)
    if change == 0:
        array = np.where(
            seeded.random(size) < 0.2, draw.choice((np.nan, np.inf, 1e300, -np.inf, 1e38)), array
        )
    elif change == 1:
        array = array.astype(draw.choice((bool, np.int8, np.float16, complex, object, str, np.uint64)))
    elif change == 2:
        array = array.tolist()
    elif change == 3:
        array = draw.choice(
            (None, "all", [[1, 2], [3]], {"L0H0": 0}, [["a"]], object(), [None], Head(0, 1), 1.0)
        )
    elif change == 4:
        import torch

        array = torch.tensor(
            np.asarray(array), dtype=draw.choice((torch.float32, torch.bfloat16, torch.bool))
        )
    elif change == 5:
        array = np.ma.masked_array(array, mask=seeded.random(size) < 0.3)
    elif change == 6:
        array = np.ones((2, *shape))
    return array


def orders(draw: random.Random, place: Path) -> str:
    """Heads given from Python: to masks and to a sweep."""
    model = tiny_model()
    listed: Any = [f"L{draw.randrange(5)}H{draw.randrange(5)}" for _ in range(draw.randrange(1, 6))]
    if draw.random() < 0.5:
        listed = bent(listed, draw)
    if draw.random() < 0.1:
        listed = hostile(draw)
    k = draw.choice((None, [0, 1], [-1], [99], ["x"], 3, [0.5], []))
    curve = hw.sweep(model, word_task(3), listed, k=k, draws=1)
    if not isinstance(listed, list):
        raise HeadwiseError("nothing to compare")
    assert curve is not None
    return "swept"
