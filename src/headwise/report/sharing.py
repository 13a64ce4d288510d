"""Runs on the Hugging Face hub: `headwise push RUN owner/name`, and `hw.open_run("hf://owner/name")`.

A run is a dataset repository with the files of its folder. What comes from the hub is a folder that somebody sent:
it is read with the same limits as any other, and nothing in it is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwise.bounded import regular
from headwise.errors import HeadwiseError, first_line
from headwise.files import user_path
from headwise.report.page import shown_of
from headwise.runs.reader import RunReader

SCHEME = "hf://"
FILES = ("run.json", "cells.sqlite", "report.html", "tables/*.parquet", "figures/*")
"""What is sent and fetched; a run folder has nothing else that belongs to it."""
MOST_BYTES = 4 * 2**30
"""The largest run that is fetched."""
_ADDRESS = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def push(run: str | Path, to: str, *, private: bool = False) -> str:
    """Upload the run folder as the dataset repository `to` ("owner/name"), which is made if it is not there.

    Everybody who may read the repository sees the prompts, settings and command of the run. Returns its address.
    """
    reader = RunReader(user_path(run))
    if reader.info["status"] == "running":
        raise HeadwiseError(f"the run {reader.path} is not finished; start it again to its end, then push it")
    _check_address(to)
    sent = sorted(path for pattern in FILES for path in reader.path.glob(pattern))
    for path in sent:
        regular(path, root=reader.path)
    from huggingface_hub import CommitOperationAdd, HfApi

    files: list[tuple[str, Path | bytes]] = [(str(path.relative_to(reader.path)), path) for path in sent]
    files.append(("README.md", card(reader, to).encode()))
    with _explained(to):
        hub = HfApi()
        hub.create_repo(to, repo_type="dataset", private=private, exist_ok=True)
        additions = [CommitOperationAdd(name.replace("\\", "/"), content) for name, content in files]
        hub.create_commit(to, additions, commit_message=f"headwise {reader.study}", repo_type="dataset")
    return SCHEME + to


def fetched(address: str) -> Path:
    """The local folder of `hf://owner/name` or `hf://owner/name@revision`, downloaded where it is not there yet."""
    to, _, revision = address.removeprefix(SCHEME).partition("@")
    _check_address(to)
    from huggingface_hub import HfApi, constants, snapshot_download

    options: dict[str, Any] = {"repo_type": "dataset", "revision": revision or None}
    with _explained(to):
        found = HfApi().dataset_info(to, revision=options["revision"], files_metadata=True)
        size = sum(file.size or 0 for file in found.siblings or ())
        if size > MOST_BYTES:
            raise HeadwiseError(
                f"{SCHEME}{to} has {size / 2**30:.1f} GiB; a run may have up to {MOST_BYTES / 2**30:.0f}. Download it "
                "yourself and open the folder"
            )
        # A folder of its own and not the hub's cache, whose files are links: a run is made of plain files.
        folder = Path(constants.HF_HOME) / "headwise-runs" / f"{to.replace('/', '--')}-{found.sha}"
        options["revision"] = found.sha
        snapshot_download(to, allow_patterns=list(FILES), local_dir=folder, **options)
    return folder


def card(reader: RunReader, to: str) -> str:
    """The front page of the repository: what was asked of which models, and what was found."""
    findings = [finding.sentence for finding in shown_of(reader).findings]
    return "\n".join(
        [
            "---\ntags:\n- headwise\n---",
            f"# {reader.question}\n",
            f"Models: {', '.join(reader.models)}. A run of the study `{reader.study}`.\n",
            *(f"- {sentence}" for sentence in findings),
            f'\n```python\nimport headwise as hw\n\nrun = hw.open_run("{SCHEME}{to}")\n```\n',
        ]
    )


def _check_address(to: str) -> None:
    if not _ADDRESS.fullmatch(to):
        raise HeadwiseError(f"{to!r} is no repository of the hub; expected owner/name, such as ana/ioi-heads")


@contextmanager
def _explained(to: str) -> Iterator[None]:
    """What the hub refuses, in one sentence."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled:
        raise HeadwiseError(
            f"{SCHEME}{to} is on the hub, and HF_HUB_OFFLINE forbids to ask it; unset it, or open a local folder"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "?"
        advice = {
            401: "log in with `hf auth login`",
            403: "the token may not write there",
            404: "no such repository; check owner and name, and log in if it is private",
        }
        raise HeadwiseError(
            f"the hub answered {status} for {to}: {advice.get(status, first_line(error))}"
        ) from None
    except OSError as error:
        raise HeadwiseError(f"the hub could not be reached for {to}: {first_line(error)}") from None
