"""headwise beside TransformerLens, nnsight, pyvene and a loop of hooks: the same work on the same inputs, in turns.

    make bench                                                     an environment for the peers, then everything
    python benchmarks/peers.py [--device cuda] [--jobs a,d,e]      some jobs
    python benchmarks/peers.py --jobs shapes --device cuda         random weights of larger shapes, in bfloat16

    a  exact ablation of every head          e  keep-only curve           h        attention profile, long text
    b  attribution, integrated gradients     f  one update of the gates   shapes   (a) on larger shapes
    c  adaptive exact scores                 g  text under 40 masks       startup  --help and check
    d  0..50 ablation curve, three orders

Every way does a piece of its work in turn, so that a busy machine slows all alike. Peers get frozen weights, prompts of
equal length, their best batch size, and run both with all logits and with the last token's alone; the ratio is to
the fastest of all. What costs a peer the same for each head or mask is run on a share of them and scaled up:
`share_run`. Values must agree to 1e-3. Results are saved after every job; a file that is there keeps its other jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts tensors, talks otherwise

import torch

from bench import FILES, Bench, report
from common import RESULTS, about, write
from jobs.ablation import ablation
from jobs.adaptive import adaptive
from jobs.curves import kept, masked
from jobs.gates import gates
from jobs.gradients import gradients
from jobs.profiles import profiles
from jobs.shapes import SHAPES, shapes
from jobs.startup import startup
from jobs.texts import texts

JOBS = {
    "a": ("exact ablation of every head", ablation),
    "b": ("attribution and integrated gradients", gradients),
    "c": ("every head to ± 0.1", adaptive),
    "d": ("0..50 ablation curve, three orders", masked),
    "e": ("keep-only curve", kept),
    "f": ("an update of learned gates", gates),
    "g": ("text under masks", texts),
    "h": ("attention profile of a long text", profiles),
    "shapes": ("exact ablation on larger shapes", shapes),
    "startup": ("start-up of the command line", startup),
}
DEFAULT_JOBS = {"cpu": "startup,a,b,d,e,g,c,f,h", "cuda": "a,b,d,e,g,c,shapes"}

# Default sizes, modest enough for about a quarter of an hour on two cores, and for five minutes on a GPU.
SIZES: dict[str, dict[str, Any]] = {
    "examples": {"cpu": 16, "cuda": 16, "help": "prompts of a, b, d, e"},
    "layers": {"cpu": 15, "cuda": 30, "help": "layers whose heads ours ablates in a"},
    "peer_layers": {"cpu": 3, "cuda": 6, "help": "the same for a peer"},
    "memory_tokens": {"cpu": 2048, "cuda": 4096, "help": "budget of the memory part of a"},
    "steps": {"cpu": 5, "cuda": 5, "help": "of integrated gradients"},
    "peer_every": {"cpu": 8, "cuda": 4, "help": "a peer runs each so-manieth set of d and e"},
    "masks": {"cpu": 40, "cuda": 40, "help": "of g"},
    "text_prompts": {"cpu": 16, "cuda": 16, "help": "of g"},
    "text_tokens": {"cpu": 12, "cuda": 16, "help": "of g"},
    "text_alone": {"cpu": 1, "cuda": 1, "help": "masks that the loop over prompts runs"},
    "equal": {"cpu": 0, "cuda": 0, "help": "prompts whose texts are compared with transformers' own, in g"},
    "adaptive_examples": {"cpu": 256, "cuda": 256, "help": "of c"},
    "exhaustive_examples": {"cpu": 32, "cuda": 256, "help": "of c, for running everything"},
    "exhaustive_layers": {"cpu": 3, "cuda": 10, "help": "of c, for running everything"},
    "gate_updates": {"cpu": 5, "cuda": 8, "help": "of f"},
    "long_tokens": {"cpu": 8192, "cuda": 8192, "help": "of h"},
    "long_layers": {"cpu": 3, "cuda": 30, "help": "of h"},
    "shape_examples": {"cpu": 4, "cuda": 16, "help": "prompts of the job shapes"},
    "shape_layers": {"cpu": 2, "cuda": 8, "help": "layers that ours runs there"},
    "shape_passes": {"cpu": 4, "cuda": 24, "help": "heads that the hook loop runs there"},
}


def arguments_of(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="smollm2", help="a bundled alias or a folder with safetensors")
    parser.add_argument("--jobs", help=f"of {','.join(JOBS)}")
    parser.add_argument("--peers", help=f"of {', '.join(FILES)}; all that are installed by default")
    parser.add_argument("--shapes", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--lengths", default="16,64,128", help="tokens of the job shapes")
    parser.add_argument("--threads", type=int, default=0, help="0 leaves it to torch")
    parser.add_argument("--out", type=Path, help="results file; peers-DEVICE.json by default")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=size["help"])
    found = parser.parse_args(given)
    kind = torch.device(found.device).type
    for name, size in SIZES.items():
        if getattr(found, name) is None:
            setattr(found, name, size[kind])
    found.jobs = (found.jobs or DEFAULT_JOBS[kind]).split(",")
    found.peers = found.peers.split(",") if found.peers else list(FILES)
    found.shapes = found.shapes.split(",") if found.shapes else [name for name in SHAPES if name != "tiny"]
    found.lengths = [int(length) for length in found.lengths.split(",")]
    for kind_of, asked, known in (
        ("job", found.jobs, JOBS),
        ("peer", found.peers, FILES),
        ("shape", found.shapes, SHAPES),
    ):
        strange = [one for one in asked if one not in known]
        if strange:
            parser.error(f"unknown {kind_of} {strange[0]!r}; there are {', '.join(known)}")
    return found


def main() -> None:
    arguments = arguments_of()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    path = arguments.out or RESULTS / f"peers-{torch.device(arguments.device).type}.json"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    bench = Bench(arguments)
    failed = []
    for letter in arguments.jobs:
        title, job = JOBS[letter]
        print(f"({letter}) {title}", flush=True)
        began = time.perf_counter()

        def keep(
            found: dict[str, Any], letter: str = letter, title: str = title, began: float = began
        ) -> None:
            result.update(about(bench.device, bench.dtype))
            result["model"] = arguments.model
            result["matrix_rate"] = bench.rate
            result["left_out"] = bench.missing
            told = {"title": title, "date": result["date"], "wall_s": time.perf_counter() - began}
            result.setdefault("jobs", {})[letter] = told | found
            write(path, result)

        bench.keep = keep
        try:
            found = job(bench)
        except Exception as error:  # the other jobs' numbers must not be lost
            failed.append(f"{letter}: {type(error).__name__}: {error}")
            print(f"  failed: {failed[-1]}", flush=True)
            continue
        report(letter, found)
        if "ratio" in found:
            print(f"  ratio to the fastest peer: {found['ratio']:.2f}", flush=True)
        keep(found)
    if failed:
        raise SystemExit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
