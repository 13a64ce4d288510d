"""Folders of other people's, made bad: model folders, run folders; and the command line over all of it."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import headwise as hw
from fuzz.inputs import tiny_model
from fuzz.mutate import WORDS, bent, damaged, dumped, hostile
from headwise.errors import HeadwiseError
from headwise.report import write_report
from headwise.runs import read_info, read_table
from headwise.studies.base import studies
from headwise.studies.settings.resolve import resolve
from headwise.studies.verify import verify
from headwise.studies.workbench import Workbench
from helpers import make_word_tokenizer
from runs import toy_study


@cache
def _kept() -> Path:
    """Good folders are made once; every case damages a copy."""
    return Path(tempfile.mkdtemp(prefix="headwise-fuzz-"))


# --- model folders --------------------------------------------------------------------------------------


@cache
def _model_folder(family: str) -> Path:
    from headwise.model.verify.tiny import tiny_model as make

    tokenizer = make_word_tokenizer()
    place = _kept() / f"model-{family}"
    make(family, vocab_size=len(tokenizer)).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def model_folders(draw: random.Random, place: Path) -> str:
    folder = Path(shutil.copytree(_model_folder(draw.choice(("llama", "llama", "gpt2"))), place / "model"))
    change = draw.random()
    weights = folder / "model.safetensors"
    if change < 0.45:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(dumped(_bent_config(config, draw)), errors="replace")
    elif change < 0.7:
        _bend_weights(weights, draw)
    elif change < 0.85:
        file = draw.choice(sorted(file for file in folder.iterdir() if file.suffix == ".json"))
        if draw.random() < 0.5:
            file.write_text(dumped(bent(json.loads(file.read_text()), draw)), errors="replace")
        else:
            file.write_bytes(damaged(file.read_bytes(), draw))
    elif change < 0.9:
        draw.choice(sorted(folder.iterdir())).unlink()
    elif change < 0.95:
        weights.rename(
            folder
            / draw.choice(("pytorch_model.bin", "model.pt", "weights.ckpt", "x.pth", "model.safetensor"))
        )
    else:
        return _gguf(draw, place)
    loaded = hw.load(folder, device="cpu", dtype="float32")
    # A model that loads is a model that runs, or says why not.
    hw.score(loaded, hw.Task("t", (hw.Example("the cat", " sat"),), "logprob"), "ablation")
    return "loaded"


def _bent_config(config: dict[str, Any], draw: random.Random) -> Any:
    if draw.random() < 0.5:
        return bent(config, draw)
    numbers = [name for name, value in config.items() if type(value) is int]
    for name in draw.sample(numbers, draw.choice((1, 1, 2))):
        config[name] = draw.choice((0, 1, 2, 3, 5, 8, 64, 1000, -1, 10**5, 10**7, 10**9, 10**12, 2**63))
    return config


def _bend_weights(weights: Path, draw: random.Random) -> None:
    raw = weights.read_bytes()
    if draw.random() < 0.4:
        weights.write_bytes(damaged(raw, draw))
        return
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change = draw.random()
    if change < 0.4:
        header.pop(draw.choice([name for name in header if name != "__metadata__"]))
    elif change < 0.8:
        header = bent(header, draw)
    text = dumped(header).encode()
    size = len(text) if draw.random() < 0.8 else draw.choice((0, 2**62, len(raw) * 2, 1))
    weights.write_bytes(size.to_bytes(8, "little") + text + raw[8 + length :])


def _gguf(draw: random.Random, place: Path) -> str:
    path = place / "model.gguf"
    head = b"GGUF" + draw.choice((3, 2, 99)).to_bytes(4, "little")
    path.write_bytes(
        draw.choice((b"", head, head + draw.randbytes(40), head + b"\xff" * 64, draw.randbytes(100)))
    )
    hw.load(path, device="cpu")
    return "loaded"


# --- run folders ----------------------------------------------------------------------------------------


@cache
def bench() -> Workbench:
    made = Workbench(progress=False)
    made.add(tiny_model())
    return made


@cache
def _task_file() -> Path:
    path = _kept() / "pairs.jsonl"
    rows = [
        {"prompt": p, "target": t, "foils": [f]}
        for p, t, f in (("the cat", " sat", " ran"), ("a dog", " ran", " sat"))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@cache
def _scored() -> Path:
    place = _kept() / "scored"
    settings: dict[str, Any] = {"models": ["tiny"], "tasks": [str(_task_file())], "n": 2}
    hw.run("score", place, workbench=bench(), methods=["attribution", "random"], **settings)
    return place


@cache
def _toy() -> tuple[Path, dict[str, bytes]]:
    place = _kept() / "toy"
    toy_study.run(place, 5)
    return place, toy_study.table_bytes(place)


def run_folders(draw: random.Random, place: Path) -> str:
    """Reports and verifications of damaged runs; and damaged runs that are carried on must end as they would have."""
    use = draw.choice(("report", "report", "verify", "resume", "resume"))
    source = _toy()[0] if use == "resume" else _scored()
    folder = Path(shutil.copytree(source, place / "run"))
    part = draw.choice(("run.json", "cells.sqlite", "tables"))
    file = draw.choice(sorted((folder / "tables").iterdir())) if part == "tables" else folder / part
    if part == "run.json" and draw.random() < 0.7:
        file.write_text(dumped(bent(json.loads(file.read_text()), draw)), errors="replace")
    elif part == "tables" and draw.random() < 0.5 and use == "report":
        _bend_table(folder, file.stem, draw)
    elif draw.random() < 0.1:
        file.unlink()
    else:
        file.write_bytes(damaged(file.read_bytes(), draw))
    if use == "report":
        write_report([folder], place / "report.html")
        return "reported"
    if use == "verify":
        intact = (folder / "run.json").read_bytes() == (source / "run.json").read_bytes()
        results = verify(folder, steps=1, workbench=bench())
        assert results
        if intact and part == "tables":
            named = {one.label for one in results if not one.same}
            assert named == ({f"table {file.stem}"} if _changed(folder, source, file.stem) else set())
        return "verified"
    toy_study.run(folder, 5)
    assert toy_study.table_bytes(folder) == _toy()[1], "a damaged run ended with other tables"
    assert read_info(folder)["status"] == "done"
    return "resumed"


def _changed(folder: Path, source: Path, name: str) -> bool:
    """Whether a table no longer has its rows: damage may also hit what nobody reads."""
    try:
        return not read_table(folder, name).equals(read_table(source, name))
    except HeadwiseError:
        return True


def _bend_table(folder: Path, name: str, draw: random.Random) -> None:
    table = read_table(folder, name)
    column = draw.choice(list(table.columns))
    change = draw.random()
    if change < 0.3:
        table = table.drop(columns=[column])
    elif change < 0.7:
        table[column] = draw.choice(
            (None, float("nan"), float("inf"), -1, 10**9, "<img src=x>", "", "x" * 2000)
        )
    else:
        table = table.iloc[:0]
    table.to_parquet(folder / "tables" / f"{name}.parquet")


# --- whole studies --------------------------------------------------------------------------------------

SMALL = {
    "score": {"n": 2, "methods": ["attribution"]},
    "functions": {"n": 4},
    "circuits": {"n": 4},
    "masking": {"n": 4},
    "roles": {"n": 4},
    "prompts": {"n": 2},
}


def settings(draw: random.Random, place: Path) -> str:
    """Settings of the right type and the wrong size, through a whole study on a tiny model."""
    kind = studies()["score" if draw.random() < 0.6 else draw.choice(list(SMALL))]
    values: dict[str, Any] = {"models": ["tiny"], "quick": True, **SMALL.get(kind.name, {})}
    if hasattr(kind.settings, "tasks") or "tasks" in resolve(kind.settings, None).model_dump():
        values["tasks"] = [str(_task_file())]
    known = resolve(kind.settings, None).model_dump()
    values = {name: value for name, value in values.items() if name in known}
    for name in draw.sample(sorted(known), draw.choice((1, 1, 2))):
        old = values.get(name, known[name])
        if isinstance(old, bool):
            values[name] = not old
        elif isinstance(old, int):
            values[name] = draw.choice((0, -1, 1, 2, 2**31, 2**62))
        elif isinstance(old, float):
            values[name] = draw.choice((0.0, -1.0, 1.0, 2.0, 1e300, 1e-300))
        elif isinstance(old, str):
            values[name] = draw.choice(("", "nothing", old.upper(), "../x", "\0"))
        elif isinstance(old, list):
            values[name] = draw.choice(([], old + old, ["nothing"], [0], [-1]))
        else:
            values[name] = hostile(draw)
    if draw.random() < 0.1:
        values["batch_tokens"] = draw.choice((1, 2, 2**40))
    values["models"] = (
        values["models"] if values.get("models") in (["tiny"], [], ["tiny", "tiny"]) else ["tiny"]
    )
    folder = hw.run(kind.name, place / "run", workbench=bench(), progress=False, **values)
    assert folder.status == "done"
    return kind.name


# --- the command line -----------------------------------------------------------------------------------


def command_line(draw: random.Random, place: Path) -> str:
    """Arguments that nobody should type: exit 2 with one sentence, never a traceback."""
    from typer.testing import CliRunner

    from headwise.cli.app import app

    arguments = draw.choice((_run_arguments, _task_arguments, _report_arguments, _export_arguments))(
        draw, place
    )
    done = CliRunner().invoke(app, arguments)
    if done.exception is None or isinstance(done.exception, SystemExit):
        assert done.exit_code in (0, 2), (done.exit_code, done.output[-500:])
        assert "Traceback" not in done.output
        return f"exit {done.exit_code}"
    if isinstance(done.exception, HeadwiseError):
        raise done.exception  # what `main` shows as one sentence and exit 2
    raise AssertionError(f"headwise {arguments} ended in a traceback") from done.exception


def _word(draw: random.Random) -> str:
    message = draw.choice(
        (*WORDS, "smollm3", "ioi", "1", "-1", "n=3", "a.b=[", "hub:", "hub:a:b:c:d", "~nobody/x", "*")
    )
    return message.replace("\0", "\\0").replace("\ud800", "")[:500]


def _run_arguments(draw: random.Random, place: Path) -> list[str]:
    study = draw.choice([*studies(), _word(draw)])
    arguments = ["run", study, "--out", str(place / "out"), "--model", str(place / "no-model")]
    for flag in draw.sample(
        ["--task", "--data", "--set", "--dtype", "--device", "--batch-tokens", "--nothing"], 2
    ):
        arguments += [flag, _word(draw)]
    if draw.random() < 0.4:
        path = place / "study.yaml"
        path.write_bytes(damaged(b"models: [tiny]\nn: 4\ntasks: [ioi]\n", draw))
        arguments.insert(2, str(path))
    return arguments


def _task_arguments(draw: random.Random, place: Path) -> list[str]:
    path = place / f"mine.{draw.choice(('jsonl', 'csv', 'json', 'xyz'))}"
    path.write_bytes(damaged(b'{"prompt": "a", "target": " b"}\n', draw))
    arguments = [
        "task",
        str(path) if draw.random() < 0.6 else _word(draw),
        "--show",
        draw.choice(("0", "3", "-1", "x")),
    ]
    return arguments if draw.random() < 0.5 else [*arguments, "--set", _word(draw)]


def _report_arguments(draw: random.Random, place: Path) -> list[str]:
    command = draw.choice(("report", "verify"))
    target = place / "run"
    if draw.random() < 0.6:
        target.mkdir()
        (target / "run.json").write_text(
            dumped(bent({"study": "score", "settings": {}, "status": "done"}, draw)), errors="replace"
        )
    arguments = [command, str(target) if draw.random() < 0.7 else _word(draw)]
    return [*arguments, "--out", str(place / "r.html")] if command == "report" else arguments


def _export_arguments(draw: random.Random, place: Path) -> list[str]:
    (place / "heads.json").write_bytes(damaged(b'["L0H0", "L1H2"]', draw))
    arguments = [
        "export",
        str(place / "no-model"),
        "--heads",
        str(place / "heads.json"),
        "--out",
        str(place / "o"),
    ]
    return [*arguments, draw.choice(("--top", "--by", "--gate", "--task")), _word(draw)]
