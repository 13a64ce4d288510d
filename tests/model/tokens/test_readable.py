"""Characters of several bytes on every surface: cards, attention, explorer, figures."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headwise as hw
from headwise.charts import style
from headwise.charts.attention import attention_chart
from headwise.charts.static import figure
from headwise.display import UNFINISHED, joined_tokens
from headwise.explorer.live import Live
from headwise.model.tokens.text import readable_token, readable_tokens

TEXTS = ("我住在北京 and 東京", "مرحبا بالعالم", "👩‍💻 says 🎉!", "naïve … “quotes”", "\n\ttabs  and spaces")


@pytest.fixture(scope="module")
def bytes_only():
    """A byte-level tokenizer without merges: every byte is a token of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_is_on_the_token_that_completes_it(text, bytes_only):
    shown = readable_tokens(bytes_only, bytes_only(text)["input_ids"])
    # A second way: the bytes of each character in UTF-8, all but the last marked as unfinished.
    expected = [part for c in text for part in [UNFINISHED] * (len(c.encode()) - 1) + [c]]
    assert shown == expected
    assert joined_tokens(shown) == text


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokens_of_a_real_tokenizer_join_to_the_text_without_damage(text, smollm2):
    shown = smollm2.text.readable(smollm2.text.encode(text))
    assert joined_tokens(shown) == text
    assert "\ufffd" not in "".join(shown)
    assert len(shown) == len(smollm2.text.encode(text))


def test_a_token_that_ends_one_character_and_begins_the_next_shows_the_first():
    class Bytes:
        """Tokens of any bytes."""

        def decode(self, ids):
            return b"".join(ids).decode("utf-8", "replace")

    ni, hao = "你".encode(), "好".encode()
    assert readable_tokens(Bytes(), [b"a" + ni[:1], ni[1:] + hao[:2], hao[2:] + b"!"]) == ["a⋯", "你⋯", "好!"]


def test_bytes_that_are_no_character_do_not_spoil_their_neighbours(bytes_only):
    ids = bytes_only("你")["input_ids"]
    assert readable_token(bytes_only, ids[0]) == "⟨E4⟩"
    assert readable_tokens(bytes_only, [ids[0], *bytes_only("ab")["input_ids"]]) == ["⟨E4⟩", "a", "b"]
    assert readable_tokens(bytes_only, [ids[1]] * 6 + ids)[-3:] == ["⋯", "⋯", "你"]


def test_attention_cards_and_the_explorer_show_characters(smollm2):
    prompt = "我住在北京"
    seen = hw.attention(smollm2, prompt, heads=["L3H1"])
    assert joined_tokens(seen.tokens) == prompt
    assert prompt in repr(seen)
    task = hw.task(
        [{"prompt": prompt, "target": "市"}, {"prompt": "我住在東京", "target": "市"}], name="chinese"
    )
    card = hw.card(smollm2, "L3H1", task)
    assert prompt in str(card)
    assert "\ufffd" not in str(card)
    assert "\ufffd" not in card._repr_html_()
    texts = [Live(smollm2)._token(token) for token in range(len(smollm2.text.tokenizer))]
    assert "\ufffd" not in "".join(texts)


def test_a_figure_draws_every_character_it_has_a_font_for_without_warnings():
    tokens = ["你", "⋯", "مرحبا", "🎉", "é$", "\U0010fffd"]  # no font has the last
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = figure(attention_chart(np.tril(np.ones((6, 6))), tokens))
        style.png(drawn)
    labels = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert labels[1] == "⋯"
    assert labels[4:] == [r"é\$", "□"]
    known = style._characters()
    assert labels[0] == ("你" if ord("你") in known else "□")


def test_a_font_that_is_installed_is_used_where_the_first_one_lacks_a_character(monkeypatch):
    monkeypatch.setattr(style, "_FONTS", ("No Such Font", "STIXGeneral"))  # the second comes with Matplotlib
    for cached in (style.font_families, style._characters):
        cached.cache_clear()
    assert style.font_families() == ["DejaVu Sans", "STIXGeneral"]
    for cached in (style.font_families, style._characters):
        cached.cache_clear()


def test_positions_and_the_logit_lens_show_whole_characters_too(smollm2):
    text = "我住在北京"
    (read,) = hw.lens(smollm2, [text])
    assert joined_tokens(read.prompt) == text
    assert "\ufffd" not in repr(read)
    example = [{"prompt": text, "target": " a", "foils": [" b"]}]
    each = hw.score(smollm2, example, "attribution", positions="each", heads=["L0H0"], progress=False)
    assert joined_tokens(each.tokens) == text
