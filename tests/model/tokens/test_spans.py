"""Inserted tokens, for tokenizers that merge text across a border, against a slow rule on single characters."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.model.tokens.spans import aligned, encoded, locate
from headwise.model.tokens.text import Text
from headwise.tasks.conditions import Piece, merged_pieces

CORPUS = [
    "Q: he has 3 // apples and/or 4 pears. he he he\n\nA: 3 + 4 = 7",
    "/ / / / he / he, the // hehe  a/b\nthe theatre: 12/24 é ü 数学 🙂 he he he he",
    "what is 12/4? he said: / / /\n\n\n/ / she\t/",
] * 8
ALPHABET = "ah /e\nQ:1é数🙂t."


def _trained(model, trainer, pre_tokenizer, decoder=None, normalizer=None):
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizer
    if decoder is not None:
        backend.decoder = decoder
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")


@functools.cache
def tokenizer_of(kind):
    """Tokenizers of different kinds, trained on the spot on text full of fillers, so that they merge them."""
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    if kind == "bytes":  # as GPT-2 and SmolLM2: a space belongs to the word after it
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<unk>", "<s>"],
        )
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return _trained(models.BPE(), trainer, level, decoders.ByteLevel())
    if (
        kind == "unbounded bytes"
    ):  # merges run across words, spaces and line ends: borders are crossed all the time
        trainer = trainers.BpeTrainer(
            vocab_size=500,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<unk>", "<s>"],
        )
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return _trained(models.BPE(), trainer, level, decoders.ByteLevel())
    if kind == "pieces":  # as Llama 2 and Gemma: spaces become ▁ and one is put in front
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>"])
        space = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        return _trained(
            models.BPE(unk_token="<unk>", byte_fallback=False), trainer, space, decoders.Metaspace()
        )
    if kind == "unigram":
        trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=["<unk>", "<s>"], unk_token="<unk>")
        return _trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace())
    if kind == "word pieces":  # as BERT: lower case, spaces dropped
        trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["<unk>", "<s>"])
        return _trained(
            models.WordPiece(unk_token="<unk>"),
            trainer,
            pre_tokenizers.BertPreTokenizer(),
            decoders.WordPiece(),
            normalizers.BertNormalizer(),
        )
    from transformers import ByT5Tokenizer

    return ByT5Tokenizer()  # slow: it does not say which characters a token holds


KINDS = ["bytes", "unbounded bytes", "pieces", "unigram", "word pieces", "slow"]
texts = st.text(ALPHABET, max_size=12)
fillers = st.one_of(
    texts,
    st.builds(
        lambda unit, n, end: " ".join([unit] * n) + end,
        st.sampled_from("/ he // a".split()),
        st.integers(1, 9),
        st.sampled_from(["", "\n", " "]),
    ),
)


def by_character(whole, own, span):
    """The rule in the words of the documentation, one character at a time."""
    mine = [whole[i] for i in range(*span) if own[i]]
    theirs = [whole[i] for i in range(*span) if not own[i]]
    if not theirs:
        return False
    if not mine:
        return True
    return all(c.isspace() for c in mine) and any(not c.isspace() for c in theirs)


def check_located(tokenizer, pieces, drops_characters=False):
    """Every token is on the side that the rule says, and nothing visible of the problem is lost."""
    whole = "".join(piece.text for piece in pieces)
    own = [not piece.inserted for piece in pieces for _ in piece.text]
    ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
    if not ids:
        return
    found = locate(Text(tokenizer), merged_pieces(pieces), begin=False)
    assert found.ids == ids  # the text is read as one, never in parts
    spans = encoded(tokenizer, whole)[1]
    for at, span in enumerate(spans):
        if span[0] < span[1]:
            assert found.inserted[at] == by_character(whole, own, span)
    if not drops_characters:
        held = {i for at, span in enumerate(spans) if not found.inserted[at] for i in range(*span)}
        assert all(i in held for i, c in enumerate(whole) if own[i] and not c.isspace())
    assert found.straddling == sum(len({own[i] for i in range(*span)}) == 2 for span in spans)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(before=texts, filler=fillers, middle=texts, second=st.one_of(st.just(""), fillers), after=texts)
def test_inserted_tokens_are_located_exactly(kind, before, filler, middle, second, after):
    pieces = [Piece(before), Piece(filler, True), Piece(middle), Piece(second, True), Piece(after)]
    check_located(tokenizer_of(kind), pieces, drops_characters=kind == "word pieces")


@pytest.mark.bundled
def test_inserted_tokens_are_located_exactly_by_the_bundled_tokenizer(smollm2):
    draw = random.Random(0)

    def text():
        return "".join(draw.choice(ALPHABET) for _ in range(draw.randrange(12)))

    for _ in range(300):
        filler = " ".join([draw.choice("/ he // a".split())] * draw.randrange(60)) + draw.choice(
            ["", " ", "\n"]
        )
        check_located(smollm2.text.tokenizer, [Piece(text()), Piece(filler, True), Piece(text())])


@pytest.mark.parametrize("kind", ["bytes", "unbounded bytes", "slow"])
@settings(max_examples=120, deadline=None)
@given(before=texts, filler=fillers, after=texts)
def test_the_characters_of_byte_tokens_are_those_of_their_bytes(kind, before, filler, after):
    """A second way to the same spans: add up the bytes of the tokens."""
    tokenizer = tokenizer_of(kind)
    whole = before + filler + after
    ids, spans = encoded(tokenizer, whole)
    if kind == "slow":
        lengths = [1] * len(ids)
    else:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        table = {letter: byte for byte, letter in bytes_to_unicode().items()}
        lengths = [len([table[c] for c in token]) for token in tokenizer.convert_ids_to_tokens(ids)]
    owner = [i for i, c in enumerate(whole) for _ in c.encode()]  # byte -> character
    at = 0
    for length, (first, last) in zip(lengths, spans, strict=True):
        characters = owner[at : at + length]
        at += length
        assert (first, last) == (characters[0], characters[-1] + 1)
    assert at == len(owner)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@example(before="1", filler="e", after="1")
@given(before=texts, filler=fillers, after=texts)
def test_shared_tokens_are_the_same_text_in_every_prompt(kind, before, filler, after):
    tokenizer = tokenizer_of(kind)
    text = Text(tokenizer)
    plain = locate(text, [Piece(before), Piece(after)], begin=False)
    full = locate(text, merged_pieces([Piece(before), Piece(filler, True), Piece(after)]), begin=False)
    places = aligned([plain, full])
    assert (np.diff(places, axis=1) > 0).all()  # in order, each once
    assert not full.inserted[places[1]].any()
    spans = [encoded(tokenizer, before + after)[1], encoded(tokenizer, before + filler + after)[1]]
    for one, other in places.T:
        if (before + after) and one < len(spans[0]) and other < len(spans[1]):
            held = (before + after)[slice(*spans[0][one])].strip()
            assert held in (before + filler + after)[slice(*spans[1][other])]
    if not filler:
        assert len(places[0]) == len(plain.ids)


def test_a_filler_that_merges_with_nobody_is_all_that_is_marked():
    tokenizer = tokenizer_of("bytes")
    slashes = " ".join("/" * 55)
    found = locate(
        Text(tokenizer), [Piece("Q: he has\n\n"), Piece(slashes + "\n", True), Piece("Q: what")], begin=False
    )
    (marked,) = [tokenizer.decode([i for i, x in zip(found.ids, found.inserted, strict=True) if x])]
    assert marked.strip() == slashes
    assert tokenizer.decode([i for i, x in zip(found.ids, found.inserted, strict=True) if not x]).split() == (
        "Q: he has Q: what".split()
    )


def test_the_beginning_token_belongs_to_the_prompt(word_tokenizer):
    text = Text(word_tokenizer, wants_bos=True)
    found = locate(text, [Piece("he ", True), Piece("the cat")], begin=True)
    assert found.ids == text.encode("he the cat")
    assert found.inserted.tolist() == [False, True, False, False]
    assert aligned([found, locate(text, [Piece("the cat")], begin=True)]).tolist() == [[0, 2, 3], [0, 1, 2]]


def test_a_tokenizer_that_neither_tells_nor_decodes_is_refused_in_a_sentence():
    class Shouting:
        is_fast = False
        bos_token_id = eos_token_id = None

        def __call__(self, text, **_):
            return {"input_ids": [ord(c) for c in text]}

        def decode(self, ids, **_):
            return "".join(map(chr, ids)).upper()

    with pytest.raises(HeadwiseError, match="Shouting does not say which characters its tokens hold"):
        locate(Text(Shouting()), [Piece("he")], begin=False)
