"""Tokenizers of different kinds, made on the spot, and the bundled model's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headwise.tasks import families, task

Encode = Callable[[str], list[int]]


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    """A small text: a little of every task, and years, so that digits are merged into longer tokens. Tasks of long
    prompts are left out: their filler would take the room of all other words."""
    texts = [
        e.prompt + e.target
        for name, family in families().items()
        if "length" not in family.options
        for e in task(name, 60, seed=99)
    ]
    return [*texts, *(f"From {year} to {year + 7}." for year in range(1100, 1900, 3))]


@pytest.fixture(scope="session")
def byte_bpe(corpus: list[str]) -> Encode:
    """As GPT-2's: bytes, a space belongs to the word after it, digits may merge."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return lambda text: tokenizer.encode(text).ids


@pytest.fixture(scope="session")
def metaspace_unigram(corpus: list[str]) -> Encode:
    """As SentencePiece's: pieces of a unigram model, ▁ for the space, one before the text, and a beginning token."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Metaspace(prepend_scheme="first")]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=2000, unk_token="<unk>", special_tokens=["<unk>", "<s>"], show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return lambda text: [tokenizer.token_to_id("<s>"), *tokenizer.encode(text).ids]


@pytest.fixture(scope="session")
def smollm2_tokens() -> Encode:
    """The bundled model's tokenizer alone, without its weights in memory."""
    from transformers import AutoTokenizer

    from headwise.model.load.bundled import fetch

    tokenizer = AutoTokenizer.from_pretrained(fetch("smollm2"))
    return lambda text: tokenizer(text)["input_ids"]


@pytest.fixture(
    scope="session",
    params=[
        "byte_bpe",
        "metaspace_unigram",
        pytest.param("smollm2_tokens", marks=pytest.mark.bundled),
    ],
)
def tokens(request: pytest.FixtureRequest) -> Encode:
    """Each of the tokenizers in turn."""
    return request.getfixturevalue(request.param)
