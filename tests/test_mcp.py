"""The MCP server, driven over its standard streams by a client of the official SDK."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
import pytest
from typer.testing import CliRunner

import headwise as hw
from headwise.cli.app import app
from headwise.errors import HeadwiseError
from headwise.model.verify.tiny import tiny_model
from headwise.tasks.builtin.induction import WORDS
from helpers import make_word_tokenizer

pytest.importorskip("mcp", reason="the MCP SDK is not installed: pip install 'headwise[mcp]'")
anyio = pytest.importorskip("anyio")

GALLERY = Path(__file__).parent.parent / "gallery"
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
        told = []

        async def progress(seconds, total, message):
            told.append((seconds, message))

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
            assert found["rows"][0]["head"] == f"L{int(top['layer'])}H{int(top['head'])}"
            assert found["rows"][0]["score"] == pytest.approx(top["score"], rel=1e-4)
            assert (found["of"], found["n"], found["notices"]) == (270, 16, [])
            assert told[0][1] == "0 s, 0 steps done"  # at once, and never less than before
            assert [seconds for seconds, _ in told] == sorted({seconds for seconds, _ in told})

            card = await answer(client, "card", head=found["rows"][0]["head"], task="ioi", n=4)
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
            assert any("wrong answer" in words for words in card["words"])
            measured = await answer(client, "measure", task="ioi", ablate=HEADS, n=32, controls=3)
            lost = hw.measure(smollm2, test, ablate=HEADS, progress=False)
            assert measured["effect"] == pytest.approx(lost.effects.mean(), rel=1e-4)
            assert (len(measured["controls"]), measured["as_good"]) == (3, 0)
            verdict = await answer(client, "certify", task="ioi", heads=HEADS, n=32)
            same = hw.certify(smollm2, test, HEADS, quick=True, progress=False)
            assert (verdict["verdict"], verdict["sentence"]) == (same.verdict, same.sentence)

            few = {"task": "ioi", "n": 8, "reference": "zero"}
            for _ in range(
                2
            ):  # a sentence that headwise says once is said in every answer that it is true of
                edges = await answer(client, "edges", into=["L23H3"], top=5, **few)
                assert "a lone edge needs" in edges["notices"][0]
            assert len(edges["rows"]) == 5
            lost = await answer(client, "measure", ablate=["L23H3"], task="ioi", n=8)
            assert lost["notices"] == [
                "heads are replaced by their mean output over 4 examples; a steady mean needs 16"
            ]
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


def test_every_tool_answers_on_a_small_model_with_the_numbers_of_python_and_every_notice(tmp_path):
    tokenizer, place = make_word_tokenizer(WORDS), tmp_path / "tiny"
    tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512).save_pretrained(place)
    tokenizer.save_pretrained(place)
    model = hw.load(place, device="cpu")
    find, test = hw.task("induction", 24, model=model).halves()
    few = "heads are replaced by their mean output over 12 examples; a steady mean needs 16"
    options = {"task": "induction", "n": 24}

    async def session():
        async with connected("--model", f"tiny={place}", "--device", "cpu") as client:
            preview = await answer(client, "task_preview", task="induction", n=8)
            assert len(preview["examples"]) == 3
            for reference, notices in (("zero", []), ("mean", [few])):
                found = await answer(
                    client, "edges", into=["L3H1"], method="exact", reference=reference, **options
                )
                here = hw.edges(model, find, "exact", into="L3H1", reference=reference, progress=False)
                largest = here.top(1).table().iloc[0]
                assert found["rows"][0]["sender"] == largest["sender"]
                assert found["rows"][0]["score"] == pytest.approx(largest["score"], rel=1e-4)
                assert [said for said in found["notices"] if "steady mean" in said] == notices
                card = await answer(client, "card", head="L3H1", half="find", reference=reference, **options)
                same = hw.card(model, "L3H1", find, reference=reference, progress=False).table("scores")
                scores = [row["score"] for row in card["tables"]["scores"]]
                assert scores == pytest.approx(same["score"].tolist(), rel=1e-4)
                assert (card["n"], card["reference"], card["half"]) == (12, reference, "find")
            lost = await answer(client, "measure", keep=[], controls=1, reference="patch", **options)
            plain = hw.measure(model, test, keep=[], reference="patch", progress=False)
            assert lost["effect"] == pytest.approx(plain.effects.mean(), rel=1e-4)
            kept = await answer(client, "measure", keep=["L3H1", "L0H2"], controls=4, **options)
            assert kept["as_good"] == sum(left <= kept["effect"] for left in kept["controls"])  # less is lost
            gone = await answer(client, "measure", ablate=["L3H1", "L0H2"], controls=4, **options)
            assert gone["as_good"] == sum(lost >= gone["effect"] for lost in gone["controls"])
            assert (kept["keep"], kept["ablate"], gone["ablate"]) == (
                ["L3H1", "L0H2"],
                None,
                ["L3H1", "L0H2"],
            )
            verdict = await answer(client, "certify", heads=["L3H1", "L0H2"], **options)
            same = hw.certify(model, test, ["L3H1", "L0H2"], quick=True, progress=False)
            assert verdict["sentence"] == same.sentence
            assert few in verdict["notices"]
            texts = await answer(client, "generate", prompts=["red blue"], max_new_tokens=2)
            assert len(texts["texts"]) == 1

    anyio.run(session)


@pytest.mark.slow
@pytest.mark.bundled
def test_numbers_of_the_gallery_come_out_of_the_tools():
    """The calls of the section "The same numbers by other ways" of gallery/README.md; the files were made on a GPU."""
    edges = pd.read_csv(GALLERY / "wiring" / "smollm2-edges.csv").query("model == 'smollm2'")
    groups = pd.read_csv(GALLERY / "backups" / "smollm2-groups.csv")
    circuits = pd.read_csv(GALLERY / "circuits" / "circuits.csv").query("model == 'smollm2'")

    async def session():
        async with connected("--device", "cpu") as client:
            found = await answer(
                client,
                "edges",
                **{"task": "ioi", "into": ["logits", "L24H4.Q"], "out_of": ["L23H3", "L29H1", "L24H4"]},
                **{"method": "exact", "reference": "patch", "n": 32, "half": "test"},
            )
            assert found["of"] == 4
            for row in found["rows"]:
                (known,) = edges[
                    (edges["sender"] == row["sender"]) & (edges["receiver"] == row["receiver"])
                ].itertuples()
                assert row["score"] == pytest.approx(known.score, abs=0.002)
                assert (row["lo"], row["hi"]) == pytest.approx((known.lo, known.hi), abs=0.002)
            group = groups[groups["heads"] == "L19H2 L20H0 L24H4"].iloc[0]
            lost = await answer(client, "measure", task="ioi", ablate=group["heads"].split(), n=128)
            assert lost["effect"] == pytest.approx(group["joint"], abs=0.002)
            nothing = await answer(client, "measure", task="greater_than", keep=[], n=160, reference="patch")
            known = circuits[(circuits["task"] == "greater_than") & (circuits["reference"] == "patch")].iloc[
                0
            ]
            assert nothing["effect"] == pytest.approx(known["effect"], abs=0.002)

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
        ("edges", {"into": ["L1H1"], "task": "ioi", "positions": "last"}),  # edges have no such argument
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
                assert "pydantic" not in text
                assert "missing-model" not in text, (
                    "the arguments were not refused before the model was loaded"
                )
            with pytest.raises(MCPError):
                await client.read_resource("headwise://runs/..%2F..%2Fetc/report")
            done = await client.call_tool("score", {"task": "ioi", "refrence": "zero"})
            assert "unknown argument of score 'refrence'; did you mean 'reference'?" in done.content[0].text
            done = await client.call_tool("edges", {"task": "ioi", "into": "logits", "n": 160})
            text = done.content[0].text
            assert "into = 'logits'" in text
            assert "n = 160" in text
            assert "128" in text
            for tool in (await client.list_tools()).tools:
                assert tool.input_schema["additionalProperties"] is False
                assert tool.description
            done = await client.call_tool("score", {"task": "ioi", "n": 8})  # all is right but the model
            assert done.is_error
            assert "missing-model" in done.content[0].text
            assert (await answer(client, "list_models"))["models"][0]["loaded"] is False

    anyio.run(session)


def test_the_sdk_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "headwise.mcp.server", raising=False)
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
