"""Rows and what is read off them, by hand on small sentences."""

from __future__ import annotations

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.tokens.encode import encode_rows
from headwise.model.tokens.spans import encoded
from headwise.model.tokens.text import Text, tokenized
from headwise.model.verify.tiny import tiny_model
from headwise.tasks import Example, Task
from helpers import PANIC, make_panicking_tokenizer, plain_logits


def value(model, example, name):
    return float(Engine(model, Task("one", (example,)), metric(name)).full()[0])


def logprobs(model, text):
    """log p of each token of a text given those before it."""
    ids = model.tokens(text)
    table = plain_logits(model, ids).log_softmax(-1)
    return [float(table[i, token]) for i, token in enumerate(ids[1:])]


def test_logprob_sums_the_targets_tokens(tiny):
    example = Example("the cat", " saw the dog")
    expected = logprobs(tiny, "the cat saw the dog")[1:]
    assert value(tiny, example, "logprob") == pytest.approx(sum(expected), abs=1e-5)
    assert value(tiny, example, "mean_logprob") == pytest.approx(sum(expected) / 3, abs=1e-5)
    assert value(tiny, example, "prob") == pytest.approx(np.exp(sum(expected)), rel=1e-4)


def test_logit_diff_is_taken_at_the_first_difference(tiny):
    example = Example("the cat", " saw the dog", (" saw the bird", " met it"))
    after = plain_logits(tiny, tiny.tokens("the cat saw the"))
    dog, bird = tiny.tokens("dog bird")
    saw, met = tiny.tokens("saw met")
    expected = ((after[3][dog] - after[3][bird]) + (after[1][saw] - after[1][met])) / 2
    assert value(tiny, example, "logit_diff") == pytest.approx(float(expected), abs=1e-5)


def test_prob_diff_sums_over_sets_and_leaves_out_what_is_in_both(tiny):
    example = Example("he sat", " one", (" two", " red big"), also=(" blue", " red small"))
    p = plain_logits(tiny, tiny.tokens("he sat"))[-1].softmax(-1)
    one, blue, two = tiny.tokens("one blue two")
    assert value(tiny, example, "prob_diff") == pytest.approx(float(p[one] + p[blue] - p[two]), abs=1e-6)


@pytest.mark.parametrize(
    ("target", "foil"), [("dog", "bird"), ("the dog ran", "a bird"), ("a bird", "the dog ran")]
)
def test_accuracy_lets_whole_continuations_compete(tiny, target, foil):
    example = Example("she saw", f" {target}", (f" {foil}",))
    scores = [sum(logprobs(tiny, f"she saw {text}")[1:]) for text in (target, foil)]
    assert value(tiny, example, "accuracy") == float(scores[0] > scores[1])


def test_accuracy_without_foils_is_greedy_decoding(tiny):
    ids = tiny.tokens("the cat")
    for _ in range(2):
        ids.append(int(plain_logits(tiny, ids)[-1].argmax()))
    right = tiny.text.decode(ids[2:])
    assert value(tiny, Example("the cat", f" {right}"), "accuracy") == 1
    wrong = "bird" if not right.endswith("bird") else "dog"
    assert value(tiny, Example("the cat", f" {right.split()[0]} {wrong}"), "accuracy") == 0


def test_accuracy_of_a_mixed_task_is_that_of_each_example_alone(tiny):
    examples = (
        Example("the cat", " saw"),
        Example("she saw", " dog", (" bird", " cat")),
        Example("he met", " the dog ran", (" a bird",)),
    )
    together = Engine(tiny, Task("mixed", examples), metric("accuracy")).full()
    assert together.tolist() == [value(tiny, e, "accuracy") for e in examples]


def test_whole_sentences_are_compared_from_an_empty_prompt(tiny):
    example = Example("", "the cat ran", ("cat the ran",))
    ids = {text: [tiny.text.start()[0], *tiny.tokens(text)] for text in ("the cat ran", "cat the ran")}

    def total(text):
        table = plain_logits(tiny, ids[text]).log_softmax(-1)
        return sum(float(table[i, token]) for i, token in enumerate(ids[text][1:]))

    assert value(tiny, example, "logprob") == pytest.approx(total("the cat ran"), abs=1e-5)
    assert value(tiny, example, "accuracy") == float(total("the cat ran") > total("cat the ran"))


def test_a_target_that_tokenises_to_nothing_is_an_error(tiny):
    with pytest.raises(HeadwiseError, match="tokenises to nothing"):
        encode_rows(tiny.text, [Example("the cat", "  ")], "target")


def test_a_metric_that_needs_foils_says_which_example_has_none(tiny):
    with pytest.raises(HeadwiseError, match=r"example 2 .* has no foils"):
        encode_rows(tiny.text, [Example("a", " cat", (" dog",)), Example("the", " cat")], "pairs")


def test_a_foil_that_begins_with_the_target_is_an_error(tiny):
    with pytest.raises(HeadwiseError, match="must differ in a token"):
        encode_rows(tiny.text, [Example("the", " cat", (" cat ran",))], "pairs")


def test_an_empty_task_is_an_error():
    with pytest.raises(HeadwiseError, match="'nothing' is empty"):
        Task("nothing", ())


def test_the_beginning_token_is_added_where_the_model_wants_it(word_tokenizer):
    bos = word_tokenizer.bos_token_id
    assert Text(word_tokenizer).encode("the cat")[0] != bos
    assert Text(word_tokenizer, wants_bos=True).encode("the cat")[0] == bos
    assert Text(word_tokenizer, wants_bos=True).encode_many(["the", "a cat"])[1][0] == bos


def test_a_beginning_token_that_the_tokenizer_adds_is_not_added_twice(word_tokenizer):
    import copy

    from tokenizers.processors import TemplateProcessing

    adding = copy.deepcopy(word_tokenizer)
    marks = [("<s>", adding.bos_token_id), ("</s>", adding.eos_token_id)]
    adding.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    for wants in (None, True):
        assert Text(adding, wants_bos=wants).encode("the cat") == [
            adding.bos_token_id,
            *word_tokenizer("the cat").input_ids,
        ]
    assert Text(adding, wants_bos=False).encode("the cat") == word_tokenizer("the cat").input_ids


@pytest.mark.bundled
def test_targets_that_merge_with_the_prompt_are_read_as_the_model_would(smollm2):
    """The prompt ends in a space, which the tokenizer joins with the word that follows."""
    (row,) = encode_rows(smollm2.text, [Example("The cat sat on the ", "mat")], "target")
    whole = smollm2.tokens("The cat sat on the mat")
    assert row.ids == whole[:-1]
    assert row.tokens == whole[-1:]


def _panicking():
    tokenizer = make_panicking_tokenizer()
    return hw.load(tiny_model("llama", vocab_size=len(tokenizer)), tokenizer=tokenizer)


@pytest.mark.parametrize(
    "use",
    [
        lambda: hw.generate(_panicking(), PANIC),
        lambda: hw.attention(_panicking(), PANIC),
        lambda: hw.score(_panicking(), [("the cat", f" {PANIC}")], progress=False),
        lambda: encoded(make_panicking_tokenizer(), PANIC),
    ],
)
def test_a_panic_of_the_tokenizer_is_a_headwise_error(use):
    with pytest.raises(HeadwiseError, match=r"the tokenizer cannot read .*retry-limit"):
        use()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_passes_through_the_tokenizer(error):
    def interrupted(texts, **options):
        raise error

    with pytest.raises(error):
        tokenized(interrupted, "a")


@pytest.mark.parametrize("half", ["\ud800", "a\udfff"])
def test_half_a_character_in_a_prompt_or_an_answer_is_refused(tiny, half):
    for use in (
        lambda: hw.generate(tiny, f"the cat {half}"),
        lambda: hw.attention(tiny, f"the cat {half}"),
        lambda: hw.patch(tiny, f"the cat {half}", "the dog", ["L0H0"]),
        lambda: hw.score(tiny, Task("half", (Example("the cat", f" saw{half}", (" met",)),)), progress=False),
        lambda: tiny.tokens(half),
    ):
        with pytest.raises(HeadwiseError, match="half a character"):
            use()
