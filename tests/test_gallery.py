"""The numbers of the gallery hold together: shares have a width, circuits their ranking, pages the numbers of files."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from headwise.stats import share_interval
from helpers import REPOSITORY

GALLERY = REPOSITORY / "gallery"
PAGES = ["README.md", "gallery/README.md", "gallery/found.md", "docs/circuits.md", "docs/nested.md"]


@pytest.mark.parametrize(
    "file", sorted(GALLERY.glob("*/*.csv")), ids=lambda file: f"{file.parent.name}/{file.name}"
)
def test_no_share_is_certain(file):
    table = pd.read_csv(file)
    if "accuracy" in table.get("metric", pd.Series(dtype=str)).to_numpy():
        shares = table[(table["metric"] == "accuracy") & (table["draws"] == 1)]
        values = shares["value"]
    elif {"accuracy", "lo", "hi", "n"} <= set(table):
        shares = table[table["lo"].notna()]
        values = shares["accuracy"]
    else:
        return
    assert len(shares)
    for value, lo, hi, n in zip(values, shares["lo"], shares["hi"], shares["n"], strict=True):
        right = round(value * n)
        expected = [float(x) for x in share_interval(np.repeat([1.0, 0.0], [right, int(n) - right]))]
        assert [lo, hi] == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("page", PAGES)
def test_no_page_claims_certainty_of_a_share_or_that_heads_explain_more_than_a_mean(page):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    assert not re.search(r"\b(\d+) % \[\1, \1\]", text)
    assert not re.search(
        r"heads\s+(\([^)]*\)\s+)?explain\s+90\s%\s+of\s+(the\s+(effect|behaviour)|IOI)", text
    )
    assert "mean" in text
    assert "R²" in text


def test_every_ranking_that_a_circuit_was_measured_with_is_there_with_its_numbers():
    orders = pd.read_csv(GALLERY / "circuits/orders.csv").set_index(["model", "task", "reference"])["order"]
    refits = pd.read_csv(GALLERY / "circuits/refits.csv")
    first = refits[refits["fit"] == 0].set_index(["model", "task", "reference"])
    assert set(first.index) == set(orders.index)
    files = ("circuits", "qwen-circuits", "gemma-circuits")
    sizes = pd.concat(pd.read_csv(GALLERY / f"circuits/{name}.csv") for name in files)
    sizes = sizes[sizes["order"] == "nested"].set_index(["model", "task", "reference"])
    assert set(sizes.index) == set(orders.index)
    for key, row in first.iterrows():
        heads = orders[key].split()
        assert len(set(heads)) == len(heads) == row["of"]
        assert heads[: len(row["heads"].split())] == row["heads"].split()
        assert tuple(sizes.loc[key, ["stays", "stays_lo", "stays_hi"]]) == tuple(
            row[["stays", "stays_lo", "stays_hi"]]
        )
        assert row["r2_lo"] <= row["r2"] <= row["r2_hi"]


TASKS = {"Greater Than": "greater_than", "IOI": "ioi", "Docstring": "docstring", "IOI Long": "ioi_long"}
MODELS = {
    "SmolLM2": "smollm2",
    "sparse": "smollm2-sparse",
    "control": "smollm2-control",
    "Gemma": "gemma-3-270m-q4_k_m",
    "Qwen": "qwen2.5-coder-1.5b-instruct-q4_k_m",
}


def test_the_table_of_refits_on_the_page_is_that_of_the_file():
    page = (GALLERY / "README.md").read_text(encoding="utf-8")
    refits = pd.read_csv(GALLERY / "circuits/refits.csv")
    columns = ["model", "task", "reference"]
    seen, model = [], ""
    for line in re.findall(r"^\|.*\(\d\) \|.*$", page, re.M):
        first, task, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        model = MODELS[first] if first else model
        for reference, (size, fits, r2, within) in (("mean", cells[:4]), ("patch", cells[4:])):
            key = (model, TASKS[task], reference)
            mine = refits[(refits[columns] == key).all(axis=1)]
            one = mine[mine["fit"] == 0].iloc[0]
            assert _numbers(size) == list(one[["stays", "stays_lo", "stays_hi"]])
            least, *most, count = _numbers(fits)
            assert (least, *most) == tuple(sorted({mine["stays"].min(), mine["stays"].max()}))
            assert count == len(mine)
            assert _numbers(r2) == pytest.approx(list(one[["r2", "r2_lo", "r2_hi"]]), abs=0.06)
            assert _numbers(within) == pytest.approx([100 * one["within"]], abs=0.51)
            seen.append(key)
    assert sorted(seen) == sorted(set(refits[columns].itertuples(index=False, name=None)))


def _numbers(cell: str) -> list[float]:
    """
    >>> _numbers("−.75 [−1.37, −.31]"), _numbers("8–10 (4)")
    ([-0.75, -1.37, -0.31], [8.0, 10.0, 4.0])
    """
    return [float(number.replace("−", "-")) for number in re.findall(r"−?\d*\.?\d+", cell)]


def test_the_table_of_certificates_is_that_of_the_files(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    from certified import page

    assert page() in (GALLERY / "README.md").read_text(encoding="utf-8"), "run benchmarks/certified.py --page"


def test_what_the_gallery_counts_of_certificates_is_counted():
    found = pd.read_csv(GALLERY / "certify" / "certificates.csv")
    checks = pd.read_csv(GALLERY / "certify" / "checks.csv")
    small, large = (found[found["size"] == size]["verdict"].value_counts() for size in ("smallest", "holds"))
    assert (small.sum(), small.get("certified", 0), small["certified with limits"]) == (27, 0, 4)
    assert (large.sum(), large["certified"], large["certified with limits"]) == (25, 5, 11)
    states = checks[checks["size"] == "smallest"].groupby(["check", "model", "task", "reference"])["state"]
    assert states.agg(lambda of: "fail" in set(of))[3].sum() == 26
    needed = states.agg(lambda of: set(of) <= {"pass", "not tested"})[4]
    qwen = ((MODELS["Qwen"], task, "mean") for task in ("docstring", "greater_than"))
    assert needed.index[~needed].tolist() == list(qwen)
    other = checks[(checks["size"] == "holds") & (checks["measure"] == "explained effect with mean")]["value"]
    assert (round(other.min(), 2), round(other.max(), 2)) == (-0.28, 0.73)
