"""The change of each head's weights beside the change of its score."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.charts.comparison import difference_chart
from headwise.heads import Scores
from headwise.model.verify.tiny import tiny_model
from headwise.runs import read_table
from headwise.scores.difference import diff_table, weight_change
from headwise.studies.diff.section import findings
from helpers import make_word_tokenizer, run_on, word_task
from planted import told_apart, written


def loaded(hf, name):
    return hw.load(hf, tokenizer=make_word_tokenizer(), name=name)


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama", vocab_size=len(make_word_tokenizer()), max_position_embeddings=512)


def by_hand(before, after, layer, head):
    """The same ratio for a Llama with grouped keys, from four slices that are cut out and put end to end."""
    config = before.config
    size, group = config.head_dim, head // (config.num_attention_heads // config.num_key_value_heads)

    def weights(hf):
        attention = hf.model.layers[layer].self_attn
        own, shared = slice(size * head, size * (head + 1)), slice(size * group, size * (group + 1))
        parts = [attention.q_proj.weight[own], attention.o_proj.weight[:, own]]
        parts += [attention.k_proj.weight[shared], attention.v_proj.weight[shared]]
        return torch.cat([part.detach().flatten() for part in parts])

    return float((weights(after) - weights(before)).norm() / weights(before).norm())


def test_it_is_the_norm_of_the_slices_cut_out_by_hand(llama):
    other = copy.deepcopy(llama)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if "self_attn" in name:
                weight += 0.05 * torch.randn_like(weight)
    found = weight_change(loaded(llama, "a"), loaded(other, "b"))
    expected = [[by_hand(llama, other, layer, head) for head in range(4)] for layer in range(4)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "phi3", "gptj"])
def test_queries_of_one_head_change_that_head_alone_in_fused_and_hooked_families(family):
    hf = tiny_model(family, vocab_size=len(make_word_tokenizer()))
    other = copy.deepcopy(hf)
    base = loaded(hf, "a")
    layers, heads = base.shape
    size = base.hooks.sites[1].head_dim
    names = {"gpt2": "c_attn.weight", "phi3": "qkv_proj.weight", "gptj": "q_proj.weight"}
    weight = [p for n, p in other.named_parameters() if n.endswith(names[family])][1]
    with torch.no_grad():  # the rows of head 1's queries; GPT-2 stores rows as columns
        (weight.T if family == "gpt2" else weight)[size : 2 * size] *= 1.5
    found = weight_change(base, loaded(other, "b"))
    assert np.argwhere(found > 0).tolist() == [[1, 1]]
    assert found.shape == (layers, heads)


def test_an_adapter_counts_by_its_effective_weights_merged_or_not(llama):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(copy.deepcopy(llama), config).eval()
    base = loaded(llama, "base")
    unmerged = weight_change(base, loaded(adapted.base_model.model, "unmerged"))
    merged_hf = copy.deepcopy(adapted).merge_and_unload()
    np.testing.assert_allclose(unmerged, weight_change(base, loaded(merged_hf, "merged")), rtol=1e-4)
    assert unmerged[2, 3] == pytest.approx(by_hand(llama, merged_hf, 2, 3), rel=1e-4)
    assert (unmerged > 0).all()


def test_the_study_and_its_chart_have_it_and_rows_begin_with_the_largest_significant_change(
    llama, tmp_path, undrawn
):
    other = copy.deepcopy(llama)
    with torch.no_grad():
        other.model.layers[1].self_attn.o_proj.weight.mul_(0.5)
    base, tuned = loaded(llama, "base"), loaded(other, "tuned")
    file = written(told_apart([base], 12), tmp_path / "apart.jsonl")
    folder = run_on("diff", tmp_path / "run", base, tuned, tasks=[file], n=12, methods="attribution", cards=0)
    table = read_table(folder.path, "diff")
    size = table["difference"].abs()
    for rows in (table["q"] < 0.05, table["q"] >= 0.05):
        assert size[rows].is_monotonic_decreasing
    assert (table["q"] < 0.05).is_monotonic_decreasing  # significant ones first
    assert set(table.loc[table["weight_change"] > 0, "layer"]) == {1}
    chart = difference_chart(read_table(folder.path, "scores"), table, read_table(folder.path, "outcomes"))
    assert chart.title.startswith("What changed between base and tuned: attribution (")
    bars, first = chart.panels[3], table.iloc[0]
    share = f"{100 * first['weight_change']:.2g} %"
    assert bars.y.names[0] == f"L{first['layer']}H{first['head']} ({share})"
    assert bars.marks[0].hover[0].endswith(f"weights changed by {share}")
    assert "weight_change" in chart.table
    assert "What changed between base and tuned" in (folder.path / "report.html").read_text()


def test_where_projections_cannot_be_told_apart_the_column_is_left_out_with_a_notice(tmp_path, undrawn):
    hf = tiny_model("gpt_neox", vocab_size=len(make_word_tokenizer()))  # queries, keys and values by turns
    base, tuned = loaded(hf, "base"), loaded(copy.deepcopy(hf), "tuned")
    file = written(word_task(8), tmp_path / "words.jsonl")
    folder = run_on("diff", tmp_path / "run", base, tuned, tasks=[file], n=8, methods="attribution", cards=0)
    assert "weight_change" not in read_table(folder.path, "diff")
    assert any("weights of the two models are not compared" in notice for notice in folder.notices)


def test_mlps_are_compared_too_and_have_no_weights_of_a_head(llama, tmp_path, undrawn):
    other = copy.deepcopy(llama)
    with torch.no_grad():
        other.model.layers[2].mlp.down_proj.weight.mul_(-3)
    base, tuned = loaded(llama, "base"), loaded(other, "tuned")
    file = written(told_apart([base], 12), tmp_path / "apart.jsonl")
    options = {
        "methods": "ablation",
        "method_options": {"components": ["heads", "mlps"]},
        "metric": "logit_diff",
    }
    folder = run_on("diff", tmp_path / "run", base, tuned, tasks=[file], n=12, cards=0, **options)
    table = read_table(folder.path, "diff")
    mlps = table["head"] < 0
    assert sorted(table["layer"][mlps]) == [0, 1, 2, 3]
    assert table["weight_change"][mlps].isna().all()
    assert (table["weight_change"][~mlps] == 0).all()
    task = hw.task(file, 12, model=base)
    scores = [hw.score(m, task, **options["method_options"], metric="logit_diff") for m in (base, tuned)]
    for row in table.itertuples():
        expected = [float(one.values[row.layer, row.head]) for one in scores]
        assert [row.base_score, row.tuned_score] == expected
    assert "The largest of them is MLP" in findings({"diff": table[mlps].assign(q=0.01)})[0].sentence


def test_scores_without_weights_have_no_column():
    scores = Scores.from_examples(np.ones((4, 2, 2)), model="m", task="t", method="ablation", metric="x")
    assert "weight_change" not in diff_table(scores, scores)
