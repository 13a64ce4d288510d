"""Nothing here runs code from a file, opens a shell, or trusts a name."""

from __future__ import annotations

import ast
import re
import zipfile

import pytest

from headwise.errors import HeadwiseError
from headwise.model.load import bundled
from helpers import REPOSITORY

SOURCES = sorted((REPOSITORY / "src").rglob("*.py"))
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "tarfile"}
UNSAFE_CALLS = {
    "eval", "exec", "__import__", "os.system", "os.popen", "torch.load", "torch.save", "yaml.unsafe_load",
    "yaml.full_load", "pd.read_pickle", "pandas.read_pickle", "np.frombuffer", "ssl._create_unverified_context",
}  # fmt: skip


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def problems(tree: ast.AST) -> list[str]:
    """What must not stand in a file of ours."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            found += [f"imports {name}" for name in names if name.split(".")[0] in UNSAFE_MODULES]
        if not isinstance(node, ast.Call):
            continue
        name, given = dotted(node.func), {k.arg: k.value for k in node.keywords}
        if name in UNSAFE_CALLS:
            found.append(f"calls {name}")
        if name.endswith("np.load") and getattr(given.get("allow_pickle"), "value", None) is not False:
            found.append("np.load without allow_pickle=False")
        if name == "yaml.load" and "Loader" not in given:
            found.append("yaml.load without a loader")
        listed = isinstance(given.get("shell"), ast.List | ast.ListComp)  # heads: the shell of a circuit
        if "shell" in given and not listed and getattr(given["shell"], "value", True):
            found.append("a shell")
        trusts = given.get("trust_remote_code")
        if isinstance(trusts, ast.Constant) and trusts.value:
            found.append("trust_remote_code=True that nobody asked for")
    return found


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(REPOSITORY / "src/headwise")))
def test_a_file_of_ours_pickles_nothing_and_starts_no_shell(file):
    assert problems(ast.parse(file.read_text(encoding="utf-8"))) == []


def test_the_search_would_find_what_it_looks_for():
    bad = (
        "import pickle\nfrom joblib import load\nnp.load(x)\nnp.load(x, allow_pickle=True)\neval('1')\n"
        "subprocess.run(x, shell=True)\nyaml.load(x)\nos.system('x')\ntorch.load(f)\nf(trust_remote_code=True)\n"
    )
    assert len(problems(ast.parse(bad))) == 10
    assert (
        problems(ast.parse("np.load(x, allow_pickle=False)\nrun(x, shell=False)\nf(trust_remote_code=t)"))
        == []
    )


def test_ruffs_security_rules_are_on_for_the_package_and_each_exception_says_why():
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    rules = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in rules["select"]
    assert rules["per-file-ignores"]["src/**"] == ["S101"]  # assert states an invariant
    assert [rule for rule in rules["ignore"] if rule.startswith("S")] == [
        "S311",
        "SIM905",
    ]  # seeded numbers; words
    assert re.search(
        r"^lint:.*\n\t\$\(BIN\)/ruff check \.", (REPOSITORY / "Makefile").read_text(), re.MULTILINE
    )
    silenced = [
        (file.name, line.strip())
        for file in SOURCES
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"noqa: S\d", line)
    ]
    assert len(silenced) <= 7, silenced


def test_every_download_is_pinned_by_size_and_hash():
    for asset in bundled.aliases().values():
        assert re.fullmatch("[0-9a-f]{64}", asset.sha256)
        assert asset.size > 10**6
        assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", asset.requirement)
        assert asset.members


# --- archives ---------------------------------------------------------------------------------------------


def asset_of(members):
    return bundled.Asset("x", "X", "wheel-x==1.0", 1, "0" * 64, members, 1_000_000, "MIT", "here")


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "C:\\x", "a\\..\\..\\x"])
def test_a_member_whose_name_leads_out_of_the_folder_stops_everything(name, tmp_path):
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("good", "x")
        archive.writestr(name, "bad")
    with pytest.raises(HeadwiseError, match="unsafe name"):
        bundled._unpack(wheel, asset_of({"good": "good"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_member_that_unpacks_to_far_more_than_expected_is_not_unpacked(tmp_path):
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", b"\0" * 5_000_000)
    assert wheel.stat().st_size < 20_000
    with pytest.raises(HeadwiseError, match="unpacks to 5000000 bytes, where at most 1000000 were expected"):
        bundled._unpack(wheel, asset_of({"bomb": "bomb"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_link_in_an_archive_is_refused(tmp_path):
    wheel = tmp_path / "x.whl"
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(HeadwiseError, match="a link instead of the file"):
        bundled._unpack(wheel, asset_of({"link": "link"}), tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*")) if (tmp_path / "out").exists() else True


def test_a_damaged_member_is_a_sentence(tmp_path):
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", b"some bytes that compress, that compress" * 50)
    raw = bytearray(wheel.read_bytes())
    raw[45:60] = b"\xff" * 15
    wheel.write_bytes(raw)
    with pytest.raises(HeadwiseError, match="cannot be unpacked"):
        bundled._unpack(wheel, asset_of({"data": "data"}), tmp_path / "out")
