"""A run goes to the hub and comes back: against a server of ours that answers as the hub does."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.report import sharing
from helpers import run_on, word_model, word_task
from planted import written

SHA = "a" * 40


class Hub(ThreadingHTTPServer):
    """Dataset repositories in memory."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}


class Answers(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, content, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": SHA, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        parts = urlparse(self.path).path.strip("/").split("/")
        text = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if parts == ["api", "repos", "create"]:
            asked = json.loads(text)
            repo = f"{asked.get('organization', 'ana')}/{asked['name']}"
            self.server.repos.setdefault(repo, {})
            self.server.private[repo] = asked.get("private") or asked.get("visibility") == "private"
            return self.answer(
                {"url": f"http://{self.headers['Host']}/datasets/{repo}", "name": repo, "id": repo}
            )
        if parts[-2:] == ["preupload", "main"]:
            files = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for file in json.loads(text)["files"]]  # fmt: skip
            return self.answer({"files": files})
        if parts[-2:] == ["commit", "main"]:
            repo = self.server.repos["/".join(parts[2:4])]
            for line in map(json.loads, text.splitlines()):
                if line["key"] == "file":
                    repo[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return self.answer({"commitOid": SHA, "commitUrl": f"http://{self.headers['Host']}/datasets/{'/'.join(parts[2:4])}/commit/{SHA}",
                                "commitMessage": "m", "success": True})  # fmt: skip
        return self.answer({})

    def do_GET(self):
        parts = urlparse(self.path).path.strip("/").split("/")
        names = parts[1:] if parts[0] == "api" else parts
        repo = "/".join(names[1:3])
        files = self.server.repos.get(repo)
        if files is None:
            return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        if "resolve" in names:
            content = files["/".join(names[5:])]
            return self.answer(content, ETag=f'"{hash(content):x}"')
        if "tree" in names:
            return self.answer([{"type": "file", "path": name, "size": len(content), "oid": SHA}
                                for name, content in files.items()])  # fmt: skip
        siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
        return self.answer({"id": repo, "sha": SHA, "siblings": siblings, "private": False, "tags": []})

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture
def hub():
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("hub")
    model = word_model("llama", name="tiny")
    file = written(word_task(8), place / "words.jsonl")
    run_on("score", place / "run", model, tasks=[file], n=8, methods=["attribution"], cards=0, progress=False)
    return place / "run"


def elsewhere(hub, home: Path, code: str, *arguments) -> subprocess.CompletedProcess[str]:
    """The code in a process whose hub is ours."""
    env = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0",
           "HF_HOME": str(home), "HF_TOKEN": "hf_abc", "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], env=env, capture_output=True, text=True
    )


def test_a_pushed_run_opens_elsewhere_with_the_same_tables_scores_and_findings(hub, run, tmp_path):
    push = "from headwise.cli.app import main; main()"
    done = elsewhere(hub, tmp_path, push, "push", run, "ana/heads", "--private")
    assert done.returncode == 0, done.stderr
    assert hub.private == {"ana/heads": True}
    sent, here = hub.repos["ana/heads"], hw.open_run(run)
    assert sent["cells.sqlite"] == (run / "cells.sqlite").read_bytes()
    assert not [name for name in sent if "lock" in name]
    for finding in here.findings:
        assert finding.sentence in sent["README.md"].decode()
    read = (
        "import headwise as hw, json; run = hw.open_run('hf://ana/heads');"
        "print(json.dumps([run.tables['scores'].score.tolist(), run.scores()[0].values.tolist(), run.warnings]))"
    )
    opened = elsewhere(hub, tmp_path, read)
    assert opened.returncode == 0, opened.stderr
    assert json.loads(opened.stdout) == [
        here.tables["scores"].score.tolist(),
        here.scores()[0].values.tolist(),
        [],
    ]


def test_what_is_not_there_too_large_or_no_address_is_said_in_a_sentence(hub, run, tmp_path):
    read = (
        "import headwise as hw\nfrom headwise.report import sharing\nsharing.MOST_BYTES = 2**20\n"
        "for name in ('ana/none', 'ana/large'):\n"
        "    try: hw.open_run('hf://' + name)\n"
        "    except hw.HeadwiseError as error: print(error)"
    )
    hub.repos["ana/large"] = {"cells.sqlite": b"0" * 2**21}
    none, large = elsewhere(hub, tmp_path, read).stdout.splitlines()
    assert "404" in none
    assert "owner and name" in none
    assert "GiB" in large
    with pytest.raises(HeadwiseError, match="owner/name"):
        hw.open_run("hf://../secrets")
    with pytest.raises(HeadwiseError, match="HF_HUB_OFFLINE"):
        sharing.push(run, "ana/heads")
