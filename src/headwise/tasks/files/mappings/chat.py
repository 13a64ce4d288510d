"""Chats: {messages: [{role, content}, …]}, or ShareGPT's {conversations: [{from, value}, …]}.

The last message, which must be the assistant's, is the target. The messages before it are the prompt, written by the
chat template of the model. A counterfactual is a list of messages too, whose answer is left out where it has one, or a
text that stands for the last message before the answer.
"""

from __future__ import annotations

import random
from typing import Any

from headwise.errors import HeadwiseError, hint
from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import NeedsTokenizer, Pairs, each_row, register
from headwise.tasks.files.rows import Log, Row, RowError, Table, as_text, kind
from headwise.tasks.registry import ModelText

_FIELDS = ("messages", "conversations")
_ROLES = {"human": "user", "gpt": "assistant"}


@register(
    "chat",
    about="{messages: [{role, content}]}: the assistant's last message, after the others in the chat template",
    fields=(*_FIELDS, "counterfactual"),
    recognises=lambda row: any(isinstance(row.get(name), list) for name in _FIELDS),
    asked=lambda row: _chat(row)[-2]["content"],
)
def chat(table: Table, log: Log, draw: random.Random) -> Pairs:
    if table.text is not None and not table.text.has_chat:
        columns = hint("columns", {"prompt": "NAME", "target": "NAME"})
        raise HeadwiseError(
            f"{log.source} has chats, but the tokenizer of this model has no chat template; use a chat model, or give "
            f"columns of text: {columns}"
        )

    def example(row: Row) -> Example:
        messages = _chat(row)
        other = _counterfactual(row, messages)
        if table.text is None:
            return Example(messages[-2]["content"], messages[-1]["content"])
        prompt, target = _rendered(table.text, messages)
        prompt_of_other = _without_prefix(table.text, table.text.chat(other)) if other else None
        return Example(prompt, target, counterfactual=prompt_of_other)

    pairs = each_row(table, log, example)
    log.refuse_if_bad()
    if table.text is None:
        raise NeedsTokenizer(f"{log.source} has chats, which")
    return pairs


def _chat(row: Row) -> list[dict[str, str]]:
    name = next((name for name in _FIELDS if name in row.values), _FIELDS[0])
    messages = _messages(row, name)
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        last = f"the last message is from {messages[-1]['role']!r}" if messages else f"{name!r} is empty"
        raise RowError(f"{last}, expected a question and then the assistant's answer as the last message")
    return messages


def _counterfactual(row: Row, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """The messages of the counterfactual, without an answer; none where there is no counterfactual."""
    other = row.get("counterfactual") or []
    if isinstance(other, str):
        return [*messages[:-2], {**messages[-2], "content": other}]
    others = _messages(row, "counterfactual") if other else []
    return others[:-1] if others and others[-1]["role"] == "assistant" else others


def _messages(row: Row, name: str) -> list[dict[str, str]]:
    listed = row.need(name)
    expected = 'expected a list such as [{"role": "user", "content": …}, {"role": "assistant", "content": …}]'
    if not isinstance(listed, list) or not all(isinstance(message, dict) for message in listed):
        raise RowError(f"{name!r} is {kind(listed)}, {expected}")
    return [
        {"role": _role(message), "content": as_text(_either(message, "content", "value"), "content")}
        for message in listed
    ]


def _either(message: dict[str, Any], *names: str) -> Any:
    return next((message[name] for name in names if message.get(name) is not None), None)


def _role(message: dict[str, Any]) -> str:
    role = as_text(_either(message, "role", "from"), "role")
    return _ROLES.get(role, role)


def _rendered(text: ModelText, messages: list[dict[str, str]]) -> tuple[str, str]:
    """Prompt and target; the target with the white space that the template puts before it."""
    prompt, answer = text.chat(messages[:-1]), messages[-1]["content"].strip()
    whole = text.chat(messages, add_generation_prompt=False)
    before, found, _ = whole.removeprefix(prompt).partition(answer)
    space = before if whole.startswith(prompt) and found and not before.strip() else ""
    return _without_prefix(text, prompt), space + answer


def _without_prefix(text: ModelText, prompt: str) -> str:
    """Every text begins with the tokenizer's prefix, which the template writes too."""
    return prompt.removeprefix(text.decode(text.prefix) if text.prefix else "")
