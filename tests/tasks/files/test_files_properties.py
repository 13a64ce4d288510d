"""Whatever the rows, they come back as they went in; whatever the bytes, only HeadwiseError is raised."""

import csv
import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from headwise.errors import HeadwiseError
from headwise.tasks.examples import Example, Task
from headwise.tasks.files.load_task import load_task
from headwise.tasks.files.mappings.registry import registered

QUICK = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# Python 3.10 reads no null characters from CSV; half characters (category Cs) are refused in every format.
text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
filled = text.filter(lambda t: t.strip())


@st.composite
def examples(draw):
    """An example that breaks none of the rules; lists in the order drawn."""
    target, *others = draw(st.lists(filled, min_size=1, max_size=5, unique=True))
    cut = draw(st.integers(0, len(others)))
    prompt = draw(text)
    other = draw(st.none() | filled)
    label = draw(st.none() | filled)
    return Example(
        prompt, target, tuple(others[:cut]), None if other == prompt else other, label, tuple(others[cut:])
    )


some_examples = st.lists(examples(), min_size=1, max_size=6, unique=True)


def fields(one: Example) -> dict:
    row = {"prompt": one.prompt, "target": one.target, "foils": list(one.foils), "also": list(one.also)}
    return {**row, "counterfactual": one.counterfactual, "label": one.label}


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_json(path, rows):
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")


def write_csv(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        # Every cell is quoted: older Pythons leave a lone carriage return bare, which no reader accepts.
        writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        for row in rows:
            lists = {name: json.dumps(row[name]) for name in ("foils", "also")}
            writer.writerow({**row, **lists})


def write_parquet(path, rows):
    strings = pa.list_(pa.string())
    schema = {name: strings if name in ("foils", "also") else pa.string() for name in rows[0]}
    parquet.write_table(pa.Table.from_pylist(rows, pa.schema(list(schema.items()))), path)


@pytest.mark.parametrize(
    ("ending", "write"),
    [("jsonl", write_jsonl), ("json", write_json), ("csv", write_csv), ("parquet", write_parquet)],
)
@given(rows=some_examples)
@QUICK
def test_random_examples_come_back_as_they_were_written(ending, write, rows, tmp_path):
    path = tmp_path / f"random.{ending}"
    write(path, [fields(one) for one in rows])
    assert load_task(path).examples == tuple(rows)


@given(rows=some_examples)
@QUICK
def test_all_formats_give_the_same_fingerprint(rows, tmp_path):
    prints = {Task("x", tuple(rows), "logprob").fingerprint}
    for ending, write in (("jsonl", write_jsonl), ("csv", write_csv), ("parquet", write_parquet)):
        path = tmp_path / f"random.{ending}"
        write(path, [fields(one) for one in rows])
        prints.add(load_task(path, metric="logprob").fingerprint)
    assert len(prints) == 1


def load_or_refuse(path, **options):
    """A task, or one sentence; any other exception fails the test that calls this."""
    try:
        message = load_task(path, **options).name
    except HeadwiseError as error:
        message = str(error)
    assert message
    assert "\n" not in message


ENDINGS = ("jsonl", "json", "csv", "tsv", "parquet", "txt", "xyz")


@given(raw=st.binary(max_size=300), ending=st.sampled_from(ENDINGS))
@example(raw=b"PAR1\x00\x00\x00\x00PAR1", ending="parquet")
@example(raw=b'"\x00', ending="csv")
@example(raw=b'{"a":' * 3000, ending="json")
@QUICK
def test_random_bytes_raise_nothing_but_headwise_errors(raw, ending, tmp_path):
    path = tmp_path / f"garbage.{ending}"
    path.write_bytes(raw)
    load_or_refuse(path)


@given(raw=st.binary(min_size=1, max_size=8), at=st.integers(0, 2000), ending=st.sampled_from(ENDINGS[:5]))
@QUICK
def test_a_good_file_with_a_few_bytes_overwritten_raises_nothing_but_headwise_errors(
    raw, at, ending, tmp_path
):
    rows = [fields(Example(f"prompt {i}", f" {i}", (" x", " y"), f"other {i}", "l")) for i in range(5)]
    path = tmp_path / f"hurt.{ending}"
    write = {"jsonl": write_jsonl, "json": write_json, "parquet": write_parquet}.get(ending, write_csv)
    write(path, rows)
    whole = bytearray(path.read_bytes())
    at %= len(whole)
    whole[at : at + len(raw)] = raw
    path.write_bytes(whole)
    load_or_refuse(path)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
known_names = sorted({"prompt", "target", "foils", "counterfactual", "label", "also", "choices", "answerKey"}
                     | {name for mapping in registered().values() for name in mapping.fields})  # fmt: skip
steps = st.fixed_dictionaries(
    {}, optional={"subquestion": values, "answer": values, "cognitive_skill": values}
)
random_row = st.dictionaries(st.sampled_from(known_names), values | st.lists(steps, max_size=2), max_size=5)


@given(
    rows=st.lists(random_row, min_size=1, max_size=4),
    mapping=st.none() | st.sampled_from(["fields", *registered()]),
    beside=st.dictionaries(st.sampled_from(["name", "task_prefix", "append_choices_to_input"]), values),
)
@settings(QUICK, max_examples=600)
def test_random_values_under_every_mapping_raise_nothing_but_headwise_errors(rows, mapping, beside, tmp_path):
    path = tmp_path / "random.json"
    path.write_text(json.dumps({**beside, "examples": rows}))
    load_or_refuse(path, mapping=mapping)


@given(
    columns=st.dictionaries(
        text | st.sampled_from(["prompt", "target", "foils"]), text | st.lists(text) | values
    )
)
@QUICK
def test_random_columns_raise_nothing_but_headwise_errors(columns, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "target": " b", "wrong": [" c", 3]}\n')
    load_or_refuse(path, columns=columns)
