"""COMET through the `comet-score` program of unbabel-comet, which lives in an environment of its own.

The package pins old versions of numpy and transformers, so it cannot be imported beside headwise; texts go over as
files, and a score per text comes back. `docs/masking.md` says how to set it up.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from headwise.errors import HeadwiseError
from headwise.files import user_path
from headwise.metrics.text import register_text

PROGRAM, CHECKPOINT = "HEADWISE_COMET", "HEADWISE_COMET_MODEL"
"""Environment variables: the program, by default `comet-score` on PATH; the checkpoint, a file or a name."""
_DEFAULT_CHECKPOINT = "Unbabel/wmt22-comet-da"
_LAST_LINES = 4


def program() -> str:
    """The path of `comet-score`, or an error that says how to get it."""
    setting = os.environ.get(PROGRAM)
    path = shutil.which(setting or "comet-score")
    if path is None:
        where = f"{PROGRAM} is {setting!r}, and no program is there" if setting else "it is not on PATH"
        raise HeadwiseError(
            f"the metric 'comet' needs the program comet-score, and {where}; install unbabel-comet into an "
            f"environment of its own (docs/masking.md) and set {PROGRAM} to its bin/comet-score"
        )
    return path


def checkpoint() -> str:
    """The file of the COMET model, found without the network."""
    from huggingface_hub import try_to_load_from_cache

    name = os.environ.get(CHECKPOINT, _DEFAULT_CHECKPOINT)
    path = user_path(name)
    if path.is_file():
        if not (path.absolute().parents[1] / "hparams.yaml").is_file():
            raise HeadwiseError(
                f"the COMET checkpoint {name} has no hparams.yaml in the folder above its own; give the .ckpt file of "
                "a complete model folder"
            )
        return str(path.absolute())
    try:
        cached = try_to_load_from_cache(name, "checkpoints/model.ckpt")
    except ValueError:  # not a name that the hub could have
        cached = None
    if not isinstance(cached, str):
        raise HeadwiseError(
            f"the metric 'comet' needs a model, and {name!r} is neither a .ckpt file nor in the hub's cache; fetch it "
            f"once (hf download {_DEFAULT_CHECKPOINT}), or set {CHECKPOINT} to a checkpoint file"
        )
    return cached


def check() -> None:
    """Raise before any text is written if the program or its model is missing."""
    program()
    checkpoint()


@register_text(
    "comet",
    against=("both",),
    check=check,
    about="COMET score with the full model's text as reference and the gold answer as source (comet-score)",
)
def comet(texts: list[str], gold: list[str], full: list[str]) -> np.ndarray:
    """Rei et al. 2020 (arXiv 2009.09025). Source = gold answer, hypothesis = text, reference = full model's text."""
    if not texts:
        return np.zeros(0)
    with tempfile.TemporaryDirectory(prefix="headwise-comet-") as folder:
        for name, lines in (("sources", gold), ("texts", texts), ("references", full)):
            # The program reads a text per line, so every kind of line end inside a text becomes a space.
            content = "".join(" ".join(line.split()) + "\n" for line in lines)
            Path(folder, name).write_text(content, encoding="utf-8")
        _run(folder)
        try:
            (rows,) = json.loads(Path(folder, "scores.json").read_text(encoding="utf-8")).values()
            values = np.array([float(row["COMET"]) for row in rows])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HeadwiseError(f"comet-score left no scores that can be read: {error}") from None
    if len(values) != len(texts):
        raise HeadwiseError(f"comet-score gave {len(values)} scores for {len(texts)} texts")
    return values


def _run(folder: str) -> None:
    files = ["-s", "sources", "-t", "texts", "-r", "references", "--to_json", "scores.json"]
    command = [program(), *files, "--model", checkpoint(), "--gpus", "0", "--quiet"]
    # Its own libraries must not be shadowed by those of the environment that headwise runs in.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(  # noqa: S603 the program that the user named
        command, cwd=folder, env=inherited, capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = " ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
        raise HeadwiseError(f"comet-score ended with status {done.returncode}: {reason}")
