"""Compiled programs: the converted models compute what tracr and plain Python compute, and their heads are found.

`compiled_programs/` has four of the programs that `make compiled-weights` writes.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import headwise as hw
from helpers import REPOSITORY

FOLDER = REPOSITORY / "tests" / "compiled_programs"
NAMES = ("count_a", "induction_abcd", "sum_1_2")


pytestmark = pytest.mark.usefixtures("benchmarks_on_path")


@pytest.mark.parametrize("name", NAMES)
def test_a_converted_program_gives_the_logits_of_tracr_and_the_answers_of_plain_python(name):
    from compiled.model import convert, largest_gap
    from compiled.rasp_programs import PROGRAMS

    program, converted = PROGRAMS[name], convert(FOLDER, name, slots=5, seed=3)
    assert largest_gap(converted) < 1e-4
    inputs = [t for t in itertools.product(program.vocabulary, repeat=program.length) if program.valid(t)]
    rows = converted.tokenizer([" ".join(["<s>", *t]) for t in inputs], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        top = converted.hf(rows).logits[:, -1].argmax(-1).tolist()
    assert converted.tokenizer.convert_ids_to_tokens(top) == [str(program.answer(t)) for t in inputs]


@pytest.mark.parametrize("name", NAMES)
def test_unused_heads_move_the_logits_and_leave_the_answers(name):
    from compiled.known import programs

    (one,) = programs([name], FOLDER)
    assert one.facts["accuracy"] >= 0.95
    assert one.facts["moved_least"] > 0.005
    scores = hw.score(one.model, one.task, "ablation", progress=False)
    first = {tuple(head) for head in scores.order()[: len(one.heads)]}
    assert first == {tuple(head) for head in one.heads}


def test_the_true_edges_of_induction_are_those_of_its_two_lines():
    from compiled.known import programs

    (one,) = programs(["induction_abcd"], FOLDER)
    first, second = one.heads  # the token before, as key; the token itself, as answer
    assert one.edges == {f"{first}->L1KV{second.head}.K", f"{second}->logits"}
    scored = hw.edges(one.model, one.task, components=["heads", "mlps"], progress=False)
    assert {str(edge) for edge in scored.top(2)} == one.edges


def test_direct_attribution_of_a_model_without_norms_is_head_times_unembedding():
    from compiled.known import programs

    (one,) = programs(["sum_1_2"], FOLDER)
    hf, text = one.model.hf, one.model.text.tokenizer
    scored = hw.score(one.model, one.task, "direct", reference="zero", progress=False)
    outputs = []
    hook = hf.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda _, args: outputs.append(args[0]))
    size, expected = hf.config.head_dim, []
    for example in one.task:
        hf(torch.tensor([text.encode(example.prompt)]))
        target, foil = (text.encode(word)[0] for word in (example.target, example.foils[0]))
        written = hf.layers[0].self_attn.o_proj.weight * outputs.pop()[0, -1]  # D, heads × size
        axis = hf.lm_head.weight[target] - hf.lm_head.weight[foil]
        expected.append((axis @ written).view(-1, size).sum(1))
    hook.remove()
    np.testing.assert_allclose(scored.values[0], torch.stack(expected).mean(0), atol=1e-5)


def test_where_slopes_are_zero_the_exact_ranking_replaces_a_learned_one_that_it_beats(monkeypatch):
    from compiled.known import programs
    from compiled.measure import auroc

    (one,) = programs(["count_of_back_1"], FOLDER)
    used = np.array([head in one.heads for head in one.model.heads()])

    def found(seeds=1, **options):
        scores = hw.score(one.model, one.task, "nested", seeds=seeds, updates=60, progress=False, **options)
        return auroc(scores.values[one.model.exists], used), scores.details.get("exact")

    assert found(seeds=2) == (1, [0, 1])
    assert found(start="ablation") == (1, None)
    monkeypatch.setattr("headwise.scores.nested.nested.FLAT", 1)
    assert found()[0] < 1


def test_auroc_and_average_precision_are_those_of_a_slow_count():
    from compiled.measure import auroc, average_precision

    scores, used = np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, False, True, False])
    assert auroc(scores, used) == (2 + 1.5) / 4  # 3 beats both; 2 ties with one and beats the other
    assert average_precision(scores, used) == (1 + 2 / 3) / 2


def test_the_page_is_what_the_script_writes_from_the_results():
    from compiled.table import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m compiled.table"
