"""Every study on Ray workers gives the bytes that it gives in this process; its plan has the steps that it makes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.origin import replica
from headwise.model.verify.tiny import tiny_model
from headwise.runs.step import NEW_TOKEN, UNITS
from headwise.studies.base import plan, studies
from headwise.studies.workbench import Workbench
from helpers import labelled_file, make_word_tokenizer

ANSWERS = {"animals": ("cat", "dog", "bird"), "colours": ("red", "blue", "small")}
FIT = {"updates": 3, "batch": 2, "keep": 2, "window": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two tiny models as save_pretrained writes them: workers load them from there."""
    tokenizer = make_word_tokenizer()
    made = []
    for name in ("one", "two"):
        hf = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512, seed=len(made))
        hf.generation_config.eos_token_id = None
        place = tmp_path_factory.mktemp("models") / name
        hf.save_pretrained(place)
        tokenizer.save_pretrained(place)
        made.append(str(place))
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Ten examples of each of two made-up abilities."""
    path = tmp_path_factory.mktemp("data") / "kinds.jsonl"
    return labelled_file(path, ANSWERS, 20, lambda i: 5, foils=[" the"])


@pytest.fixture(scope="module")
def executor():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'headwise[ray]'")
    from headwise.runs.ray_executor import RayExecutor

    with RayExecutor(workers=2, cores_per_worker=1, progress=False) as started:
        yield started


@pytest.fixture
def undrawn(monkeypatch):
    """Tables are compared here; drawing would be most of the work."""
    monkeypatch.setattr("headwise.studies.base.save_figures", lambda *given: None)
    monkeypatch.setattr("headwise.studies.base.write_report", lambda *given, **options: None)


def half(data: str, name: str, side: str) -> str:
    """Every other example, as it is or with a word more: a side of a pair."""
    path = Path(data).with_name(f"{name}-{side}.jsonl")
    rows = [json.loads(line) for line in Path(data).read_text().splitlines()[name == "odd" :: 2]]
    more = " then" if side == "lose" else ""
    path.write_text("\n".join(json.dumps(row | {"prompt": row["prompt"] + more}) for row in rows))
    return str(path)


def settings_of(name: str, folders: list[str], data: str) -> dict[str, object]:
    pairs = {name: {side: half(data, name, side) for side in ("keep", "lose")} for name in ("even", "odd")}
    return {
        "score": {"tasks": [data], "methods": ["ablation", "attribution"], "n": 4},
        "functions": {"tasks": [data], "n": 6},
        "masking": {"tasks": [data], "n": 4, "k": [1, 2], "draws": 2, "max_new_tokens": 3, "cross": True}
        | {"intervene": ["shift"], "answer": "text"},
        "prompts": {"tasks": [data], "n": 4, "shots": 1, "attention_prompts": 2, "max_new_tokens": 3}
        | {"metric": "contains"},
        "roles": {"tasks": [data], "n": 8, "seeds": 2, "k": [0, 1], "fit": FIT, "random_sets": 2},
        "circuits": {"models": folders, "tasks": [data], "n": 8, "points": 4, "draws": 1},
        "wiring": {"models": folders, "tasks": [data], "n": 8, "points": 4, "heads": 3, "cards": 1},
        "contrast": {"pairs": pairs, "n": 4, "seeds": 2, "fit": FIT},
        "diff": {"models": folders, "tasks": [data], "methods": ["ablation", "attribution"], "n": 4},
        "backups": {"models": folders, "tasks": [data], "n": 16, "first": 3, "curve": 2, "draws": 2}
        | {"primary": ["L0H1"]},
        "reach": {"tasks": [data], "methods": ["ablation", "attribution"], "n": 8, "window": 3, "sink": 1}
        | {"budget": 0.9, "transfer": [], "texts": 0, "points": 3, "draws": 1},
        "certify": {"tasks": [data], "n": 8, "heads": "L0H1,L2H3", "draws": 4, "subsets": 2},
    }[name] | ({} if name in ("circuits", "diff", "backups", "wiring") else {"models": folders[:1]})


@pytest.mark.parametrize("name", sorted(studies()))
def test_a_study_gives_the_same_bytes(name, folders, data, executor, tmp_path, monkeypatch, undrawn):
    settings = settings_of(name, folders, data)
    hw.run(name, tmp_path / "local", progress=False, device="cpu", **settings)
    # The cluster of all these tests instead of one for each.
    monkeypatch.setattr("headwise.studies.base.chosen_executor", lambda *given: Shared(executor))
    hw.run(name, tmp_path / "ray", progress=False, device="cpu", **settings)
    tables = sorted(path.name for path in (tmp_path / "local/tables").iterdir())
    assert tables == sorted(path.name for path in (tmp_path / "ray/tables").iterdir())
    for table in tables:
        there, here = (tmp_path / place / "tables" / table for place in ("ray", "local"))
        assert there.read_bytes() == here.read_bytes(), table


# ---- plans -----------------------------------------------------------------------------------------------

DEPENDS = {
    "keep_far": "how many key/value heads are needed",
    "make_cards": "how many heads are significant",
    "measure_edges": "which heads are at the top",
    "certify_set": "how large the circuit is",
    "freeze": "whether there are backups",
    "compare_groups": "whether there are groups",
    "find_primary": "how far the search goes",
}
"""Steps whose cost depends on results; a plan has about as much of them, or more."""


@pytest.mark.parametrize("name", sorted(studies()))
def test_a_plan_has_the_steps_and_the_rows_of_the_run(name, folders, data, tmp_path, undrawn):
    settings = settings_of(name, folders, data)
    planned = plan(name, device="cpu", **settings)
    assert not any("no cost" in note for note in planned.notes)
    assert not list(tmp_path.iterdir())
    folder = hw.run(name, tmp_path / "run", progress=False, device="cpu", **settings)
    made = {}
    for call in folder.calls.values():
        if call.cost is not None and call.step.__name__ != "map_attention":  # one prompt
            entry = made.setdefault(call.step.__name__, [0, 0.0, 0])
            written = call.step.unit == NEW_TOKEN
            entry[0] += 1
            entry[2 if written else 1] += call.cost * (1 if written else UNITS[call.step.unit])
    of_plan = {one.step.replace(" ", "_"): [one.calls, one.rows, one.new_tokens] for one in planned.steps}
    assert set(made) <= set(of_plan)
    for step in set(of_plan) - set(DEPENDS):
        assert of_plan[step] == pytest.approx(made[step], abs=1), step
    for step in set(made) & set(DEPENDS):
        assert made[step][1] <= 2 * of_plan[step][1], step


def test_a_plan_counts_examples_once_and_says_why_it_has_no_cost(folders, data, tmp_path):
    made = plan("wiring", models=folders[:1], tasks=[data], n=8, device="cpu")
    assert made.examples == {"kinds": 8}
    assert made.seconds > 0
    assert "forward rows" in str(made)
    absent = plan("wiring", "published", models=[str(tmp_path / "absent")])
    assert not absent.steps
    assert "no cost" in absent.notes[-1]
    assert absent.published["paper"] in str(absent)


class Shared:
    """An executor that outlives the run."""

    def __init__(self, executor):
        self.run = executor.run

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_a_live_model_is_refused_before_a_cluster_is_started(tiny, data, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'headwise[ray]'")
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("a cluster was started"))
    bench = Workbench(progress=False)
    bench.add(tiny)
    with pytest.raises(HeadwiseError, match=r"tiny is a live model .* save_pretrained and give the folder"):
        hw.run("score", tmp_path / "run", workbench=bench, models=["tiny"], tasks=[data], n=4, engine="ray")


def test_a_copied_model_is_loaded_again_and_its_weights_stay_here(folders):
    model = hw.load(folders[0], device="cpu")
    make, (found, fingerprint) = model.__reduce__()
    assert make is replica
    assert found.source == folders[0]
    copy = make(found, fingerprint)
    assert copy is not model
    assert copy is make(found, fingerprint)
    assert copy.fingerprint == model.fingerprint
    with pytest.raises(HeadwiseError, match="is not the model of this study"):
        make(found, "0" * 16)


def test_the_driver_of_a_cluster_keeps_models_off_its_devices(folders, monkeypatch):
    """On a machine with a GPU the cells say bfloat16, and the GPU is left to the workers."""
    bench = Workbench(progress=False)
    bench.configure(type("Settings", (), {"device": "cuda:1", "dtype": None, "batch_tokens": None}))
    bench.use_main_memory()
    model = bench.model(folders[0])
    assert (model.device.type, str(model.dtype)) == ("cpu", "torch.bfloat16")
    _, (found, _) = model.__reduce__()
    assert (found.device, found.options["dtype"]) == ("cuda", "bfloat16")  # which GPU is the worker's matter


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "rai"}, "unknown engine 'rai'; did you mean 'ray'"),
        ({"workers": 2}, "workers is 2, but only the engine 'ray' has this option"),
        ({"engine": "ray", "workers": 0}, "workers is 0; expected at least 1"),
    ],
)
def test_a_mistake_about_the_engine_is_one_sentence(given, said, folders, data, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'headwise[ray]'")
    with pytest.raises(HeadwiseError, match=re.escape(said)):
        hw.run("score", tmp_path / "run", models=folders[:1], tasks=[data], **given)
    assert not (tmp_path / "run").exists()
