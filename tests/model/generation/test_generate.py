"""Generation against transformers' own `generate`, edited weights, and a slow loop without cache or batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head, keep_gates, mask_gates, ones
from headwise.model.forward.decode import Batch
from headwise.model.generation.prompts import choose, continuation, uniforms
from headwise.model.verify.proof import zeroed_columns
from headwise.model.verify.shortcuts import Decoding, decoding
from headwise.model.verify.tiny import tiny_model
from helpers import WORDS, HeadsByHook, make_word_tokenizer, plain_logits

# With a window of 16 tokens, the longest of these leave it while they are read or while they are written.
LENGTHS = (3, 7, 1, 20, 12, 7)
PROMPTS = [" ".join(np.random.default_rng(n).choice(WORDS, length)) for n, length in enumerate(LENGTHS)]
FAMILIES = ["llama", "gpt2", "gptj", "gemma2", "mistral"]


def loaded(family, tokenizer, seed=0):
    hf = tiny_model(family, seed=seed, vocab_size=len(tokenizer))
    hf.generation_config.eos_token_id = None  # texts end where a test says so
    model = hw.load(hf, tokenizer=tokenizer, name=family)
    model.text.tokenizer.eos_token = None
    return model


@pytest.fixture(params=FAMILIES)
def family(request):
    return loaded(request.param, make_word_tokenizer())


@pytest.fixture
def llama():
    return loaded("llama", make_word_tokenizer())


def theirs(model, prompt, count=12):
    """What transformers writes after one prompt alone, without the end token."""
    ids = torch.tensor([model.tokens(prompt)])
    mask = torch.ones_like(ids)
    written = model.hf.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=count, pad_token_id=0
    )
    tokens = written[0, ids.shape[1] :].tolist()
    end = model.hf.generation_config.eos_token_id
    return tokens[: tokens.index(end)] if end in tokens else tokens


def slow_loop(model, prompt, edit, count=8):
    """Greedy decoding by hand: hooks, the whole text read again for each token. edit(layer, z, prompt length)."""
    ids = model.tokens(prompt)
    length = len(ids)
    for _ in range(count):
        with HeadsByHook(model, lambda layer, z: edit(layer, z, length)):
            ids = [*ids, int(plain_logits(model, ids)[-1].argmax())]
    return ids[length:]


def some_gates(model):
    rng = np.random.default_rng(0)
    return np.stack(
        [
            ones(model.shape),
            mask_gates([Head(0, 1), Head(2, 3)], model.shape),
            keep_gates([Head(1, 2)], model.shape),
            rng.uniform(0, 2, model.shape),
            np.full(model.shape, 0.001),
        ]
    )


# ---- against transformers ----------------------------------------------------------------------------------


def test_with_all_gates_at_one_the_text_is_the_one_transformers_writes(family):
    written = hw.generate(family, PROMPTS, max_new_tokens=12)
    assert written.tokens[0] == [theirs(family, prompt) for prompt in PROMPTS]
    assert not written.finished.any()
    able = family.capabilities.decoding
    assert able.padding
    assert able.cache


def test_a_prompt_writes_the_same_alone_and_in_a_batch(family):
    gates = some_gates(family)[[0, 3]]
    together = hw.generate(family, PROMPTS, gates, max_new_tokens=6)
    for e, prompt in enumerate(PROMPTS[:4]):
        alone = hw.generate(family, [prompt], gates, max_new_tokens=6, batch_tokens=1)
        assert max(alone.passes) == 1
        assert [row[0] for row in alone.tokens] == [row[e] for row in together.tokens]


def test_a_head_gated_out_writes_what_edited_weights_write(family):
    site, head = family.hooks.sites[1], 2
    gates = mask_gates([Head(site.layer, head)], family.shape)
    written = hw.generate(family, PROMPTS, np.stack([ones(family.shape), gates]), max_new_tokens=12)
    assert written.tokens[0] == [theirs(family, prompt) for prompt in PROMPTS]
    with zeroed_columns(site.projections[0], head, site.head_dim):
        assert written.tokens[1] == [theirs(family, prompt) for prompt in PROMPTS]
    assert written.tokens[0] != written.tokens[1]


def test_rows_that_meet_the_end_token_stop_where_transformers_stops(family):
    free = hw.generate(family, PROMPTS, max_new_tokens=12).tokens[0]
    family.hf.generation_config.eos_token_id = free[0][2]
    written = hw.generate(family, PROMPTS, max_new_tokens=12)
    assert written.tokens[0] == [theirs(family, prompt) for prompt in PROMPTS]
    assert written.finished[0].tolist() == [free[0][2] in tokens for tokens in free]
    assert (written.truncated == ~written.finished).all()


# ---- against a slow loop -----------------------------------------------------------------------------------


def test_gated_text_equals_a_slow_loop_without_cache_or_batch(llama):
    gates = some_gates(llama)
    written = hw.generate(llama, PROMPTS, gates, max_new_tokens=8)
    for v, gate in enumerate(gates):

        def edit(layer, z, _, gate=gate):
            return z * torch.tensor(gate[layer], dtype=z.dtype)[:, None]

        assert written.tokens[v] == [slow_loop(llama, prompt, edit) for prompt in PROMPTS]
    assert len({str(row) for row in written.tokens}) == len(gates)


def test_gates_at_the_last_position_act_from_the_last_prompt_token_on(llama):
    gates = some_gates(llama)[1:4]
    written = hw.generate(llama, PROMPTS, gates, max_new_tokens=8, positions="last")
    for v, gate in enumerate(gates):

        def edit(layer, z, length, gate=gate):
            z = z.clone()
            z[:, length - 1 :] *= torch.tensor(gate[layer], dtype=z.dtype)[:, None]
            return z

        assert written.tokens[v] == [slow_loop(llama, prompt, edit) for prompt in PROMPTS]
    assert written.tokens != hw.generate(llama, PROMPTS, gates, max_new_tokens=8).tokens


@pytest.mark.parametrize("behind", [None, PROMPTS[:2]])
def test_the_mean_reference_is_the_mean_over_the_reference_prompts(llama, behind):
    seen = {layer: [] for layer in range(4)}

    def note(layer, z):
        seen[layer].append(z[0].clone())
        return z

    for prompt in behind or PROMPTS:
        with HeadsByHook(llama, note):
            plain_logits(llama, llama.tokens(prompt))
    mean = {layer: torch.cat(outputs).mean(0) for layer, outputs in seen.items()}
    gates = some_gates(llama)[1:4]
    written = hw.generate(llama, PROMPTS, gates, max_new_tokens=8, reference="mean", reference_prompts=behind)
    for v, gate in enumerate(gates):

        def edit(layer, z, _, gate=gate):
            g = torch.tensor(gate[layer], dtype=z.dtype)[:, None]
            return g * z + (1 - g) * mean[layer]

        assert written.tokens[v] == [slow_loop(llama, prompt, edit) for prompt in PROMPTS]


# ---- how the batch runs ------------------------------------------------------------------------------------


def test_a_row_that_has_finished_leaves_the_batch(llama):
    gates = some_gates(llama)
    free = hw.generate(llama, PROMPTS, gates, max_new_tokens=12).tokens
    llama.hf.generation_config.eos_token_id = free[0][0][2]
    written = hw.generate(llama, PROMPTS, gates, max_new_tokens=12)
    rows = [
        (row[e], written.finished[v, e]) for v, row in enumerate(written.tokens) for e in range(len(PROMPTS))
    ]
    # Every token written was one row of one pass, the end token too.
    assert sum(written.passes) == sum(len(tokens) + ended for tokens, ended in rows)
    assert written.passes[0] == len(gates) * len(PROMPTS)
    assert written.passes[-1] < written.passes[0]


@pytest.mark.parametrize("able", [Decoding(0, p, c) for p in (True, False) for c in (True, False)])
@pytest.mark.parametrize("positions", ["all", "last"])
def test_models_that_cannot_be_padded_or_cached_write_the_same(llama, monkeypatch, able, positions):
    gates = some_gates(llama)[:3]
    best = hw.generate(llama, PROMPTS, gates, max_new_tokens=6, positions=positions)
    monkeypatch.setitem(vars(llama.capabilities), "decoding", able)
    written = hw.generate(llama, PROMPTS, gates, max_new_tokens=6, positions=positions)
    assert written.tokens == best.tokens
    assert (max(written.passes) < max(best.passes)) == (not able.padding)


def test_a_model_that_ignores_positions_is_not_padded(llama):
    plain = llama.hf.forward
    llama.hf.forward = lambda input_ids, attention_mask=None, **rest: plain(input_ids=input_ids, **rest)
    try:
        assert not decoding(llama.hf).padding
        written = hw.generate(llama, PROMPTS, max_new_tokens=4)
    finally:
        del llama.hf.forward
    assert written.tokens[0] == [theirs(llama, prompt, 4) for prompt in PROMPTS]


@pytest.mark.parametrize("batch_tokens", [1, 50, 10_000])
def test_any_token_budget_gives_the_same_text(llama, batch_tokens):
    gates = some_gates(llama)[:3]
    whole = hw.generate(llama, PROMPTS, gates, max_new_tokens=6)
    done = []
    cut = hw.generate(
        llama, PROMPTS, gates, max_new_tokens=6, batch_tokens=batch_tokens, progress=done.append
    )
    assert cut.texts == whole.texts
    assert sum(done) == len(gates) * len(PROMPTS)


def test_running_out_of_memory_halves_the_batch_and_changes_no_text(llama, monkeypatch):
    gates = some_gates(llama)
    whole = hw.generate(llama, PROMPTS, gates, max_new_tokens=6)
    logits = Batch.logits

    def tight(batch, heads=None, **more):
        if len(batch) > 3:
            raise torch.OutOfMemoryError("no room")
        return logits(batch, heads, **more)

    monkeypatch.setattr(Batch, "logits", tight)
    written = hw.generate(llama, PROMPTS, gates, max_new_tokens=6)
    assert written.tokens == whole.tokens
    assert 1 < max(written.passes) <= 3
    monkeypatch.setattr(Batch, "logits", lambda batch, **more: tight([0] * 9))
    with pytest.raises(HeadwiseError, match="does not fit into memory even alone"):
        hw.generate(llama, PROMPTS, gates, max_new_tokens=6)


# ---- texts -------------------------------------------------------------------------------------------------


def test_texts_are_the_tokens_with_the_space_before_them(llama):
    written = hw.generate(llama, PROMPTS, max_new_tokens=5)
    for text, tokens in zip(written.texts[0], written.tokens[0], strict=True):
        words = llama.text.tokenizer.convert_ids_to_tokens(tokens)
        assert text.split() == [word for word in words if word not in ("<unk>", "<s>", "</s>")]
        assert text.startswith(" ")
    assert written.prompts == [llama.tokens(prompt) for prompt in PROMPTS]


def test_texts_end_before_the_first_stop_string(llama):
    free = hw.generate(llama, PROMPTS, max_new_tokens=10)
    words = [text.split() for text in free.texts[0]]
    stops = (f" {words[0][3]}", f"{words[1][4]} {words[1][5]}")
    written = hw.generate(llama, PROMPTS, max_new_tokens=10, stop=stops)
    for e, whole in enumerate(free.texts[0]):
        places = [whole.index(stop) for stop in stops if stop in whole]
        assert written.texts[0][e] == (whole[: min(places)] if places else whole)
        assert written.finished[0, e] == bool(places)
    assert written.finished[0, :2].all()
    assert sum(written.passes) < sum(free.passes)


def test_a_stop_string_may_be_given_by_itself(llama):
    word = hw.generate(llama, PROMPTS[:1], max_new_tokens=5).texts[0][0].split()[1]
    assert hw.generate(llama, PROMPTS[:1], max_new_tokens=5, stop=word).finished.all()


def test_an_empty_prompt_begins_with_a_start_token(llama):
    written = hw.generate(llama, [""], max_new_tokens=2)
    assert written.prompts == [[llama.text.tokenizer.bos_token_id]]


def test_a_space_that_a_tokenizer_drops_is_read_beside_its_neighbour(tiny):
    ids = tiny.tokens("the cat saw")
    assert tiny.text.decode(ids[1:]) == "cat saw"
    assert continuation(tiny, ids[:1], ids[1:]) == " cat saw"


TEMPLATE = (
    "{{ bos_token }} {% for m in messages %}{{ m.role }} {{ m.content }} . {% endfor %}"
    "{% if add_generation_prompt %}one{% endif %}"
)


def test_a_chat_template_is_applied_once_with_one_beginning_token():
    tokenizer = make_word_tokenizer([*WORDS, "user", "system"])
    tokenizer.chat_template = TEMPLATE
    model = hw.load(tiny_model("llama", vocab_size=len(tokenizer)), tokenizer=tokenizer, bos=True)
    messages = [{"role": "system", "content": "he ran"}, {"role": "user", "content": "the cat"}]
    written = hw.generate(model, ["the cat", messages], chat=True, max_new_tokens=1)
    texts = [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids in written.prompts]
    assert texts == ["<s> user the cat . one", "<s> system he ran . user the cat . one"]
    plain = hw.generate(model, ["the cat"], max_new_tokens=1)
    assert tokenizer.convert_ids_to_tokens(plain.prompts[0]) == ["<s>", "the", "cat"]
    # A task of chats, and what transformers' own call wrote, are in the template already.
    task = hw.task([{"messages": [*messages, {"role": "assistant", "content": "saw"}]}], model=model)
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    for given in (task, [whole]):
        assert hw.generate(model, given, chat=True, max_new_tokens=1).prompts == written.prompts[1:]


@pytest.mark.parametrize("call", [hw.generate, hw.attention])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_file_is_not_a_prompt(llama, tmp_path, monkeypatch, call, as_list):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "the cat", "target": " ran"}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadwiseError, match=r"'prompts\.jsonl' is a file.*read.*hw\.task"):
        call(llama, ["prompts.jsonl"] if as_list else "prompts.jsonl")
    assert call(llama, "the cat ran / a.")  # has a slash and a point, and is no file


# ---- sampling ----------------------------------------------------------------------------------------------


def test_sampling_is_seeded_and_the_same_alone_and_in_a_batch(llama):
    options = {"max_new_tokens": 8, "temperature": 1.0, "top_p": 0.9}
    gates = some_gates(llama)[[0, 3]]
    first = hw.generate(llama, PROMPTS, gates, **options)
    assert first.tokens == hw.generate(llama, PROMPTS, gates, batch_tokens=1, **options).tokens
    assert first.tokens != hw.generate(llama, PROMPTS, gates, seed=1, **options).tokens
    alone = hw.generate(llama, PROMPTS[:1], gates[1:], **options)
    assert alone.tokens[0][0] == first.tokens[1][0]


def test_every_variant_meets_the_same_luck_and_every_prompt_its_own(llama):
    same = np.stack([ones(llama.shape)] * 2)
    written = hw.generate(llama, [PROMPTS[0]] * 4, same, temperature=2.0, max_new_tokens=8)
    assert written.tokens[0] == written.tokens[1]
    assert len({tuple(tokens) for tokens in written.tokens[0]}) == 4


def test_a_cold_or_narrow_draw_is_greedy(llama):
    greedy = hw.generate(llama, PROMPTS, max_new_tokens=8).tokens
    assert hw.generate(llama, PROMPTS, max_new_tokens=8, temperature=1e-6).tokens == greedy
    assert hw.generate(llama, PROMPTS, max_new_tokens=8, temperature=1.0, top_p=1e-6).tokens == greedy


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.7), (2.0, 0.9)])
def test_tokens_are_drawn_as_often_as_they_are_probable(temperature, top_p):
    logits = torch.tensor([0.3, 2.0, -1.0, 1.1, 0.0], dtype=torch.float64)
    p = np.exp(logits.numpy() / temperature)
    p /= p.sum()
    order = np.argsort(-p)
    kept = order[
        : 1 + int(np.searchsorted(np.cumsum(p[order]), top_p))
    ]  # the smallest group that reaches top_p
    expected = np.zeros(5)
    expected[kept] = p[kept] / p[kept].sum()
    draws = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    drawn = choose(logits.expand(20_000, 5), temperature, top_p, draws)
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 20_000, expected, atol=2e-4)


def test_luck_is_uniform_and_differs_by_prompt_and_seed():
    drawn = np.concatenate([uniforms(seed, prompt, 500) for seed in range(3) for prompt in range(4)])
    assert len(np.unique(drawn)) == len(drawn)
    assert abs(drawn.mean() - 0.5) < 4 / np.sqrt(12 * len(drawn))


# ---- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": [[{"role": "user", "content": "a"}]]}, "needs chat=True"),
        ({"chat": True}, "has no chat template"),
        ({"stop": ["", "a"]}, "none of them empty"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; expected at least 1"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature. is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"positions": "first"}, "unknown positions 'first'"),
        ({"reference": "zeros"}, "did you mean 'zero'"),
        ({"reference": "patch"}, "is not available in generation"),
        ({"gates": np.ones((2, 3))}, r"expected \[4, 4\] or \[variants, 4, 4\]"),
        ({"gates": np.full((4, 4), np.nan)}, "finite"),
    ],
)
def test_mistakes_are_named(llama, options, message):
    with pytest.raises(HeadwiseError, match=message):
        hw.generate(llama, **{"prompts": PROMPTS, **options})


def test_a_text_longer_than_a_table_of_positions_is_refused_before_it_is_written():
    model = loaded("gpt2", make_word_tokenizer())
    prompt = " ".join(["cat"] * 60)
    assert len(hw.generate(model, [prompt], max_new_tokens=5).tokens[0][0]) == 5
    with pytest.raises(
        HeadwiseError,
        match="the prompt has 65 tokens with the 6 new ones, but the context length of the model is 64",
    ):
        hw.generate(model, [prompt], max_new_tokens=6)


def test_no_prompts_give_no_texts(llama):
    assert hw.generate(llama, []).texts == [[]]


# ---- the bundled model -------------------------------------------------------------------------------------


@pytest.mark.bundled
def test_the_bundled_model_writes_what_transformers_writes(smollm2):
    prompts = [
        "The capital of France is",
        "Once upon a time, in a small village by the sea, there lived an old fisherman who",
        "def fibonacci(n):\n",
    ]
    gates = np.stack([ones(smollm2.shape), mask_gates([Head(3, 4)], smollm2.shape)])
    written = hw.generate(smollm2, prompts, gates, max_new_tokens=6)
    assert written.tokens[0] == [theirs(smollm2, prompt, 6) for prompt in prompts]
    assert "Paris" in written.texts[0][0]
    site = smollm2.hooks.sites[3]
    with zeroed_columns(site.projections[0], 4, site.head_dim):
        assert written.tokens[1] == [theirs(smollm2, prompt, 6) for prompt in prompts]


@pytest.mark.bundled
def test_the_bundled_model_answers_in_its_chat_template(smollm2):
    written = hw.generate(smollm2, ["What is the capital of France?"], chat=True, max_new_tokens=24)
    assert smollm2.text.decode(written.prompts[0]).count("<|im_start|>user") == 1
    assert smollm2.text.decode(written.prompts[0]).endswith("<|im_start|>assistant\n")
    assert "Paris" in written.texts[0][0]
    assert written.finished.all()
