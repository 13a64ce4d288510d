"""Small things that several tests build: a tokenizer, tasks of made-up words, slow and obvious forward passes."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

import headwise as hw
from headwise.charts import style
from headwise.model.verify.tiny import tiny_model
from headwise.tasks import Example, Task

REPOSITORY = Path(__file__).parent.parent

WORDS = "the a cat dog bird saw met liked then and one two red blue big small ran sat he she it . ,".split()


def make_word_tokenizer(words=WORDS):
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
    )


def word_model(family="llama", name=None, load=None, **config):
    """A tiny random model of a family that reads the words of the tests. load: options of `hw.load`."""
    tokenizer = make_word_tokenizer()
    hf = tiny_model(family, vocab_size=len(tokenizer), **config)
    return hw.load(hf, tokenizer=tokenizer, name=name or family, **(load or {}))


def saved_word_model(place: Path, family="llama", **config) -> Path:
    """The same as a folder that `save_pretrained` writes."""
    tokenizer = make_word_tokenizer()
    tiny_model(family, vocab_size=len(tokenizer), **config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


PANIC = "a" * 40 + "b"
"""A text on which `make_panicking_tokenizer` panics."""


def make_panicking_tokenizer():
    """One token per word, but with a regex that gives up on some texts: the library panics then."""
    from tokenizers import Regex, pre_tokenizers

    tokenizer = make_word_tokenizer()
    steps = [pre_tokenizers.Split(Regex("(a+)+$"), "isolated"), pre_tokenizers.WhitespaceSplit()]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


def forked(said: Path, work, *arguments):
    """A process that calls `work` and writes what it says into a file: a copy of this one, with torch imported."""

    def call():
        out = os.open(said, os.O_WRONLY | os.O_CREAT)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(out, stream)
            setattr(sys, name, os.fdopen(stream, "w", buffering=1, closefd=False))
        logging.getLogger().handlers.clear()  # pytest's
        # A suite started in the background ignores Ctrl-C, and its children would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work(*arguments)

    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    return process


def forked_command(said: Path, *words):
    """`headwise WORDS` in a process of its own."""
    from headwise.cli.app import main

    def command():
        sys.argv = ["headwise", *map(str, words)]
        main()

    return forked(said, command)


def word_task(n: int = 6, metric: str = "logit_diff", equal_length: bool = True) -> Task:
    """Sentences of made-up sense, with a foil and a counterfactual that differs from the second word on."""
    examples = []
    for i in range(n):
        words = [WORDS[(i * 7 + j * 3) % 20] for j in range(6 if equal_length else 4 + i % 3)]
        other = [words[0], *[WORDS[(i * 5 + j * 11 + 1) % 20] for j in range(1, len(words))]]
        target, foil = WORDS[(i + 2) % 20], WORDS[(i + 9) % 20]
        examples.append(Example(" ".join(words), f" {target}", (f" {foil}",), " ".join(other)))
    return Task("words", tuple(examples), metric)


def labelled_file(path: Path, answers: dict[str, tuple[str, ...]], n: int, length, **more) -> str:
    """`n` sentences of made-up sense, their labels in turn; `length(i)` words in sentence i, `more` fields in each."""
    lines = []
    for i in range(n):
        label = list(answers)[i % len(answers)]
        prompt = " ".join(WORDS[(i * 7 + j * 3) % 20] for j in range(length(i)))
        target = answers[label][(i // len(answers)) % len(answers[label])]
        lines.append(json.dumps({"prompt": prompt, "target": f" {target}", **more, "label": label}))
    path.write_text("\n".join(lines))
    return str(path)


def bench_of(*models):
    """A workbench with models that are loaded already."""
    from headwise.studies.workbench import Workbench

    bench = Workbench(progress=False)
    for model in models:
        bench.add(model)
    return bench


@contextmanager
def every_format():
    """Figures are written in every format, as users get them."""
    before, style.FORMATS = style.FORMATS, ("png", "svg", "pdf")
    try:
        yield
    finally:
        style.FORMATS = before


def run_on(study: str, out, *models, **settings):
    """The run folder of a study on models that are loaded already."""
    return hw.run(study, out, workbench=bench_of(*models), **{"models": [m.name for m in models], **settings})


def progress_of(monkeypatch) -> dict[str, tuple[int, int | None]]:
    """What the progress bars of steps come to from now on: by label, steps done and the total."""
    bars = {}

    @contextmanager
    def recorded(label, total=None, *, show=True):
        done = []
        yield lambda steps=1: done.append(steps)
        bars[label] = sum(done), total

    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules["headwise.runs.compute"], "show_progress", recorded)
    return bars


def plain_logits(model, ids: list[int]) -> torch.Tensor:
    """One sentence through the untouched transformers model."""
    with torch.no_grad():
        return model.hf(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0].cpu()


def answers(model, example) -> tuple[int, int]:
    """The tokens of an example's target and of its foil, which have one each."""
    (target,), (foil,) = (model.tokens(text.strip()) for text in (example.target, example.foils[0]))
    return target, foil


def plain_difference(model, example) -> float:
    """logit(target) − logit(foil) through the untouched transformers model."""
    last, (target, foil) = plain_logits(model, model.tokens(example.prompt))[-1], answers(model, example)
    return float(last[target] - last[foil])


class HeadsByHook:
    """The obvious way to change heads of a Llama: a hook on each output projection. No line of ours in it."""

    def __init__(self, model, edit):
        """edit(layer, z[B, T, H, D]) -> z."""
        self.model, self.edit = model, edit

    def __enter__(self):
        attention = [layer.self_attn for layer in self.model.hf.model.layers]
        heads = self.model.shape[1]

        def hook(layer):
            def change(_, args):
                flat = args[0]
                z = self.edit(layer, flat.unflatten(-1, (heads, -1)))
                return (z.flatten(-2),)

            return change

        self.handles = [a.o_proj.register_forward_pre_hook(hook(i)) for i, a in enumerate(attention)]

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()


def replacing(heads, others=lambda layer, z: torch.zeros_like(z)):
    """An edit for `HeadsByHook`: these heads put out `others(layer, z)`, by default 0."""

    def edit(layer, z):
        z, new = z.clone(), others(layer, z).expand_as(z)
        for head in heads:
            if head.layer == layer:
                z[:, :, head.head] = new[:, :, head.head]
        return z

    return edit


def leaving(heads, others=lambda layer, z: torch.zeros_like(z)):
    """An edit for `HeadsByHook`: all but these heads put out `others(layer, z)`, by default 0."""
    return lambda layer, z: replacing(heads, lambda *_: z)(layer, others(layer, z).expand_as(z))


def recorded(model, text: str) -> dict[int, torch.Tensor]:
    """Head outputs of one sentence by hooks: layer -> [T, H, D]."""
    seen = {}

    def note(layer, z):
        seen[layer] = z[0].clone()
        return z

    with HeadsByHook(model, note):
        plain_logits(model, model.tokens(text))
    return seen


def cut_short(monkeypatch, module, name: str, at: int, carry_out) -> list[tuple]:
    """Interrupt a run in call number `at` of a function of a module; gives the arguments of all its calls, as they
    come."""
    real, calls = getattr(module, name), []

    def breaks(*args, **options):
        calls.append((args, options))
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(module, name, breaks)
    with suppress(KeyboardInterrupt):
        carry_out()
    assert len(calls) == at
    return calls


def table_bytes(run: Path) -> dict[str, bytes]:
    """The tables of a run."""
    return {file.name: file.read_bytes() for file in sorted((run / "tables").iterdir())}


def resumed(
    monkeypatch, module, name: str, at: int, carry_out, cut: Path, whole: Path, stored: int
) -> list[tuple]:
    """Interrupt the run in the folder `cut` (`cut_short`): it has so many results in its store, ends with the bytes of
    the whole run, and computes nothing when it is carried out once more; gives the arguments of all calls."""
    from headwise.runs import Store

    calls = cut_short(monkeypatch, module, name, at, carry_out)
    with Store(cut / "cells.sqlite") as store:
        assert len(store) == stored
    carry_out()
    ended, before = table_bytes(cut), table_bytes(whole)
    assert ended.keys() == before.keys()
    assert [name for name in before if ended[name] != before[name]] == []
    computed = len(calls)
    carry_out()
    assert len(calls) == computed
    return calls


def assert_same_again(run, *models, steps="all") -> None:
    """`verify`: so many steps of a run that are computed again, and all of its tables, are the same to the bit."""
    from headwise.studies.verify import verify

    found = verify(run.path, steps=steps, workbench=bench_of(*models))
    number = len(run.calls) if steps == "all" else steps
    assert [one.message for one in found] == ["identical"] * (number + len(table_bytes(run.path))), found


def assert_figures(run: Path, *names: str) -> None:
    """A run has these figures in every format, and none of them is empty."""
    for name in names:
        for kind in ("png", "svg", "pdf"):
            assert (run / f"figures/{name}.{kind}").stat().st_size > 5_000, (name, kind)
