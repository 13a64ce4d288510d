"""The benchmarks count right, do the same as the engine, and the pages say what was measured."""

from __future__ import annotations

import doctest
import importlib
import json

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.heads import Head, mask_gates, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.tokens.encode import batch_of
from helpers import REPOSITORY, word_task

pytestmark = pytest.mark.usefixtures("benchmarks_on_path")


def test_the_pages_are_what_the_script_writes_from_the_results():
    for path, text in importlib.import_module("table").pages().items():
        assert path.read_text(encoding="utf-8") == text, f"run benchmarks/table.py: {path.name} is stale"


@pytest.mark.parametrize("name", ["outside", "claims"])
def test_the_tables_of_a_page_are_those_of_its_results(name):
    script = importlib.import_module(name)
    written = script.PAGE.read_text(encoding="utf-8")
    result = json.loads((script.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert script.page(written, result) == written


def test_the_few_shot_prompts_and_their_shuffled_ones_have_the_same_words():
    task = importlib.import_module("claims").few_shot(12)
    assert len({example.prompt for example in task}) == 12
    for example in task:
        assert sorted(example.prompt.split()) == sorted(example.counterfactual.split())
        shown, shuffled = (text.split("\n") for text in (example.prompt, example.counterfactual))
        assert shown[-1] == shuffled[-1]
        assert not set(shown[:-1]) & set(shuffled[:-1])
        assert example.target not in example.prompt
        assert len(set(example.foils)) == 4


def test_the_readme_quotes_the_speed_up_of_its_table_and_has_at_most_eight_rows():
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    table = page.split("<!-- benchmarks -->")[1].split("<!-- /benchmarks -->")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert 4 <= len(rows) <= 8
    (cpu, cuda) = next(cells for work, *cells in rows if work == "exact ablation of every head")
    assert f"is {cpu} faster on two CPU cores and {cuda} faster on an H200" in " ".join(page.split())


def test_a_table_shows_the_ratio_to_the_fastest_peer_and_says_where_none_was_measured():
    table = importlib.import_module("table")
    way = {"seconds": 2.0, "times_headwise": 1.0}
    job = {"work": "w", "ways": {"headwise": way, "nnsight": way}, "fastest_peer": "nnsight", "ratio": 2.75}
    some = {"machine": "chip, 2 threads", "date": "2031-01-02", "jobs": {"d": job}}
    page = table.readme(some, {})
    assert "| ablation curve, 0 to 50 heads, three orders | 2.8 × | – |" in page
    assert "chip" in page
    assert "2031-01-02" in page
    assert "learned gates" not in page
    assert "speed-up over the fastest of TransformerLens, nnsight, pyvene, plain hooks: chip" in page
    shapes = [{"shape": "small", "ratio": 9.0, "tokens": 16}]
    shapes += [
        {"shape": "large", "ratio": ratio, "tokens": tokens} for ratio, tokens in ((8.0, 16), (2.7, 128))
    ]
    both = table.readme(some, {**some, "jobs": {**some["jobs"], "shapes": {"cases": shapes}}})
    assert (
        "shape of large in bfloat16 on a GPU: 2.7 × to 8.0 × over plain hooks, at 128 to 16 tokens." in both
    )


def test_examples_in_the_benchmarks_docstrings_run():
    assert doctest.testmod(importlib.import_module("jobs.ablation")).attempted
    assert doctest.testmod(importlib.import_module("jobs.ablation")).failed == 0


def test_the_floor_counts_what_variants_share_once(tiny):
    cost = importlib.import_module("common").Cost(tiny.hf.config)
    shape, tokens = tiny.shape, 5
    one = cost.variants(np.ones((1, *shape)), tokens)
    assert one == pytest.approx(cost.row(tokens))
    same = cost.variants(np.ones((3, *shape)), tokens)
    assert same == pytest.approx(one + 2 * cost.unembedding)
    # A head of the last layer: all but what follows its gates is there already.
    late = cost.variants(np.stack([np.ones(shape), mask_gates([Head(shape[0] - 1, 0)], shape)]), tokens)
    assert late == pytest.approx(one + cost.after + cost.unembedding)
    early = cost.variants(np.stack([np.ones(shape), mask_gates([Head(0, 0)], shape)]), tokens)
    assert early == pytest.approx(2 * one - tokens * (cost.hold + cost.ask + cost.mixing * (tokens + 1) / 2))


def test_operations_of_a_row_are_two_per_weight_and_token(tiny):
    cost = importlib.import_module("common").Cost(tiny.hf.config)
    weights = sum(p.numel() for name, p in tiny.hf.named_parameters() if "layers" in name and p.dim() == 2)
    tokens = 7
    attention = cost.layers * cost.mixing * tokens * (tokens + 1) / 2
    everywhere = cost.row(tokens, tokens) - tokens * cost.unembedding
    assert everywhere == pytest.approx(2 * weights * tokens + attention)
    # Where one position is read, the last layer is needed for keys and values there, and nothing else.
    assert everywhere - (cost.row(tokens) - cost.unembedding) == pytest.approx(
        (tokens - 1) * (cost.ask + cost.after) + cost.mixing * tokens * (tokens - 1) / 2
    )


def test_the_loop_of_hooks_and_the_engine_do_the_same(tiny):
    hooks = importlib.import_module("ways.hooks").Hooks(tiny.hf)
    task = word_task(4)
    engine = Engine(tiny, task, metric("logit_diff"))
    batch = batch_of(engine.rows)
    row = torch.arange(4)

    def difference(logits):
        return logits[row, batch["rights"][:, 0, 1]] - logits[row, batch["wrongs"][:, 0, 1]]

    heads = [Head(0, 1), Head(2, 3)]
    with torch.inference_mode():
        for narrow in (False, True):
            alone = [difference(hooks.logits(batch["ids"], [head], narrow)).numpy() for head in heads]
            np.testing.assert_allclose(
                engine.measure(single_gates(heads, tiny.shape)).values, alone, atol=1e-5
            )
            both = difference(hooks.logits(batch["ids"], heads, narrow)).numpy()
            np.testing.assert_allclose(
                engine.measure(mask_gates(heads, tiny.shape)[None]).values[0], both, atol=1e-5
            )
    gates = torch.full((4, *tiny.shape), 0.6, requires_grad=True)
    (gradients,) = torch.autograd.grad(difference(hooks.gated(batch["ids"], gates, True)).sum(), gates)
    ours = engine.gradients(np.full(tiny.shape, 0.6))[1]
    np.testing.assert_allclose(ours, gradients.numpy(), atol=1e-5)


def test_turns_alternate_and_every_second_is_somebodys():
    common = importlib.import_module("common")
    order = []
    ways = {name: [lambda n=name, i=i: order.append((n, i)) for i in range(2)] for name in ("ours", "theirs")}
    seconds, results = common.in_turns(ways | {"once": [lambda: order.append(("once", 0))]})
    assert order == [("ours", 0), ("theirs", 0), ("once", 0), ("ours", 1), ("theirs", 1)]
    assert {name: len(found) for name, found in results.items()} == {"ours": 2, "theirs": 2, "once": 1}
    assert all(spent > 0 for spent in seconds.values())


def test_peak_memory_is_what_was_alive_at_once():
    common = importlib.import_module("common")

    def work():
        for _ in range(3):
            torch.zeros(2**20).add_(1)  # 4 MB each, one after another
        a, b = torch.zeros(2**20), torch.zeros(2**20)
        return a + b

    assert common.peak_mb(work) == pytest.approx(12, rel=0.05)


def test_the_page_on_machines_is_what_the_script_writes_from_the_results():
    scale_page = importlib.import_module("scale_page")
    assert scale_page.page() == scale_page.PAGE.read_text(encoding="utf-8")


def test_the_table_by_size_says_what_failed_and_what_was_not_run():
    scale_page = importlib.import_module("scale_page")
    rows = [
        {"model": "small", "study": "masking", "seconds": 41.2, "peak_gb": 1.84},
        {"model": "small", "study": "roles", "failed": "too few examples"},
        {"model": "large", "study": "masking", "seconds": 200.0, "peak_gb": None},
    ]
    table = scale_page.by_size({"machine": "chip", "date": "2031-01-02T10:00", "rows": rows}).splitlines()
    assert table[2:] == [
        "| study | small | large |",
        "|---|---|---|",
        "| `masking` | 41 s, 1.8 GB | 3 min |",
        "| `roles` | failed | not run |",
    ]


def test_greedy_elimination_keeps_the_planted_heads_longest_and_resumes(
    word_tokenizer, tmp_path, monkeypatch
):
    from planted import SPARSE, planted_model, told_apart

    greedy = importlib.import_module("greedy")
    model = planted_model(word_tokenizer, SPARSE, "sparse")
    task = told_apart([model], 8)
    whole = greedy.Elimination(model, task, "patch", [])
    rounds = []
    while whole.left:
        rounds.append(whole.round(share=0.25, exact_below=8))
    # 16 heads: a quarter of them a round, then one by one from 8 on.
    assert [one["left"] for one in rounds] == [12, 9, 7, 6, 5, 4, 3, 2, 1, 0]
    order = greedy.order_of([str(head) for head in whole.removed])
    assert set(order[:3]) == set(SPARSE)  # every other head writes nothing, so its removal costs nothing
    begun = greedy.Elimination(model, task, "patch", [str(head) for head in whole.removed[:4]])
    while begun.left:
        begun.round(share=0.25, exact_below=8)
    assert begun.removed == whole.removed
    # The first head that is removed is the one whose loss moves the explained effect least, by a plain loop.
    left = whole.model.heads()
    shares = []
    for head in left:
        kept = hw.measure(model, task, ablate=[head], reference="patch", progress=False).mean
        shares.append((kept - whole.none) / (whole.full - whole.none))
    np.testing.assert_allclose(
        greedy.Elimination(model, task, "patch", []).explained_without(left), shares, atol=1e-5
    )


def test_mibs_side_gets_examples_of_one_step(word_tokenizer):
    from headwise.model.verify.tiny import tiny_model

    mib = importlib.import_module("mib")
    tiny = tiny_model("llama", vocab_size=len(word_tokenizer), max_position_embeddings=512)
    model = hw.load(tiny, tokenizer=word_tokenizer, name="tiny")
    task = word_task(5)
    same = hw.Example("the cat", " sat", (" sat",), "the dog")
    chosen = mib.single_step(model, hw.Task("words", (*task, same), "logit_diff"))
    assert chosen.examples == task.examples
    made = mib.prompts(model, chosen)
    assert made["clean"] == [model.tokens(example.prompt) for example in task]
    assert made["labels"][0] == [
        model.tokens(text.strip())[-1] for text in (task.examples[0].target, task.examples[0].foils[0])
    ]
