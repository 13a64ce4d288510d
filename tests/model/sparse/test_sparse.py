"""Edge gates: hard thresholds against masks made by hand, counts against loops, loading, caches, proofs."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.model.load import bundled, cache
from headwise.model.load.export import export
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.probe import probe_logits, rounding
from headwise.model.sparse import adapter
from headwise.model.sparse import edge_gates as sparse
from headwise.model.sparse.edge_gates import EdgeCounts
from headwise.model.verify.tiny import tiny_model
from headwise.scores import score
from helpers import REPOSITORY, WORDS, plain_logits, word_task

SENTENCES = [" ".join(WORDS[(i * 5 + j * j) % 20] for j in range(18)) for i in range(3)]


def gates_for(shape, low=-0.4, high=0.4, seed=1):
    """Thresholds in the middle of a tiny model's scores: about half of the edges are open."""
    return np.random.default_rng(seed).uniform(low, high, shape).round(4)


@pytest.fixture
def sparse_folder(tmp_path, word_tokenizer):
    """A tiny grouped-query Llama on disk and, beside it, an adapter with gates, written by hand."""
    hf = tiny_model("llama", vocab_size=len(word_tokenizer))
    with torch.no_grad():  # a random model's scores are all near 0: make queries and keys speak up
        for layer in hf.model.layers:
            layer.self_attn.q_proj.weight *= 3
            layer.self_attn.k_proj.weight *= 3
    hf.save_pretrained(tmp_path / "base")
    word_tokenizer.save_pretrained(tmp_path / "base")
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, module in hf.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            for part, size in (("lora_A", (3, module.in_features)), ("lora_B", (module.out_features, 3))):
                drawn = torch.randn(size, generator=generator) * 0.1
                weights[f"base_model.model.{name}.{part}.weight"] = drawn.bfloat16()
    out = tmp_path / "thin"
    out.mkdir()
    save_file(weights, out / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6}
    (out / "adapter_config.json").write_text(json.dumps(config))
    gates = adapter.EdgeGates(
        str(tmp_path / "base"), adapter.weights_fingerprint(hf), gates_for((4, 4), -1.5, 1.5)
    )
    adapter.write_gates(out, gates)
    return out


def merged_by_hand(folder):
    """The base model with its adapter added in plain transformers, eager, no line of ours in it."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    base = json.loads((folder / "edge_gates.json").read_text())["base"]
    hf = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    weights = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for layer, block in enumerate(hf.model.layers):
            for room, maps in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down"))):
                for which in maps:
                    name = f"model.layers.{layer}.{room}.{which}_proj"
                    a, b = (
                        weights[f"base_model.model.{name}.{part}.weight"].float()
                        for part in ("lora_A", "lora_B")
                    )
                    getattr(getattr(block, room), f"{which}_proj").weight += 2.0 * (b @ a)
    return hf


class MaskedByHand:
    """Eager attention rewritten with loops over heads: softmax, then zeros where s + b is not above 0."""

    def __init__(self, hf, bias):
        self.hf, self.bias, self.open, self.possible = hf, bias, [], 0

    def __enter__(self):
        import transformers.models.llama.modeling_llama as llama

        self.llama, self.before = llama, llama.eager_attention_forward
        llama.eager_attention_forward = self.attend
        return self

    def __exit__(self, *_):
        self.llama.eager_attention_forward = self.before

    def attend(self, module, query, key, value, attention_mask, scaling, **_):
        rows, heads, tokens, size = query.shape
        output = torch.zeros(rows, tokens, heads, size)
        for row in range(rows):
            for head in range(heads):
                mine = head // (heads // key.shape[1])
                for i in range(tokens):
                    scores = key[row, mine, : i + 1] @ query[row, head, i] / size**0.5
                    weights = torch.exp(scores - scores.max())
                    weights = weights / weights.sum()
                    kept = scores > -float(self.bias[module.layer_idx, head])
                    self.open += [(module.layer_idx, head, i - j) for j in range(i + 1) if kept[j]]
                    self.possible += i + 1
                    output[row, i, head] = (weights * kept) @ value[row, mine, : i + 1]
        return output, None


def test_hard_gates_equal_the_mask_applied_by_hand_and_the_counts_a_brute_force_count(sparse_folder):
    model = hw.load(sparse_folder, device="cpu")
    bias = model.edge_gates.bias
    plain = merged_by_hand(sparse_folder)
    ids = torch.tensor([model.tokens(text) for text in SENTENCES])
    counts = EdgeCounts(model.shape, ids.shape[1])
    with torch.no_grad(), model.hooks.watching(counts.watcher()):
        ours = model.hf(input_ids=ids, use_cache=False).logits
    with torch.no_grad(), MaskedByHand(plain, bias) as by_hand:
        theirs = plain(input_ids=ids, use_cache=False).logits
        by_hand.bias = np.full_like(bias, np.inf)
        before, by_hand.open = by_hand.open, []
        dense = plain(input_ids=ids, use_cache=False).logits
    assert float((ours - theirs).abs().max()) < 1e-4
    assert float((dense - theirs).abs().max()) > 0.01  # the gates do something here
    expected = np.zeros((4, 4, ids.shape[1]), dtype=int)
    for layer, head, length in before:
        expected[layer, head, length] += 1
    assert (counts.open_by_length == expected).all()
    assert counts.share == pytest.approx(len(before) / (by_hand.possible / 2))
    assert 0.1 < counts.share < 0.9


def test_with_and_without_a_cache_padded_and_alone_the_same_tokens_are_written(sparse_folder):
    model = hw.load(sparse_folder, device="cpu")
    prompts = [" ".join(text.split()[: 3 + 4 * i]) for i, text in enumerate(SENTENCES)]
    together = hw.generate(model, prompts, max_new_tokens=12).tokens[0]
    for prompt, written in zip(prompts, together, strict=True):
        ids = model.tokens(prompt)
        for token in written:
            assert int(plain_logits(model, ids)[-1].argmax()) == token
            ids = [*ids, token]


def test_a_long_text_done_in_blocks_of_queries_gives_the_same_output(sparse_folder, monkeypatch):
    model = hw.load(sparse_folder, device="cpu")
    ids = model.tokens(SENTENCES[0])
    whole = plain_logits(model, ids)
    monkeypatch.setattr(sparse, "_AT_ONCE", 4 * len(ids) * 5)  # five queries at once
    assert float((plain_logits(model, ids) - whole).abs().max()) < 1e-5


def test_a_sparse_model_passes_every_proof_and_the_engine_takes_it(sparse_folder):
    model = hw.load(sparse_folder, device="cpu", check_every_layer=True)
    assert model.proof.sites_checked == 4
    assert model.capabilities.share_rows
    assert model.name == "thin"
    task = word_task()
    exact = score(model, task, "ablation")
    sloped = score(model, task, "attribution")
    assert np.isfinite(exact.values).all()
    assert np.isfinite(sloped.values).all()
    assert np.abs(exact.values).max() > 0


def test_attention_of_a_sparse_model_shows_the_gated_weights(sparse_folder):
    model = hw.load(sparse_folder, device="cpu")
    shown = hw.attention(model, SENTENCES[0], maps=True)
    calls = {}
    with torch.no_grad(), model.hooks.watching(lambda layer, call: calls.update({layer: call})):
        model.hf(input_ids=torch.tensor([shown.ids]), use_cache=False)
    for place, head in enumerate(shown.heads):
        call, b = calls[head.layer], model.edge_gates.bias[head]
        scores = (call.query[0, head.head] @ call.key[0, head.head // 2].T / 8**0.5).numpy()
        for i, row in enumerate(scores):
            raised = np.exp(row[: i + 1] - row[: i + 1].max())
            expected = raised / raised.sum() * (row[: i + 1] > -b)
            assert np.abs(shown.maps[place][i, : i + 1] - expected).max() < 1e-5
    assert shown.maps.sum(-1).min() < 0.9  # what is closed is gone, and nothing is renormalised


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "mistral", "gpt_neox"])
def test_with_every_edge_open_a_family_is_its_own_self_and_with_none_its_heads_are_silent(family):
    hf = tiny_model(family)
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        plain = hf(input_ids=ids, use_cache=False).logits
        sparse.install(hf, np.full((4, 4), 1e9))
        opened = hf(input_ids=ids, use_cache=False).logits
        assert float((opened - plain).abs().max()) < 1e-4
        sparse.install(hf, np.full((4, 4), -1e9))
    seen = []
    with torch.no_grad(), HeadHooks(hf).hook(lambda layer, z: seen.append(float(z.abs().max())) or z):
        hf(input_ids=ids, use_cache=False)
    assert seen == [0.0] * 4


def test_attention_that_is_more_than_a_softmax_is_refused():
    with pytest.raises(HeadwiseError, match="every edge open"):
        sparse.install(tiny_model("gpt_oss"), np.zeros((4, 4)))
    with pytest.raises(HeadwiseError, match="do not fit"):
        sparse.install(tiny_model("llama"), np.zeros((3, 4)))
    with pytest.raises(HeadwiseError, match="calls no attention function"):
        sparse.install(tiny_model("bloom"), np.zeros((4, 4)))


def test_a_model_whose_attention_rounds_coarsely_gets_its_gates_and_wrong_gates_are_still_refused(
    monkeypatch,
):
    hf = tiny_model("gpt2")
    with torch.no_grad():
        for block in hf.transformer.h:  # large values that cancel behind the heads: their rounding remains
            block.attn.c_attn.bias[-block.attn.embed_dim :] += 3000
            block.attn.c_proj.weight -= block.attn.c_proj.weight.mean(0)
    plain = probe_logits(hf)
    sparse.install(hf, np.full((4, 4), np.inf))
    assert float((probe_logits(hf) - plain).abs().max()) > 4 * rounding(hf, plain)
    hf.set_attn_implementation("sdpa")
    scores = sparse.edge_scores
    monkeypatch.setattr(sparse, "edge_scores", lambda query, key, scaling: 1.2 * scores(query, key, scaling))
    with pytest.raises(HeadwiseError, match="every edge open"):
        sparse.install(hf, np.full((4, 4), np.inf))


def test_other_weights_a_missing_base_and_a_broken_file_are_told_in_a_sentence(sparse_folder):
    path = sparse_folder / "edge_gates.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "fingerprint": "0" * 16}))
    with pytest.raises(HeadwiseError, match="trained on other weights"):
        hw.load(sparse_folder, device="cpu")
    path.write_text(json.dumps({**content, "base": str(sparse_folder / "gone")}))
    with pytest.raises(HeadwiseError, match=r"base model of .*no file or folder"):
        hw.load(sparse_folder, device="cpu")
    path.write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(HeadwiseError, match="update headwise"):
        hw.load(sparse_folder, device="cpu")
    path.write_text("{")
    with pytest.raises(HeadwiseError, match="cannot be read"):
        hw.load(sparse_folder, device="cpu")
    path.write_text(json.dumps(content))
    (sparse_folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_dora": True})
    )
    with pytest.raises(HeadwiseError, match="not plain low-rank"):
        hw.load(sparse_folder, device="cpu")


def test_another_threshold_is_another_fingerprint_and_half_precision_keeps_the_gates(sparse_folder):
    one = hw.load(sparse_folder, device="cpu")
    half = hw.load(sparse_folder, device="cpu", dtype="bfloat16")
    assert half.dtype == torch.bfloat16
    assert half.hf.model.rotary_emb.inv_freq.dtype == torch.float32
    assert float((plain_logits(one, [3, 4, 5]) - plain_logits(half, [3, 4, 5]).float()).abs().max()) < 0.1
    path = sparse_folder / "edge_gates.json"
    content = json.loads(path.read_text())
    content["bias"][2][1] += 0.5
    path.write_text(json.dumps(content))
    assert hw.load(sparse_folder, device="cpu").fingerprint != one.fingerprint


def test_a_control_has_the_adapter_and_no_gates(sparse_folder):
    path = sparse_folder / "edge_gates.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bias": None}))
    model = hw.load(sparse_folder, device="cpu")
    ids = model.tokens(SENTENCES[1])
    with torch.no_grad():
        expected = merged_by_hand(sparse_folder)(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    assert float((plain_logits(model, ids) - expected).abs().max()) < 1e-4


@pytest.fixture
def installed(sparse_folder, monkeypatch):
    """The tiny sparse model as what an installed headwise-companions would hold, under the alias smollm2-sparse."""
    root = sparse_folder.parent / "somewhere" / "headwise_companions"
    root.mkdir(parents=True)
    sparse_folder.rename(root / "smollm2-sparse")
    files = {path.relative_to(root).as_posix(): path for path in root.glob("*/*")}
    manifest = {
        name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for name, path in files.items()
    }
    (root / "manifest.json").write_text(json.dumps(manifest))
    pinned = hashlib.sha256((root / "manifest.json").read_bytes()).hexdigest()
    monkeypatch.setattr(bundled, "MANIFEST_SHA256", pinned)
    monkeypatch.syspath_prepend(root.parent)
    return root


def test_an_alias_whose_package_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setattr(bundled, "PACKAGE", "headwise_companions_of_nobody")
    with pytest.raises(
        HeadwiseError, match=r"headwise-companions, which is not installed; .*pip install .*companions"
    ):
        hw.load("smollm2-sparse")
    assert bundled.companions() == {}


def test_an_alias_loads_the_folder_of_its_name_and_is_listed(installed, capsys):
    from headwise.cli import list as listing

    model = hw.load("smollm2-sparse", device="cpu")
    assert model.name == "smollm2-sparse"
    assert model.edge_gates.bias.shape == model.shape
    listing.list_("models")
    assert "smollm2-sparse\tSmolLM2-135M-Instruct with sparse attention" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    ["manifest.json", *(f"smollm2-sparse/{n}" for n in (adapter.WEIGHTS, adapter.GATES, adapter.CONFIG))],
)
def test_a_companion_with_one_changed_byte_or_a_missing_file_is_refused_by_the_files_name(installed, name):
    content = (installed / name).read_bytes()
    (installed / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(HeadwiseError, match=rf"{name} is not the file .* SHA-256 differs"):
        hw.load("smollm2-sparse", device="cpu")
    if name != "manifest.json":
        (installed / name).unlink()
        with pytest.raises(HeadwiseError, match=rf"{name} cannot be read"):
            hw.load("smollm2-sparse", device="cpu")
    (installed / name).write_bytes(content)  # a refusal is not remembered
    assert hw.load("smollm2-sparse", device="cpu").name == "smollm2-sparse"


def test_a_companion_is_hashed_once_in_a_process(installed, monkeypatch):
    hashed = []
    real = cache.sha256
    monkeypatch.setattr(cache, "sha256", lambda path: hashed.append(path.name) or real(path))
    for _ in range(3):
        assert bundled.companion_folder("smollm2-sparse") == installed / "smollm2-sparse"
    assert sorted(hashed) == sorted(["manifest.json", adapter.WEIGHTS, adapter.GATES, adapter.CONFIG])


def test_the_package_of_companions_is_not_imported(installed):
    (installed / "__init__.py").write_text("raise AssertionError('this is data')")
    assert bundled.companion_folder("smollm2-sparse") == installed / "smollm2-sparse"
    assert "headwise_companions" not in sys.modules


def test_the_companions_of_this_repository_are_found_and_as_the_manifest_says():
    root = REPOSITORY / "companions" / "headwise_companions"
    assert set(bundled.companions()) == {"smollm2-sparse", "smollm2-control"}
    for alias in bundled.companions():
        assert bundled.companion_folder(alias) == root / alias
        assert adapter.read_gates(root / alias).base == "smollm2"
    listed = json.loads((root / "manifest.json").read_text())
    assert set(listed) == {path.relative_to(root).as_posix() for path in root.glob("smollm2-*/*")}
    for name, entry in listed.items():
        assert (root / name).stat().st_size == entry["size"], name


def test_a_sparse_model_is_not_exported_as_a_dense_one(sparse_folder, tmp_path):
    model = hw.load(sparse_folder, device="cpu")
    with pytest.raises(HeadwiseError, match="edge gates, which no plain checkpoint can hold"):
        export(model, model.heads()[:2], tmp_path / "baked")
    assert not (tmp_path / "baked").exists()
