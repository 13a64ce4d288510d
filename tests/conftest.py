"""What all tests share: no hub, one cache for the bundled model, tiny models with a word tokenizer."""

from __future__ import annotations

import gc
import inspect
import os
import re
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch

gc.disable()  # until all tests are collected

DEVICE = os.environ.get("HEADWISE_TEST_DEVICE", "cpu")
"""Where the models of the tests live: HEADWISE_TEST_DEVICE=cuda runs the engine's tests on a GPU."""


POSIX = re.compile(
    r"forked|mkfifo|SIGKILL|SIGHUP|symlink_to|preexec_fn|geteuid|import resource|#!/bin/sh|/dev/"
)


def pytest_collection_modifyitems(items):
    """The executed pages come first: a long test at the very end would leave all other workers without work."""
    items.sort(key=lambda item: item.path.name != "test_docs.py")
    if sys.platform == "win32":
        for item in items:
            if POSIX.search(inspect.getsource(item.function)):
                item.add_marker(pytest.mark.skip(reason="uses what Windows does not have"))


def pytest_collection_finish():
    """The half a million objects of imports and collection stay for good: no collection of garbage visits them."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def smollm2():
    """The bundled model in float32, in the user's own cache: fetched once per machine."""
    import headwise as hw

    return hw.load("smollm2", device=DEVICE, dtype="float32")


def _some_logits(model):
    with torch.no_grad():
        return model.hf(torch.arange(8, device=model.device)[None]).logits


@pytest.fixture(scope="session")
def logits_at_first(smollm2):
    """What the bundled model computes before any page has used it."""
    return _some_logits(smollm2)


@pytest.fixture
def loaded_once(smollm2, logits_at_first, monkeypatch):
    """`hw.load("smollm2")`, by name or in a study, gives the model of this session: pages load it again and again.

    With options but device="cpu" (a page that changes its model gives some), and on an accelerator, it is loaded as
    ever. Afterwards the shared model must compute what it did before.
    """
    import headwise as hw
    from headwise.model.load.load import load
    from headwise.studies import workbench

    def shared(source, **options):
        given = {
            name: value for name, value in options.items() if value and (name, value) != ("device", "cpu")
        }
        plain = source == "smollm2" and not given and not torch.accelerator.is_available()
        return smollm2 if plain and DEVICE == "cpu" else load(source, **options)

    monkeypatch.setattr(hw, "load", shared, raising=False)
    monkeypatch.setattr(workbench, "load", shared)
    yield
    assert torch.equal(_some_logits(smollm2), logits_at_first), "the shared model was changed"


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """`made_once(name, make)`: the folder that `make(folder)` fills, once for all workers of this session.

    Under xdist a test may be stolen by another worker, which would make the same again.
    """
    from filelock import FileLock

    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared

    def folder(name, make):
        place, begun = shared / name, shared / f"{name}.begun"
        with FileLock(f"{place}.lock"):
            if not place.exists():
                begun.mkdir()
                make(begun)
                begun.rename(place)
        return place

    return folder


@pytest.fixture(scope="session")
def word_tokenizer():
    """One token per word, made on the spot; every word of the tests' own sentences is in it."""
    from helpers import make_word_tokenizer

    return make_word_tokenizer()


@pytest.fixture
def tiny(word_tokenizer):
    """A tiny random Llama with grouped keys: 4 layers × 4 heads."""
    import headwise as hw
    from headwise.model.verify.tiny import tiny_model

    hf = tiny_model("llama", vocab_size=len(word_tokenizer), max_position_embeddings=512).to(DEVICE)
    return hw.load(hf, tokenizer=word_tokenizer, name="tiny")


@pytest.fixture
def tiny64(word_tokenizer):
    """A tiny GPT-2 in float64, for finite differences: Llama's norms pass through float32 whatever the weights."""
    import headwise as hw
    from headwise.model.verify.tiny import tiny_model

    hf = tiny_model("gpt2", vocab_size=len(word_tokenizer)).to(DEVICE, torch.float64)
    return hw.load(hf, tokenizer=word_tokenizer, name="tiny64")


@pytest.fixture
def undrawn(monkeypatch):
    """Studies draw no figures: for tests that look at none. Fixtures of a module that run a study still draw."""
    monkeypatch.setattr("headwise.studies.base.save_figures", lambda folder, charts: None)


@pytest.fixture(scope="session", autouse=True)
def png_alone():
    """Figures are written as PNG alone, which is a third of the work; `helpers.every_format` writes all three."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwise.charts.style.FORMATS", ("png",))
        yield


@pytest.fixture(scope="session", autouse=True)
def unsynced():
    """No test waits for the disk: a run does dozens of times, and only a power cut would show the difference. Gives
    what a user's store has."""
    from headwise.runs import store

    shipped = store.SYNCHRONOUS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(store, "SYNCHRONOUS", "OFF")
        yield shipped


@pytest.fixture
def benchmarks_on_path(monkeypatch):
    """Modules of benchmarks/ can be imported, and are gone afterwards."""
    folder = str(Path(__file__).parents[1] / "benchmarks")
    monkeypatch.syspath_prepend(folder)
    yield
    for name in [
        n for n, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(folder)
    ]:
        del sys.modules[name]
