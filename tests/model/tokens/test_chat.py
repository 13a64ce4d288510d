"""Chat templates: what transformers makes of them, and what is done where one does not end."""

from __future__ import annotations

import os
import time

import pytest

from headwise.errors import HeadwiseError
from headwise.model.tokens import chat
from headwise.model.tokens.text import Text
from helpers import make_word_tokenizer

PLAIN = "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}{% endfor %}"
PLAIN += "{% if add_generation_prompt %}<assistant>{% endif %}"
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "  an é and a\nline "}]


@pytest.fixture
def text():
    found = Text(make_word_tokenizer())
    found.tokenizer.chat_template = PLAIN
    return found


@pytest.mark.parametrize("answering", [True, False])
def test_a_template_gives_what_transformers_makes_of_it(text, answering):
    expected = text.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=answering, tokenize=False)
    assert text.chat(MESSAGES, answering) == expected
    assert expected.startswith("<s><system>be brief<user>an é and a\nline")


def test_a_template_that_refuses_is_quoted_and_the_next_chat_is_rendered(text):
    text.tokenizer.chat_template = "{{ raise_exception('no system role here') }}"
    with pytest.raises(
        HeadwiseError, match=r"refuses these messages \(system, user, …\): no system role here"
    ):
        text.chat(MESSAGES)
    text.tokenizer.chat_template = PLAIN
    assert text.chat(MESSAGES).endswith("<assistant>")


def loops(body):
    return "{% for a in range(99999) %}{% for b in range(99999) %}" + body + "{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (loops(""), "was stopped: it takes more than 1 seconds or too much memory"),
        (loops("{{ 'x' * 1000000 }}"), "was stopped"),
        ("{{ 'x' * 99999999999 }}", "was stopped"),
        ("{{ 'x' * 20000000 }}", "makes more than 10000000 characters"),
    ],
    ids=["loops in loops", "text without end", "one text of 100 GB", "a text too long"],
)
def test_a_template_without_end_is_stopped_in_one_sentence_and_the_next_chat_is_rendered(
    text, template, said, monkeypatch
):
    text.chat(MESSAGES)  # the process has started
    if "stopped" in said:
        monkeypatch.setattr(chat, "SECONDS", 1.0)
    text.tokenizer.chat_template = template
    began = time.monotonic()
    with pytest.raises(HeadwiseError, match=said):
        text.chat(MESSAGES)
    assert time.monotonic() - began < 8
    monkeypatch.undo()
    text.tokenizer.chat_template = PLAIN
    assert text.chat(MESSAGES).endswith("<assistant>")


def test_one_process_serves_many_chats_and_is_started_again_where_it_has_ended(text):
    text.chat(MESSAGES)
    first = chat._started[os.getpid()]
    text.chat(MESSAGES)
    assert chat._started[os.getpid()] is first
    first.kill()
    first.wait()
    assert text.chat(MESSAGES).endswith("<assistant>")


def test_an_interrupted_chat_does_not_answer_the_next_one(text, monkeypatch):
    text.chat(MESSAGES)

    def interrupted(process, line, seconds):
        process.stdin.write(line)
        process.stdin.flush()
        raise KeyboardInterrupt

    monkeypatch.setattr(chat, "_asked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        text.chat(MESSAGES)
    monkeypatch.undo()
    assert text.chat([{"role": "user", "content": "the next"}]) == "<s><user>the next<assistant>"


def test_a_module_in_the_working_folder_is_not_run(text, tmp_path, monkeypatch):
    (tmp_path / "transformers.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    chat._end()
    assert text.chat(MESSAGES).endswith("<assistant>")
    assert not (tmp_path / "ran").exists()


@pytest.mark.bundled
def test_smollm2s_template_gives_what_transformers_makes_of_it(smollm2):
    tokenizer = smollm2.text.tokenizer
    expected = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert smollm2.text.chat(MESSAGES) == expected
