"""What the tests of the command line share."""

from __future__ import annotations

import pytest

from headwise.model.verify.tiny import tiny_model
from helpers import make_word_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model whose tokenizer knows the words of the task `induction`."""
    from headwise.tasks.builtin.induction import WORDS

    tokenizer = make_word_tokenizer(WORDS)
    place = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place
