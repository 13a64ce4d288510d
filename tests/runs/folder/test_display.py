"""What a notebook shows of a run and of scores."""

import base64
import re

import numpy as np
import pandas as pd

from headwise.heads import Scores
from headwise.runs import Cell, CellResult, RunFolder, execute

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_run_shows_its_notices_as_text_and_its_figures_as_pictures(tmp_path):
    with RunFolder(tmp_path / "r", study="score", settings={"models": ["m"]}) as folder:
        table = pd.DataFrame({"a": [1]})
        execute(
            folder, [Cell("score", "m", "t", "p")], lambda _: CellResult({"other": table}), progress=False
        )
        folder.notice("beware of <b>this</b>")
        folder.file("figures", "map.png").write_bytes(PNG)
    shown = folder._repr_html_()
    assert "&lt;b&gt;this" in shown
    assert "<b>this" not in shown
    assert base64.b64decode(re.search(r"base64,([^\"]+)", shown)[1]) == PNG
    assert repr(folder) == "run r: study score, done, tables: other"


def test_scores_show_their_map_in_a_notebook_and_their_largest_heads_in_a_terminal():
    examples = np.zeros((4, 2, 3))
    examples[:, 1, 2] = 5.0
    scores = Scores.from_examples(examples, model="m", task="t", method="ablation", metric="logprob")
    assert scores._repr_png_().startswith(PNG)
    assert "L1H2 +5" in repr(scores)
    assert "n = 4" in repr(scores)
