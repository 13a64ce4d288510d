"""A run is verified by computing some of its steps again."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import headwise as hw
from headwise.charts.style import without_figures
from headwise.errors import HeadwiseError
from headwise.model.verify.tiny import tiny_model
from headwise.runs import Store, read_info, read_table, write_table
from headwise.runs.store import encode_result
from headwise.studies.verify import summary, verify
from headwise.studies.workbench import Workbench

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def bench(word_tokenizer):
    made = Workbench(progress=False)
    tiny = tiny_model("llama", vocab_size=len(word_tokenizer), max_position_embeddings=512)
    made.add(hw.load(tiny, tokenizer=word_tokenizer, name="tiny"))
    return made


@pytest.fixture(scope="module")
def finished(bench, tmp_path_factory):
    data = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    data.write_text('{"prompt": "the cat", "target": " sat"}\n{"prompt": "a dog", "target": " ran"}\n')
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {"models": ["tiny"], "tasks": [str(data)], "methods": ["ablation", "attribution", "random"]}
    settings["cards"] = 0
    with without_figures():
        hw.run("score", out, workbench=bench, n=2, **settings)
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def changed(run, change):
    """One stored number is changed, as a faulty machine or a careless hand would."""
    with Store(run / "cells.sqlite") as store:
        for key, scored in stored(store):
            if scored.scores.method == "ablation":
                table = scored.table.copy()
                table.loc[3, "score"] = change(table.loc[3, "score"])
                store.put(store.text(key), encode_result(replace(scored, table=table)))


def stored(store):
    """Every key with its result."""
    return [(key, store.get(key)) for key in sorted(store.keys())]


def state_of(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Every file of a folder: its hash, when it was changed, and which file it is."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder",
            path.stat().st_mtime_ns,
            path.stat().st_ino,
        )
        for path in [folder, *folder.rglob("*")]
    }


def failures(run, bench) -> dict[str, str]:
    return {one.label: one.message for one in verify(run, steps=3, workbench=bench) if not one.same}


def test_steps_of_a_good_run_come_out_identical_and_the_run_is_not_touched(run, bench):
    before = state_of(run)
    results = verify(run, steps=3, workbench=bench)
    assert [one.message for one in results] == ["identical"] * 6
    assert [one.label for one in results][:3] == ["table examples", "table inputs", "table scores"]
    assert summary(results) == ("3 of 3 steps are the same, and 3 of 3 tables are what the run's steps give")
    assert state_of(run) == before


def test_a_run_with_the_log_of_a_killed_process_is_verified_and_not_touched(run, bench):
    """The last steps are in the log alone, as a process leaves them that was killed."""
    database = run / "cells.sqlite"
    whole = database.read_bytes()
    with Store(database) as store:
        kept = [store.encoded(key) for key in sorted(store.keys())]
        store.forget(store.keys())
    with Store(database) as store:
        for text, encoded in kept:
            store.put(text, encoded)
        left = {end: Path(f"{database}{end}").read_bytes() for end in ("", "-wal", "-shm")}
    for end, content in left.items():
        Path(f"{database}{end}").write_bytes(content)
    assert left[""] != whole
    before = state_of(run)
    assert failures(run, bench) == {}
    assert state_of(run) == before


def test_a_run_without_steps_fails_and_nothing_is_written_into_it(run, bench):
    for content in (b"", None):
        if content is None:  # a sound store that holds nothing
            (run / "cells.sqlite").unlink()
            Store(run / "cells.sqlite").close()
        else:
            (run / "cells.sqlite").write_bytes(content)
        before = state_of(run)
        (one,) = verify(run, workbench=bench)
        assert (one.same, one.label) == (False, "cells.sqlite")
        assert "holds no finished step" in one.message
        assert summary([one]) == "the run could not be verified"
        assert state_of(run) == before


def test_a_damaged_step_or_one_that_is_gone_is_a_failure(run, bench):
    whole = (run / "cells.sqlite").read_bytes()
    with Store(run / "cells.sqlite") as store:
        store.forget(sorted(store.keys())[:1])
    assert "lacks a step that the run's settings ask for" in failures(run, bench)["cells.sqlite"]
    (run / "cells.sqlite").write_bytes(whole)
    with sqlite3.connect(run / "cells.sqlite") as store:
        store.execute("UPDATE blobs SET data = data || x'00' WHERE id = 1")
    store.close()
    assert "is damaged" in failures(run, bench)["cells.sqlite"]


def test_a_forged_a_truncated_a_deleted_and_an_added_table_are_named(run, bench):
    scores = read_table(run, "scores")
    other = scores.copy()
    other.loc[0, "score"] += 1e-9  # less than rounding could ever be called
    write_table(run, "scores", [other])
    (failed,) = failures(run, bench).items()
    assert failed[0] == "table scores"
    assert ".score differs by" in failed[1]
    write_table(run, "scores", [scores.iloc[::-1]])
    assert "table scores" in failures(run, bench)
    write_table(run, "scores", [scores])
    assert failures(run, bench) == {}
    table = run / "tables/examples.parquet"
    whole = table.read_bytes()
    table.write_bytes(whole[: len(whole) // 2])
    assert "is not a readable table" in failures(run, bench)["table examples"]
    table.unlink()
    assert failures(run, bench) == {"table examples": "is missing from the run"}
    table.write_bytes(whole)
    write_table(run, "extra", [scores])
    assert failures(run, bench) == {"table extra": "does not come from the run's steps"}


CODE = """
from pathlib import Path
Path({marker!r}).write_text("this code ran")
from transformers import LlamaConfig
class StrangeConfig(LlamaConfig):
    model_type = "strange"
"""


@pytest.mark.parametrize("where", ["settings", "every place"])
def test_code_in_a_run_folder_is_never_run_whatever_its_files_say(run, tmp_path, monkeypatch, where):
    from headwise.cli.app import main

    marker = tmp_path / "marker"
    model = run / "model"
    model.mkdir()
    (model / "configuration_strange.py").write_text(CODE.format(marker=str(marker)))
    (model / "modeling_strange.py").write_text(CODE.format(marker=str(marker)))
    (model / "tokenization_strange.py").write_text(CODE.format(marker=str(marker)))
    (model / "config.json").write_text(
        json.dumps(
            {
                "model_type": "strange",
                "architectures": ["StrangeModel"],
                "trust_remote_code": True,
                "auto_map": {
                    "AutoConfig": "configuration_strange.StrangeConfig",
                    "AutoModelForCausalLM": "modeling_strange.StrangeModel",
                },
            }
        )
    )
    (model / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["tokenization_strange.Strange", None]}})
    )
    tiny_model("llama").save_pretrained(tmp_path / "weights")
    shutil.copy(tmp_path / "weights/model.safetensors", model)
    info = json.loads((run / "run.json").read_text())
    info["settings"] |= {"models": [str(model)], "trust_remote_code": True}
    if where == "every place":
        info["written"][0]["settings"] = info["settings"]
        info |= {"trust_remote_code": True, "options": {"trust_remote_code": True}}
    (run / "run.json").write_text(json.dumps(info))
    assert "trust_remote_code" not in read_info(run)["settings"]
    with pytest.raises(HeadwiseError, match="needs code from its repository"):
        verify(run)
    for command in (["verify", str(run)], ["report", str(run), "--out", str(tmp_path / "page.html")]):
        monkeypatch.setattr("sys.argv", ["headwise", *command])
        with pytest.raises(SystemExit):
            main()
    assert not marker.exists()
    # The folder is a trap that works: with trust given by the caller the code does run.
    with pytest.raises(HeadwiseError):
        verify(run, trust_remote_code=True)
    assert marker.exists()


def test_trust_is_not_written_into_a_run(bench, tmp_path, finished):
    settings = read_info(finished)["settings"]
    hw.run("score", tmp_path / "run", workbench=bench, progress=False, **settings, trust_remote_code=True)
    assert "trust_remote_code" not in (tmp_path / "run/run.json").read_text()


def test_a_changed_number_is_found_and_named(run, bench):
    changed(run, lambda score: score + 1)
    results = verify(run, steps=3, workbench=bench)
    (bad,) = [one for one in results if one.kind == "step" and not one.same]
    assert bad.label.startswith("ablation on")
    assert ".score differs by" in bad.message


def test_rounding_is_no_difference_but_is_said(run, bench):
    changed(run, lambda score: score * (1 + 1e-6))
    results = verify(run, steps=3, workbench=bench)
    assert all(one.same for one in results if one.kind == "step")
    assert any("the same to" in one.message for one in results)


def test_another_model_or_an_unfinished_run_is_refused(run, word_tokenizer):
    other = Workbench(progress=False)
    tiny = tiny_model("llama", vocab_size=len(word_tokenizer), max_position_embeddings=512, seed=5)
    other.add(hw.load(tiny, tokenizer=word_tokenizer, name="tiny"))
    with pytest.raises(HeadwiseError, match="is not the one of the run"):
        verify(run, workbench=other)
    info = (run / "run.json").read_text().replace('"status": "done"', '"status": "interrupted"')
    (run / "run.json").write_text(info)
    with pytest.raises(HeadwiseError, match="finish it first"):
        verify(run, workbench=other)


@pytest.mark.parametrize("batch_tokens", [16, 64, 100_000])
def test_other_batch_sizes_stay_within_the_tolerance_of_verify(bench, finished, tmp_path, batch_tokens):
    model = bench.model("tiny")
    usual = model.batch_tokens
    model.batch_tokens = batch_tokens
    try:
        results = verify(finished, steps=3, workbench=bench)
    finally:
        model.batch_tokens = usual
    assert all(one.same for one in results), [one.message for one in results]


def test_the_same_run_in_two_folders_gives_the_same_bytes(bench, finished, tmp_path):
    settings = read_info(finished)["settings"]
    again = hw.run("score", tmp_path / "again", workbench=bench, progress=False, **settings)
    for table in (finished / "tables").iterdir():
        assert (again.path / "tables" / table.name).read_bytes() == table.read_bytes(), table.name


RESTORING = """
CREATE TRIGGER keep_cells AFTER DELETE ON cells BEGIN
    INSERT INTO cells VALUES (old.id, old.key, old.cell, old.notes, old.seconds, old.flagged, old.checksum);
END;
CREATE TRIGGER keep_blobs AFTER DELETE ON blobs BEGIN
    INSERT INTO blobs VALUES (old.id, old.key, old.name, old.data, old.checksum);
END;
"""


def forge(run, bench) -> None:
    """Every stored score is another one, and the tables and their hashes fit."""
    with Store(run / "cells.sqlite") as store:
        for key, scored in stored(store):
            store.put(store.text(key), encode_result(replace(scored, table=scored.table.assign(score=7.0))))
    settings = read_info(run)["settings"]
    with without_figures():
        hw.run("score", run, workbench=bench, progress=False, **settings)
    assert (read_table(run, "scores")["score"] == 7).all()


def test_forged_steps_that_a_trigger_puts_back_are_refused(run, bench):
    forge(run, bench)
    assert sum(".score differs" in said for said in failures(run, bench).values()) == 3
    with closing(sqlite3.connect(run / "cells.sqlite")) as database:
        database.executescript(RESTORING)
    before = state_of(run)
    with pytest.raises(HeadwiseError, match="'keep_blobs', which headwise did not put there"):
        verify(run, steps=3, workbench=bench)
    with pytest.raises(HeadwiseError, match="which headwise did not put there"):
        hw.run("score", run, workbench=bench, progress=False, **read_info(run)["settings"])
    assert {name: said for name, said in state_of(run).items() if name.endswith("sqlite")} == {
        name: said for name, said in before.items() if name.endswith("sqlite")
    }


def test_the_chosen_steps_differ_from_one_verification_to_the_next_and_a_seed_repeats_them(run, bench):
    def chosen(**options):
        return {one.label for one in verify(run, steps=1, workbench=bench, **options) if one.kind == "step"}

    assert len({frozenset(chosen()) for _ in range(12)}) > 1  # all alike once in 3 ** 11
    assert chosen(seed=5) == chosen(seed=5)


def test_all_steps_are_computed_again_on_request_and_none_that_the_settings_do_not_ask_for(run, bench):
    settings = read_info(run)["settings"] | {"methods": ["ablation", "random"]}
    with without_figures():
        hw.run("score", run, workbench=bench, progress=False, **settings)
    with Store(run / "cells.sqlite") as store:
        assert len(store) > 2  # that of the method before is still there
    results = verify(run, steps="all", workbench=bench)
    assert sorted(one.label.split()[0] for one in results if one.kind == "step") == ["ablation", "random"]
    assert all(one.same for one in results)


def test_the_command_prints_the_seed_and_takes_it(run, bench, monkeypatch, capsys):
    import headwise.studies.verify as module
    from headwise.cli.app import main

    asked = []
    monkeypatch.setattr(module, "verify", lambda run, **options: asked.append(options) or [])

    def said(*words):
        monkeypatch.setattr("sys.argv", ["headwise", "verify", str(run), *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, "".join(capsys.readouterr())

    _, output = said()
    assert f"--seed {asked[0]['seed']} chooses the same steps" in output
    said("--seed", str(asked[0]["seed"]))
    said("--steps", "all")
    assert asked[1] == asked[0]
    assert asked[2]["steps"] == "all"
    assert asked[2]["seed"] != asked[0]["seed"]
    for wrong in ("0", "-1", "some", "1.5"):
        code, output = said("--steps", wrong)
        assert code == 2
        assert "give a number from 1, or all" in output
    assert len(asked) == 3


@pytest.mark.parametrize("forged", [{}, "all heads matter", None, [1, 2]])
def test_a_result_of_another_form_is_a_failure_and_no_traceback(run, bench, forged):
    """An inconvenient method cannot be hidden by taking its numbers away."""
    with Store(run / "cells.sqlite") as store:
        for key, scored in stored(store):
            if scored.scores.method == "ablation":
                store.put(store.text(key), encode_result(forged))
    (found,) = verify(run, steps="all", workbench=bench)
    assert not found.same
    assert "a result that the study cannot use" in found.message


@pytest.mark.parametrize("name", ["settings", "fingerprints"])
def test_what_the_report_shows_as_settings_of_a_table_is_that_of_the_run(run, bench, name):
    info = json.loads((run / "run.json").read_text())
    for entry in info["written"]:
        entry[name] = entry[name] | {"n": 100_000} if name == "settings" else {"tiny": "forged"}
    (run / "run.json").write_text(json.dumps(info))
    (found,) = verify(run, workbench=bench)
    assert (found.label, found.same) == ("run.json", False)
    none = info | {"fingerprints": {}}
    (run / "run.json").write_text(json.dumps(none))
    with pytest.raises(HeadwiseError, match="is not the one of the run"):
        verify(run, workbench=bench)


def test_a_forged_word_of_a_result_is_found(run, bench):
    with Store(run / "cells.sqlite") as store:
        key, scored = stored(store)[0]
        store.put(
            store.text(key), encode_result(replace(scored, scores=replace(scored.scores, metric="forged")))
        )
    assert any("differs" in one.message for one in verify(run, steps="all", workbench=bench) if not one.same)
