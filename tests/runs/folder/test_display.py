"""What a notebook shows of a run and of scores."""

import base64
import re

import numpy as np

from headwise.heads import Scores
from headwise.runs import RunFolder
from runs.toy_study import calls, carry_out

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_run_shows_its_notices_as_text_and_its_figures_as_pictures(tmp_path):
    with RunFolder(tmp_path / "r", study="score", settings={"models": ["m"]}) as folder:
        carry_out(folder, calls(1))
        folder.notice("beware of <b>this</b>")
        folder.file("figures", "map.png").write_bytes(PNG)
    shown = folder._repr_html_()
    assert "&lt;b&gt;this" in shown
    assert "<b>this" not in shown
    assert base64.b64decode(re.search(r"base64,([^\"]+)", shown)[1]) == PNG
    assert repr(folder) == "run r: study score, done, tables: curves, examples, scores"


def test_scores_show_their_map_in_a_notebook_and_their_largest_heads_in_a_terminal():
    examples = np.zeros((4, 2, 3))
    examples[:, 1, 2] = 5.0
    scores = Scores.from_examples(examples, model="m", task="t", method="ablation", metric="logprob")
    assert scores._repr_png_().startswith(PNG)
    assert "L1H2 +5" in repr(scores)
    assert "n = 4" in repr(scores)
