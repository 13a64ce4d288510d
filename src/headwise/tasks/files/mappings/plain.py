"""Data of no published form: chats, questions with their answers, and lines of text."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import NonNegativeInt

from headwise.errors import HeadwiseError, hint
from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import (
    NeedsTokenizer,
    Pairs,
    each_row,
    examples_of,
    one_gap,
    register,
)
from headwise.tasks.files.rows import Row, RowError, Table, as_text, kind
from headwise.tasks.registry import ModelText
from headwise.tasks.templates import Template

# ---- chats: {messages: [{role, content}, …]}, or ShareGPT's {conversations: [{from, value}, …]} ---------------
# The last message, which must be the assistant's, is the target. The messages before it are the prompt, written by the
# chat template of the model. A counterfactual is a list of messages too, whose answer is left out where it has one, or
# a text that stands for the last message before the answer.

_FIELDS = ("messages", "conversations")
_ROLES = {"human": "user", "gpt": "assistant"}


@register(
    "chat",
    about="{messages: [{role, content}]}: the assistant's last message, after the others in the chat template",
    fields=(*_FIELDS, "counterfactual"),
    recognises=lambda row: any(isinstance(row.get(name), list) for name in _FIELDS),
    question=lambda row: _chat(row)[-2]["content"],
)
def chat(table: Table) -> Pairs:
    if table.text is not None and not table.text.has_chat:
        columns = hint("columns", {"prompt": "NAME", "target": "NAME"})
        raise HeadwiseError(
            f"{table.log.source} has chats, but the tokenizer of this model has no chat template; use a chat model, or "
            f"give columns of text: {columns}"
        )

    def example(row: Row) -> Example:
        messages = _chat(row)
        other = _counterfactual(row, messages)
        if table.text is None:
            return Example(messages[-2]["content"], messages[-1]["content"])
        prompt, target = _rendered(table.text, messages)
        prompt_of_other = _without_prefix(table.text, table.text.chat(other)) if other else None
        return Example(prompt, target, counterfactual=prompt_of_other)

    pairs = examples_of(table, example)
    table.log.refuse_if_bad()
    if table.text is None:
        raise NeedsTokenizer(f"{table.log.source} has chats, which")
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


@register(
    "questions",
    about="{question, answer}: a question and its answer; `choices`, or a column of wrong answers, gives the foils",
    fields=("question", "answer", "choices"),
    recognises=lambda row: {"question", "answer"} <= set(row.values),
)
@each_row
def questions(row: Row, wording: Annotated[str, one_gap("question")] = "Q: {question}\nA:") -> Example:
    """With `choices` (as MMLU has them) the answer may be the index of one, from 0."""
    right, wrong = row.answers("answer"), tuple[str, ...]()
    if isinstance(row.get("choices"), list):
        choices, answer = row.answers("choices"), row.need("answer")
        if isinstance(answer, int) and 0 <= answer < len(choices):
            answer = choices[answer]
        right = (str(answer).strip(),)
        if right[0] not in choices:
            raise RowError(f"the answer is {kind(answer)}, expected one of the choices or its index, from 0")
        wrong = tuple(f" {choice}" for choice in choices if choice != right[0])
    target, *also = (f" {answer}" for answer in right)
    prompt = Template.parse(wording).fill({"question": row.filled("question")})
    return Example(prompt, target, wrong, also=tuple(also))


_WORD = re.compile(r"\w+")  # "= = Title = =" has one


@register(
    "text",
    about="{text}: each line from an empty prompt; lines (headings) of fewer than `least_words` are left out",
    fields=("text",),
    recognises=lambda row: set(row.values) == {"text"},
    metric=lambda examples: "mean_logprob",
)
def text(table: Table, least_words: NonNegativeInt = 10) -> Pairs:
    """Passages (WikiText): the log-probability of the passage, from an empty prompt."""
    pairs = examples_of(table, lambda row: Example("", row.text("text").strip()))
    long = [(row, example) for row, example in pairs if len(_WORD.findall(example.target)) >= least_words]
    if short := len(pairs) - len(long):
        table.log.notices.append(
            f"left out {short} of {len(table.rows)} lines of fewer than {least_words} words"
        )
    return long
