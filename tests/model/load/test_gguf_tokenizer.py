"""A GGUF whose tokenizer transformers makes wrongly is refused; one whose words are kept is not."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headwise.errors import HeadwiseError
from headwise.model.load.gguf import check_tokenizer

WORDS = ("Ġthe", "Ġcat", "Ġsat", "Ġmat", "the", "cat", "sat", "mat")


def merges_of(words):
    """Merges that put each word together from the left."""
    pairs = {}
    for word in words:
        for end in range(1, len(word)):
            pairs[(word[:end], word[end])] = None
    return list(pairs)


def vocabulary(words=WORDS):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return list(dict.fromkeys([*letters, *(a + b for a, b in merges_of(words)), *words]))


def tokenizer_of(tokens, merges, prefix=False):
    backend = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.fixture
def file(tmp_path):
    from gguf import GGUFWriter

    path = tmp_path / "words.gguf"
    writer = GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("prefix", [False, True], ids=["plain", "with a space before every text"])
def test_a_tokenizer_that_keeps_the_files_words_is_accepted(file, prefix):
    check_tokenizer(file, tokenizer_of(vocabulary(), merges_of(WORDS), prefix))


def test_a_tokenizer_that_lost_its_merges_is_refused_with_the_version_of_transformers(file):
    import transformers

    wrong = tokenizer_of(vocabulary(), merges_of(["Ġt"]))
    with pytest.raises(HeadwiseError) as refused:
        check_tokenizer(file, wrong)
    message = str(refused.value)
    assert f"transformers {transformers.__version__} makes of words.gguf is wrong" in message
    assert "' the' becomes ['Ġt', 'h', 'e']" in message


def test_a_tokenizer_whose_ids_are_shifted_is_refused(file):
    shifted = ["<pad>", *vocabulary()]
    with pytest.raises(HeadwiseError, match="are not encoded to them"):
        check_tokenizer(file, tokenizer_of(shifted, merges_of(WORDS)))
