"""From a prompt to the token numbers that a model reads, and from those that it writes back to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.model.model import Model

Prompt = str | Sequence[Mapping[str, str]] | Sequence[int]
"""A text, its token numbers, or the messages of a chat: [{"role": "user", "content": "…"}]."""


def encode_prompts(model: Model, prompts: Sequence[Prompt], chat: bool, room: int = 0) -> list[list[int]]:
    """Token numbers of each prompt, as the model reads them; in the chat template where asked.

    room: how many more tokens the model will read after each; prompts that are too long for it are refused or cut.
    """
    encoded = _encoded(model, prompts, chat)
    return model.text.fitted(encoded, room) if model.has_text else encoded


def _encoded(model: Model, prompts: Sequence[Prompt], chat: bool) -> list[list[int]]:
    if prompts and all(_is_ids(prompt) for prompt in prompts):
        return [_checked_ids(model, prompt, number) for number, prompt in enumerate(prompts)]
    if not chat:
        for number, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise HeadwiseError(
                    f"prompt {number + 1} is a {type(prompt).__name__}; expected a text (a list of messages needs "
                    "chat=True)"
                )
        return [ids or model.text.start() for ids in model.text.encode_whole([str(p) for p in prompts])]
    if not model.text.has_chat:
        raise HeadwiseError(
            f"{model.name} has no chat template; use chat=False, or give the tokenizer a chat_template"
        )
    return [_templated(model, prompt) for prompt in prompts]


def _is_ids(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and all(isinstance(t, int) for t in prompt)


def _checked_ids(model: Model, prompt: Any, number: int) -> list[int]:
    strange = [token for token in prompt if not 0 <= token < model.vocabulary]
    if strange:
        raise HeadwiseError(
            f"prompt {number + 1} holds the token number {strange[0]}; {model.name}'s run from 0 to "
            f"{model.vocabulary - 1}"
        )
    return list(prompt)


def _templated(model: Model, prompt: Any) -> list[int]:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    # The template writes the beginning token itself where the model wants one, so none is added here.
    return model.text.encode_rendered(model.text.chat(messages))


def end_tokens(model: Model) -> set[int]:
    """The tokens that end a text: the model's own list, else the tokenizer's end token."""
    settings = getattr(model.hf, "generation_config", None)
    own = getattr(settings, "eos_token_id", None)
    if own is None:
        own = model.text.tokenizer.eos_token_id
    if own is None:
        return set()
    return {int(token) for token in (own if isinstance(own, list | tuple) else [own])}


def continuation(model: Model, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The text that `ids` add to the prompt, with the space between the two."""

    def decoded(tokens: Sequence[int]) -> str:
        return str(
            model.text.tokenizer.decode(
                list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    # Some tokenizers drop the space before the first token of what they decode, so it is read beside its neighbour.
    before, whole = decoded(prompt[-1:]), decoded([*prompt[-1:], *ids])
    return whole[len(before) :] if before and whole.startswith(before) else decoded(ids)
