"""Exact edges against path patching by hooks of plain transformers, and against circuits of edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from edge_hooks import PROJECTIONS, EdgeByHooks, MovingEdgeByHooks
from headwise.heads.edges import LOGITS, Edge, Receiver
from headwise.metrics import metric
from headwise.model.edges.circuit import Circuits
from headwise.model.edges.parts import take_apart
from headwise.model.measure.engine import Engine
from headwise.model.verify.families import shipped
from helpers import word_model, word_task

ALL = ("heads", "mlps", "input")


def by_hooks(model):
    inner = model.hf.model
    return EdgeByHooks(model.hf, inner.layers, heads=model.shape[1])


def effect_by_hooks(model, slow, example, edge, scale=1.0, kind="zero"):
    """logit(target) − logit(foil) of the plain run minus that with the edge replaced."""
    ids, donor = model.tokens(example.prompt), model.tokens(example.counterfactual)
    target, foil = (model.tokens(text)[-1] for text in (example.target, example.foils[0]))
    reference = torch.zeros(())
    if kind == "patch":
        reference = reference_by_hooks(slow, donor, edge.sender)
    full = slow.run(ids)[-1]
    replaced = slow.replaced_logits(ids, edge.sender, edge.receiver, reference, scale)[-1]
    return float((full[target] - full[foil]) - (replaced[target] - replaced[foil]))


def reference_by_hooks(slow, donor, sender):
    """The sender's output on the counterfactual."""
    if sender == (0, -2):
        return slow.record(donor, (slow.hf.get_input_embeddings(), "out"))[0]
    layer = slow.layers[sender[0]]
    if sender[1] == -1:
        return slow.record(donor, (slow.mlp(layer), "out"))[0]
    (z,) = slow.record(donor, (slow.attention(layer).o_proj, "in"))
    size = z.shape[-1] // slow.heads
    return z[..., sender[1] * size : (sender[1] + 1) * size]


SOME = [
    Edge(hw.Head(0, 1), Receiver(2, 3, "Q")),
    Edge(hw.Head(0, 2), Receiver(3, 1, "K")),
    Edge(hw.Head(1, 0), Receiver(2, 0, "V")),
    Edge(hw.Head(1, 3), Receiver(1, -1, "MLP")),
    Edge(hw.Head(0, 0), Receiver(3, -1, "MLP")),
    Edge(hw.Head(1, -1), Receiver(2, 1, "K")),
    Edge(hw.Head(0, -1), Receiver(2, -1, "MLP")),
    Edge(hw.Head(0, -2), Receiver(0, 2, "Q")),
    Edge(hw.Head(0, -2), Receiver(3, 0, "V")),
    Edge(hw.Head(2, 2), LOGITS),
    Edge(hw.Head(3, -1), LOGITS),
]


def scored(model, task, edges, reference="zero", **more):
    found = hw.edges(
        model,
        task,
        reference=reference,
        into=[edge.receiver for edge in edges],
        out_of=[edge.sender for edge in edges],
        progress=False,
        **more,
    )
    return {edge: found.examples[:, found.edges.index(edge)] for edge in edges}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "olmo2", "granite", "mixtral"])
@pytest.mark.parametrize("reference", ["zero", "patch"])
def test_exact_edges_equal_path_patching_by_hooks(family, reference):
    model, task = word_model(family), word_task(3, equal_length=False)
    slow = by_hooks(model)
    for edge, values in scored(model, task, SOME, reference).items():
        expected = [effect_by_hooks(model, slow, example, edge, kind=reference) for example in task]
        assert values == pytest.approx(expected, abs=1e-4), str(edge)
        assert max(map(abs, expected)) > 1e-3, f"{edge} does nothing, so this shows nothing"


@pytest.mark.parametrize("family", ["llama", "qwen3", "olmo2", "granite"])
def test_with_moving_mlps_edges_equal_hooks_that_hold_heads_alone(family):
    model, task = word_model(family), word_task(2, equal_length=False)
    slow = MovingEdgeByHooks(model.hf, model.hf.model.layers, heads=model.shape[1])
    held, moved = (scored(model, task, SOME, "patch", mlps=mlps) for mlps in ("hold", "move"))
    for edge, values in moved.items():
        expected = [effect_by_hooks(model, slow, example, edge, kind="patch") for example in task]
        assert values == pytest.approx(expected, abs=1e-4), str(edge)
    far = [edge for edge in SOME if edge.receiver.layer - edge.sender.layer > 1]
    assert all(np.abs(held[edge] - moved[edge]).max() > 1e-5 for edge in far)
    near = SOME[3]  # a head and the MLP of its own block
    assert moved[near] == pytest.approx(held[near], abs=1e-6)


FROM_LATER_BLOCKS = [
    [Edge(hw.Head(1, 0), Receiver(3, 2, "Q"))],
    [Edge(hw.Head(1, 3), Receiver(3, 1, "K")), Edge(hw.Head(2, 1), Receiver(3, 1, "K"))],
    [Edge(hw.Head(1, -1), Receiver(3, 0, "V"))],
    [Edge(hw.Head(1, 2), Receiver(3, -1, "MLP")), Edge(hw.Head(2, -1), Receiver(3, -1, "MLP"))],
    [Edge(hw.Head(1, 1), LOGITS), Edge(hw.Head(2, 3), LOGITS), Edge(hw.Head(3, 0), LOGITS)],
]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("batch_tokens", [None, 24])
def test_moving_mlps_need_no_sender_in_the_first_block(family, batch_tokens):
    model, task = word_model(family), word_task(3, equal_length=False)
    slow = MovingEdgeByHooks(model.hf, model.hf.model.layers, heads=model.shape[1])
    for edges in FROM_LATER_BLOCKS:
        found = scored(model, task, edges, "patch", mlps="move", batch_tokens=batch_tokens)
        for edge, values in found.items():
            expected = [effect_by_hooks(model, slow, example, edge, kind="patch") for example in task]
            assert values == pytest.approx(expected, abs=1e-4), str(edge)
            assert max(map(abs, expected)) > 1e-3, f"{edge} does nothing, so this shows nothing"


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_moving_mlps_of_other_blocks_carry_a_sender_to_the_logits(family):
    """All head outputs are held by hooks and only the sender is 0, so that MLPs alone pass the change on."""
    model, task = word_model(family), word_task(2)
    layers = model.hf.transformer.h if family == "gpt2" else model.hf.gpt_neox.layers
    outputs = [layer.attn.c_proj if family == "gpt2" else layer.attention.dense for layer in layers]
    slow, heads = EdgeByHooks(model.hf, layers), model.shape[1]
    edges = [Edge(hw.Head(*sender), LOGITS) for sender in ((1, 2), (2, 0), (3, 3), (1, -1), (2, -1))]
    moved, held = (scored(model, task, edges, mlps=mlps) for mlps in ("move", "hold"))
    for edge in edges:
        for number, example in enumerate(task):
            ids = model.tokens(example.prompt)
            target, foil = (model.tokens(text)[-1] for text in (example.target, example.foils[0]))
            z = slow.record(ids, *((output, "in") for output in outputs))
            if edge.sender.head >= 0:
                size = z[0].shape[-1] // heads
                z[edge.sender.layer][..., edge.sender.head * size : (edge.sender.head + 1) * size] = 0
            changes = [(output, "in", lambda _, own=own: own) for output, own in zip(outputs, z, strict=True)]
            if edge.sender.head < 0:
                changes.append((layers[edge.sender.layer].mlp, "out", torch.zeros_like))
            full, replaced = slow.run(ids)[-1], slow.run(ids, *changes)[-1]
            expected = float((full[target] - full[foil]) - (replaced[target] - replaced[foil]))
            assert moved[edge][number] == pytest.approx(expected, abs=1e-4), str(edge)
    assert all(np.abs(held[edge] - moved[edge]).max() > 1e-4 for edge in edges[:2])


@pytest.mark.bundled
def test_edges_of_the_bundled_model_with_moving_mlps_equal_hooks(smollm2):
    task = hw.task("ioi", 1, model=smollm2)
    slow = MovingEdgeByHooks(smollm2.hf, smollm2.hf.model.layers, heads=smollm2.shape[1])
    edges = [
        Edge(hw.Head(20, 5), Receiver(23, 3, "Q")),
        Edge(hw.Head(12, 0), Receiver(23, 1, "V")),
        Edge(hw.Head(18, -1), Receiver(23, -1, "MLP")),
        Edge(hw.Head(23, 3), LOGITS),
    ]
    for edge, values in scored(smollm2, task, edges, "patch", mlps="move").items():
        expected = [effect_by_hooks(smollm2, slow, example, edge, kind="patch") for example in task]
        assert values == pytest.approx(expected, abs=2e-4), str(edge)


def test_an_unknown_way_of_mlps_is_refused():
    model = word_model("llama")
    with pytest.raises(hw.HeadwiseError, match="hold, move"):
        hw.edges(model, word_task(1), into="L1H0", mlps="free", progress=False)


@pytest.mark.slow
def test_exact_edges_equal_hooks_in_at_least_forty_families():
    task = word_task(1)
    agreed, told = [], []
    for family in (family.name for family in shipped()[1] if family.how.startswith("attention function")):
        try:
            model = word_model(family)
            take_apart(model)
            slow = by_hooks(model)
            attention = slow.attention(slow.layers[0])
            if not all(hasattr(attention, name) for name in PROJECTIONS):
                continue
            if (
                attention.q_proj.weight.shape[0] // slow.heads * slow.heads
                != attention.q_proj.weight.shape[0]
            ):
                continue
            slow.mlp(slow.layers[0])
        except (hw.HeadwiseError, AttributeError, TypeError, ValueError, RuntimeError):
            continue  # refused, or a family that these hooks do not know
        some = [
            edge
            for edge in SOME
            if take_apart(model).blocks[1].sequential or edge.receiver != SOME[3].receiver
        ]
        some = [e for e in some if e.receiver.layer < len(slow.layers) and e.sender.layer < len(slow.layers)]
        for edge, values in scored(model, task, some).items():
            try:
                expected = effect_by_hooks(model, slow, task.examples[0], edge)
            except (RuntimeError, AttributeError, KeyError) as error:
                told.append(f"{family}: {error}")
                break
            assert values[0] == pytest.approx(expected, abs=1e-4), f"{family}: {edge}"
        else:
            agreed.append(family)
    assert len(agreed) >= 40, f"{len(agreed)} families agree: {agreed}; hooks failed: {told}"


def test_an_edge_that_a_circuit_drops_alone_has_its_exact_score():
    model, task = word_model("qwen3"), word_task(4)
    found = hw.edges(model, task, reference="patch", components=ALL, progress=False)
    values, full = circuit_values(
        model, task, found.edges, np.ones((len(found), len(found)), bool) ^ np.eye(len(found), dtype=bool)
    )
    assert full - values == pytest.approx(found.examples.T, abs=2e-5)


def circuit_values(model, task, edges, keep, reference="patch"):
    engine = Engine(model, task, metric("logit_diff"), reference=reference, components=ALL)
    block = engine.table.block(range(len(task)))
    with torch.inference_mode():
        circuits = Circuits(engine, take_apart(model), block, edges, {})
        parts = [circuits.values(part) for part in np.array_split(keep, max(1, len(keep) // 40))]
        return np.concatenate(parts), circuits.values(np.ones((1, len(edges)), bool))


def test_a_circuit_without_the_edges_of_one_sender_is_the_ablated_model():
    model, task = word_model("llama"), word_task(4)
    edges = hw.edges(model, task, "attribution", reference="mean", components=ALL, progress=False).edges
    nodes = hw.score(model, task, reference="mean", components=ALL, progress=False)
    senders = [hw.Head(1, 2), hw.Head(3, 0), hw.Head(2, -1), hw.Head(0, -2)]
    keep = np.array([[edge.sender != sender for edge in edges] for sender in senders])
    values, full = circuit_values(model, task, edges, keep, "mean")
    expected = np.stack([nodes.examples[:, sender.layer, sender.head] for sender in senders])
    assert full - values == pytest.approx(expected, abs=2e-5)


def test_a_circuit_without_any_edge_has_nothing_left():
    model, task = word_model("llama"), word_task(4)
    edges = hw.edges(model, task, "attribution", components=ALL, progress=False).edges
    values, _ = circuit_values(model, task, edges, np.zeros((1, len(edges)), bool), "zero")
    engine = Engine(model, task, metric("logit_diff"), components=ALL)
    nothing = engine.measure(np.zeros((1, *engine.layout.shape))).values
    assert values == pytest.approx(nothing, abs=1e-5)


def test_a_counterfactual_equal_to_the_prompt_changes_exactly_nothing():
    from dataclasses import replace

    model, task = word_model("llama"), word_task(3)
    same = replace(task, examples=tuple(replace(e, counterfactual=e.prompt) for e in task))
    assert (hw.edges(model, same, reference="patch", components=ALL, progress=False).examples == 0).all()


def test_few_tokens_per_pass_give_the_same_edges():
    model, task = word_model("llama"), word_task(3, equal_length=False)
    many = hw.edges(model, task, reference="mean", progress=False)
    few = hw.edges(model, task, reference="mean", batch_tokens=24, progress=False)
    assert few.examples == pytest.approx(many.examples, abs=1e-5)


@pytest.mark.parametrize(
    ("family", "reason"), [("gptj", "projection hook"), ("falcon_h1", "exactly one part")]
)
def test_a_family_whose_blocks_cannot_be_taken_apart_is_refused(family, reason):
    with pytest.raises(hw.HeadwiseError, match=reason):
        hw.edges(word_model(family), word_task(2), progress=False)
