"""How fast the live explorer answers: clicks in a real browser, frames of a drag, memory of a long prompt.

    python benchmarks/explore.py [--only clicks paint maps memory long] [--threads 2]
    python benchmarks/explore.py --server-only --device cuda

Times of a click are taken inside the page: from the pointer's release to the next frame after the new next-token
distribution is in the page, and to the first token of the new continuation. The explorer of these clicks is the command
`headwise explore` in a process of its own, and nothing polls the page meanwhile. With `--server-only` there is no
browser: times are from sending the request to receiving the event. Each part is written to
`results/explore-DEVICE.json` as soon as it is done.
"""

from __future__ import annotations

import argparse
import gc
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import torch

import headwise as hw
from common import RESULTS, about, write
from headwise.explorer.explorer import Explorer
from headwise.model.model import Model
from jobs.shapes import random_model, word_tokenizer

CLICKS = 50
PROMPT = (
    "When Mary and John went to the store to buy some milk and bread, they met a friend near the door. After a talk, "
    "John gave the milk to"
)
"""32 tokens."""
BARS = {"next_median_ms": 200, "next_p95_ms": 500, "token_median_ms": 400}
SERVER_BARS = {"next_median_ms": 50}
_TIMES = """() => {
  window.times = []; let from = 0, settle;
  document.getElementById("map").addEventListener("pointerup", () => {
    from = performance.now(); window.times.push({}); window.settled = new Promise((done) => { settle = done; });
  }, true);
  const after = (name, then) => {
    const began = from, entry = window.times.at(-1);
    if (entry) requestAnimationFrame(() => { entry[name] ??= performance.now() - began; then?.(); });
  };
  document.addEventListener("headwise:next", () => after("next"));
  document.addEventListener("headwise:token", (event) => { if (event.detail.side === "gated") after("token"); });
  document.addEventListener("headwise:done", () => after("done", settle));
}"""
_FRAMES = """() => {
  window.frames_ = [];
  const tick = (now) => { window.frames_.push(now); window.counting = requestAnimationFrame(tick); };
  window.counting = requestAnimationFrame(tick);
}"""


def spread(values: list[float], name: str) -> dict[str, float]:
    """Median and 95th percentile in milliseconds."""
    return {
        f"{name}_median_ms": round(float(np.median(values)), 1),
        f"{name}_p95_ms": round(float(np.percentile(values, 95)), 1),
        f"{name}_n": len(values),
    }


@contextmanager
def served(model: Model) -> Iterator[Explorer]:
    explorer = Explorer(model)
    explorer.serve()
    try:
        yield explorer
    finally:
        explorer.stop()


@contextmanager
def browsing() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser.new_context(viewport={"width": 1280, "height": 900})
        browser.close()


def until(page: Any, expression: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        if time.monotonic() > deadline:
            raise TimeoutError(expression)
        page.wait_for_timeout(5)


@contextmanager
def command(model: Model) -> Iterator[str]:
    """The address of `headwise explore` in a process of its own."""
    asked = [
        "explore",
        "smollm2",
        "--no-browser",
        "--device",
        str(model.device),
        "--dtype",
        dtype_name(model),
    ]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(
        [sys.executable, "-m", "headwise", *asked],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **threads},
    )
    try:
        assert process.stdout is not None
        yield next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def dtype_name(model: Model) -> str:
    return str(model.dtype).removeprefix("torch.")


def opened(context: Any, url: str) -> Any:
    page = context.new_page()
    page.goto(url)
    until(page, "window.headwise !== undefined && document.getElementById('busy').hidden")
    return page


# ---- parts ---------------------------------------------------------------------------------------------------


def clicks(model: Model) -> dict[str, Any]:
    """Random heads of the bundled model, one click after another, each when the text of the one before is there."""
    draw = np.random.default_rng(0)
    heads = model.heads()
    with command(model) as url, browsing() as context:
        page = opened(context, url)
        page.fill("#prompt", PROMPT)
        page.wait_for_timeout(600)
        until(page, "document.getElementById('busy').hidden")
        page.evaluate(_TIMES)
        for _ in range(CLICKS):
            head = heads[draw.integers(len(heads))]
            page.locator("#map").scroll_into_view_if_needed()
            spot = page.evaluate(f"window.headwise.map.middle({head.layer}, {head.head})")
            page.mouse.click(*spot)
            page.evaluate("() => window.settled")
        times = page.evaluate("window.times")
    tokens = len(model.tokens(PROMPT))
    found = spread([t["next"] for t in times], "next") | spread(
        [t["token"] for t in times if "token" in t], "token"
    )
    return {"prompt_tokens": tokens, "bars": BARS, **found}


def paint(model: Model) -> dict[str, Any]:
    """From the loaded model to the first paint, and to the map on the page."""
    with browsing() as context:
        began = time.perf_counter()
        with served(model) as explorer:
            listening = time.perf_counter()
            page = context.new_page()
            page.goto(explorer.url)
            until(page, "window.headwise !== undefined && window.headwise.map.frames > 0")
            ready = time.perf_counter()
            first = page.evaluate("performance.getEntriesByType('paint').map(e => [e.name, e.startTime])")
    serving = 1000 * (listening - began)
    return {
        "bar_ms": 1000,
        "server_ms": round(serving, 1),
        "first_paint_ms": round(serving + min(at for _, at in first), 1),
        "map_ms": round(1000 * (ready - began), 1),
    }


def maps(_: Model) -> dict[str, Any]:
    """Frames per second while a rectangle is dragged over the map, for models of 1,024 and 4,096 heads."""
    found: dict[str, Any] = {"bar_fps": 30}
    for size in (32, 64):
        shape = {
            "width": 2 * size,
            "inner": 64,
            "layers": size,
            "heads": size,
            "keys": size,
            "vocabulary": 50,
        }
        hf = random_model(shape, "cpu", torch.float32)
        small = hw.load(hf, tokenizer=word_tokenizer(), name=f"{size}x{size}", device="cpu")
        with served(small) as explorer, browsing() as context:
            page = opened(context, explorer.url)
            page.locator("#map").scroll_into_view_if_needed()
            corner, end = (page.evaluate(f"window.headwise.map.middle({at}, {at})") for at in (0, size - 1))
            page.mouse.move(*corner)
            page.mouse.down()
            page.evaluate(_FRAMES)
            page.mouse.move(*end, steps=120)
            page.mouse.move(*corner, steps=120)
            stamps = np.array(page.evaluate("(cancelAnimationFrame(window.counting), window.frames_)"))
            page.mouse.up()
        gaps = np.diff(stamps)
        fps = 1000 * len(gaps) / float(stamps[-1] - stamps[0])
        found[f"{size}x{size}"] = {"fps": round(fps, 1), "worst_frame_ms": round(float(gaps.max()), 1)}
    return found


def memory(model: Model) -> dict[str, Any]:
    """Resident memory above the loaded model while a prompt of 8,192 tokens less the new ones is explored."""
    words = model.tokens("The cat sat on the mat and the dog lay by the door. " * 580)[: 8192 - 8]
    prompt = model.text.decode(words)
    found: dict[str, Any] = {"bar_mb": 1000}
    with served(model) as explorer:
        ask(explorer, "run", prompt=PROMPT, new_tokens=2)
        gc.collect()
        for name, body in {
            "run": {"new_tokens": 4, "gates": [[3, 1, 0.0], [20, 2, 0.5]]},
            "head": {"head": "L20H2", "gates": [[3, 1, 0.0]]},
        }.items():
            with peak_rss() as peak:
                began = time.perf_counter()
                events = ask(explorer, name, prompt=prompt, **body)
            assert events[-1][1]["event"] in ("done", "rows"), events[-1][1]
            found[name] = {
                "above_model_mb": round(peak[0] / 1e6),
                "seconds": round(time.perf_counter() - began, 1),
            }
    return {"prompt_tokens": len(model.tokens(prompt)), **found}


def long(model: Model) -> dict[str, Any]:
    """A click on a prompt of 512 and of 2,048 tokens, at the server: what a kept residual stream could save."""
    found: dict[str, Any] = {}
    for tokens in (512, 2048):
        ids = model.tokens("The cat sat on the mat and the dog lay by the door. " * 200)[:tokens]
        prompt = model.text.decode(ids)
        with served(model) as explorer:
            ask(explorer, "run", prompt=prompt, new_tokens=1)
            found[str(tokens)] = {
                place: round(1000 * median_next(explorer, prompt, layer, 3), 1)
                for place, layer in (("first_layer_ms", 0), ("middle_layer_ms", 15), ("last_layer_ms", 29))
            }
    return found


def median_next(explorer: Explorer, prompt: str, layer: int, times: int) -> float:
    seconds = []
    for head in range(times):
        events = ask(explorer, "run", prompt=prompt, new_tokens=1, gates=[[layer, head, 0.0]])
        seconds += [at for at, event in events if event["event"] == "next"]
    return float(np.median(seconds))


def server(model: Model) -> dict[str, Any]:
    """The same clicks without a browser: from the request to the event."""
    draw, heads = np.random.default_rng(0), model.heads()
    gates: dict[tuple[int, int], float] = {}
    nexts, tokens = [], []
    with served(model) as explorer:
        for _ in range(3):
            ask(explorer, "run", prompt=PROMPT, new_tokens=8, gates=[[0, 0, 0.0]])
        for _ in range(CLICKS):
            head = heads[draw.integers(len(heads))]
            gates = {k: v for k, v in gates.items() if k != head} if head in gates else {**gates, head: 0.0}
            body = [[layer, at, gate] for (layer, at), gate in gates.items()]
            events = ask(explorer, "run", prompt=PROMPT, new_tokens=8, gates=body)
            nexts.append(1000 * next(at for at, event in events if event["event"] == "next"))
            tokens += [1000 * at for at, event in events if event["event"] == "token"][:1]
    return {
        "prompt_tokens": len(model.tokens(PROMPT)),
        "bars": SERVER_BARS,
        **spread(nexts, "next"),
        **spread(tokens, "token"),
    }


# ---- help ----------------------------------------------------------------------------------------------------


def ask(explorer: Explorer, name: str, **body: Any) -> list[tuple[float, dict[str, Any]]]:
    """The events of one request, each with the seconds after which it came."""
    connection = http.client.HTTPConnection("127.0.0.1", explorer.server.port, timeout=600)
    began = time.perf_counter()
    content = json.dumps({"tab": "bench", **body})
    connection.request("POST", f"/{explorer.token}/api/{name}", content, {"content-type": "application/json"})
    answer, events = connection.getresponse(), []
    assert answer.status == 200, answer.read()
    while line := answer.readline():
        if line.startswith(b"data: "):
            events.append((time.perf_counter() - began, json.loads(line[6:])))
    connection.close()
    return events


@contextmanager
def peak_rss() -> Iterator[list[int]]:
    """The most resident memory above what was resident before, in bytes, sampled every 10 ms."""
    process, peak, ended = psutil.Process(), [0], threading.Event()
    before = process.memory_info().rss

    def sample() -> None:
        while not ended.wait(0.01):
            peak[0] = max(peak[0], process.memory_info().rss - before)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


PARTS = {"clicks": clicks, "paint": paint, "maps": maps, "memory": memory, "long": long, "server": server}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--clicks", type=int, default=CLICKS)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=None)
    parser.add_argument("--server-only", action="store_true", help="no browser: times at the server")
    given = parser.parse_args()
    globals()["CLICKS"] = given.clicks
    if given.threads:
        torch.set_num_threads(given.threads)
    model = hw.load("smollm2", device=given.device, dtype=given.dtype)
    path = RESULTS / f"explore-{torch.device(given.device).type}.json"
    kept = json.loads(path.read_text(encoding="utf-8")).get("parts", {}) if path.exists() else {}
    wanted = given.only or (["server", "long"] if given.server_only else list(PARTS))
    for name in wanted:
        kept[name] = PARTS[name](model)
        print(name, json.dumps(kept[name]), flush=True)
        write(path, {**about(given.device, model.dtype), "parts": kept})
    print(json.dumps({**about(given.device, model.dtype), "parts": kept}))


if __name__ == "__main__":
    main()
