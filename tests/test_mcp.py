"""The MCP server, driven over its standard streams by a client of the official SDK."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

import headwise as hw
from headwise.cli.app import app
from headwise.errors import HeadwiseError

pytest.importorskip("mcp", reason="the MCP SDK is not installed: pip install 'headwise[mcp]'")
anyio = pytest.importorskip("anyio")

HEADS = ["L23H3", "L20H0", "L29H1", "L17H4"]


@asynccontextmanager
async def connected(*arguments):
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "headwise", "mcp", *map(str, arguments)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    async with Client(stdio_client(parameters)) as client:
        yield client


async def answer(client, tool, **arguments):
    done = await client.call_tool(tool, arguments)
    assert not done.is_error, done.content[0].text
    return done.structured_content


@pytest.mark.slow
@pytest.mark.bundled
def test_a_client_goes_from_the_task_to_the_certificate_and_gets_the_numbers_of_python(smollm2, tmp_path):
    run = tmp_path / "runs" / "ioi"
    hw.run(
        "score", run, models=["smollm2"], tasks=["ioi"], methods=["attribution"], n=8, cards=0, progress=False
    )
    find, test = hw.task("ioi", 32, model=smollm2).halves()

    async def session():
        steps = []

        async def progress(done, total, message):
            steps.append(done)

        async with connected("--runs", tmp_path / "runs", "--device", "cpu") as client:
            listed = await answer(client, "list_models")
            assert [entry["name"] for entry in listed["models"]] == ["smollm2"]
            assert listed["runs"] == ["ioi"]
            preview = await answer(client, "task_preview", task="ioi", n=16)
            assert preview["accuracy"] > 0.8

            done = await client.call_tool("score", {"task": "ioi", "n": 32}, progress_callback=progress)
            found = done.structured_content
            here = hw.score(smollm2, find, "attribution", progress=False)
            top = here.table().nlargest(1, "score").iloc[0]
            assert found["heads"][0]["head"] == f"L{int(top['layer'])}H{int(top['head'])}"
            assert found["heads"][0]["score"] == pytest.approx(top["score"], rel=1e-4)
            assert (found["of"], found["n"]) == (270, 16)
            assert steps == sorted(steps)
            assert steps

            card = await answer(client, "card", head=found["heads"][0]["head"], task="ioi", n=4)
            assert card["tables"]["scores"]
            looked = card["tables"][
                "attention"
            ]  # of the position that predicts the answer, the largest first
            for example in {row["example"] for row in looked}:
                rows = [row for row in looked if row["example"] == example]
                assert len({row["query"] for row in rows}) == 1
                assert rows[0]["attention"] == max(row["attention"] for row in rows)
                assert rows[0]["query"] > 8
            answers = [row for row in card["tables"]["tokens"] if row["kind"] == "foil"]
            assert {row["example"] for row in answers} == {0, 1, 2, 3}
            assert any("wrong answer" in note for note in card["notes"])
            measured = await answer(client, "measure", task="ioi", ablate=HEADS, n=32, controls=3)
            lost = hw.measure(smollm2, test, ablate=HEADS, progress=False)
            assert measured["effect"] == pytest.approx(lost.effects.mean(), rel=1e-4)
            assert (len(measured["controls"]), measured["larger"]) == (3, 0)
            verdict = await answer(client, "certify", task="ioi", heads=HEADS, n=32)
            same = hw.certify(smollm2, test, HEADS, quick=True, progress=False)
            assert (verdict["verdict"], verdict["sentence"]) == (same.verdict, same.sentence)

            edges = await answer(client, "edges", into="L23H3", task="ioi", n=4, top=5)
            assert len(edges["tables"]["edges"]) == 5
            assert "a lone edge needs" in edges["notes"][0]
            texts = await answer(client, "generate", prompts=["The capital of France is"], max_new_tokens=4)
            assert "Paris" in texts["texts"][0]
            opened = await answer(client, "open_run", name="ioi", table="scores")
            assert opened["findings"] == [finding.sentence for finding in hw.open_run(run).findings]
            assert len(opened["rows"]) == 200
            page = await client.read_resource("headwise://runs/ioi/report")
            assert page.contents[0].text.startswith("<!doctype html>")

            # A call that takes minutes is given up after a second; the next one is then answered at once.
            with anyio.move_on_after(1):
                await client.call_tool(
                    "score", {"task": "ioi", "n": 512, "half": "all", "method": "ablation"}
                )
            with anyio.fail_after(30):
                again = await answer(
                    client, "generate", prompts=["The capital of France is"], max_new_tokens=1
                )
            assert again["texts"]

    anyio.run(session)


BAD_VALUES = [None, 5, -1, 1.5, True, "", "x" * 10_000, [], {}, ["L1H1"], "../../etc/passwd", "L1"]
TOOLS = {
    "score": {"task": "ioi", "n": 8},
    "certify": {"task": "ioi", "heads": ["L1H1"], "n": 8},
    "measure": {"task": "ioi", "ablate": ["L1H1"], "n": 8},
    "card": {"task": "ioi", "head": "L1H1", "n": 4},
    "open_run": {"name": "none"},
}


def malformed():
    """Fifty calls, each with one argument that cannot be right."""
    calls = [
        (tool, {**good, name: value}) for tool, good in TOOLS.items() for name in good for value in BAD_VALUES
    ]
    right = {("n", 5), ("head", "L1H1"), ("heads", ("L1H1",)), ("ablate", ("L1H1",))}

    def wrong(tool, arguments):
        changed = {name: value for name, value in arguments.items() if TOOLS[tool].get(name) != value}
        return bool(changed) and not any(
            (name, tuple(value) if isinstance(value, list) else value) in right
            or (name, value) in (("n", None), ("ablate", []))
            for name, value in changed.items()
            if not isinstance(value, dict)
        )

    calls = [call for call in calls if wrong(*call)]
    further = [
        ("score", {}),
        ("certify", {"task": "ioi"}),
        ("no_such_tool", {}),
        ("score", {"task": "hub:a/b"}),
        ("edges", {"into": "L1H1", "task": "ioi", "reference": "patch"}),  # edges have no such argument
    ]
    return [*further, *calls[:: max(1, len(calls) // 45)]][:50]


def test_fifty_malformed_calls_are_refused_in_words_without_loading_a_model(tmp_path):
    from mcp import MCPError

    calls = malformed()
    assert len(calls) == 50
    model = tmp_path / "missing-model"

    async def session():
        async with connected("--model", f"m={model}", "--runs", tmp_path) as client:
            for tool, arguments in calls:
                try:
                    done = await client.call_tool(tool, arguments)
                except MCPError as error:
                    text = str(error)
                else:
                    assert done.is_error, (tool, arguments)
                    text = done.content[0].text
                assert text, (tool, arguments)
                assert "Traceback" not in text
                assert "missing-model" not in text, (
                    "the arguments were not refused before the model was loaded"
                )
            with pytest.raises(MCPError):
                await client.read_resource("headwise://runs/..%2F..%2Fetc/report")
            done = await client.call_tool("score", {"task": "ioi", "n": 8})  # all is right but the model
            assert done.is_error
            assert "missing-model" in done.content[0].text
            assert (await answer(client, "list_models"))["models"][0]["loaded"] is False

    anyio.run(session)


def test_the_sdk_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    ended = CliRunner().invoke(app, ["mcp"])
    assert isinstance(ended.exception, HeadwiseError)
    assert "pip install 'headwise[mcp]'" in str(ended.exception)


def test_over_http_only_who_has_the_token_is_answered(tmp_path):
    """The server on a port of this machine, asked by the SDK's client and by a stranger."""
    from mcp.client import Client

    command = [sys.executable, "-m", "headwise", "mcp", "--port", "0", "--model", "missing-model"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        try:
            address = server.stderr.readline().partition(": ")[0]
            assert address.startswith("http://127.0.0.1:")

            async def session():
                async with Client(address) as client:
                    return await answer(client, "list_models")

            assert [entry["name"] for entry in anyio.run(session)["models"]] == ["missing-model"]
            stranger = address.replace(address.split("/")[3], "x" * 32)
            for url, headers in ((stranger, {}), (address, {"Origin": "http://evil.example"})):
                place = urlsplit(url)
                asked = HTTPConnection(place.netloc)
                asked.request("POST", place.path, "{}", {"Content-Type": "application/json", **headers})
                assert asked.getresponse().status == 403
        finally:
            server.terminate()
