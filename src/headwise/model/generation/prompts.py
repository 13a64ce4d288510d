"""From a prompt to token ids, from logits to the next tokens, and from generated ids back to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.model.model import Model

Prompt = str | Sequence[Mapping[str, str]] | Sequence[int]
"""A text, its token ids, or the messages of a chat: [{"role": "user", "content": "…"}]."""

_CONTENT = "headwise"
"""Any text, to see what a chat template writes after a message."""


def encode_prompts(model: Model, prompts: Sequence[Prompt], chat: bool, room: int = 0) -> list[list[int]]:
    """Token ids of each prompt, as the model reads them; with `chat` in the chat template, once.

    room: how many more tokens the model will read after each; prompts that are too long for it are refused or cut.
    """
    encoded = _encoded(model, prompts, chat)
    return model.text.fitted(encoded, room) if model.has_text else encoded


def _encoded(model: Model, prompts: Sequence[Any], chat: bool) -> list[list[int]]:
    if prompts and all(_is_ids(prompt) for prompt in prompts):
        for number, prompt in enumerate(prompts):
            model.check_token_ids(prompt, number)
        return [list(prompt) for prompt in prompts]
    if not chat:
        for number, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise HeadwiseError(
                    f"prompt {number + 1} is a {type(prompt).__name__}; expected a text (a list of messages needs "
                    "chat=True)"
                )
        return [ids or model.text.start() for ids in model.text.encode_whole(prompts)]
    if not model.text.has_chat:
        raise HeadwiseError(
            f"{model.name} has no chat template; use chat=False, or set tokenizer.chat_template"
        )
    *_, ending = model.text.chat([{"role": "user", "content": _CONTENT}]).rpartition(_CONTENT)

    def rendered(prompt: Any) -> list[int]:
        if not isinstance(prompt, str):
            return model.text.encode_rendered(model.text.chat(prompt))
        if ending.strip() and prompt.endswith(ending):  # such as the prompts of a task of chats
            begins = model.text.prefix and prompt.startswith(model.text.decode(model.text.prefix))
            return model.text.encode_rendered(prompt) if begins else model.text.encode_whole([prompt])[0]
        return rendered([{"role": "user", "content": prompt}])

    # The template writes the beginning token itself where the model wants one, so none is added here.
    return [rendered(prompt) for prompt in prompts]


def _is_ids(prompt: Any) -> bool:
    if not isinstance(prompt, Sequence) or isinstance(prompt, str | bytes):
        return False
    return len(prompt) > 0 and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt)


def end_tokens(model: Model) -> set[int]:
    """The tokens that end a text: those of the generation config, else the tokenizer's end token."""
    ends = getattr(getattr(model.hf, "generation_config", None), "eos_token_id", None)
    if ends is None:
        ends = model.text.tokenizer.eos_token_id
    if ends is None:
        return set()
    return {int(token) for token in (ends if isinstance(ends, list | tuple) else [ends])}


def continuation(model: Model, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The text that `ids` add to the prompt, with the space between the two."""

    def decoded(tokens: Sequence[int]) -> str:
        decode = model.text.tokenizer.decode
        return str(decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    # Some tokenizers drop the space before the first decoded token, so the last token of the prompt is decoded too.
    before, both = decoded(prompt[-1:]), decoded([*prompt[-1:], *ids])
    return both[len(before) :] if before and both.startswith(before) else decoded(ids)


# ---- sampling --------------------------------------------------------------------------------------------


def uniforms(seed: int, prompt: int, count: int) -> np.ndarray:
    """The random numbers of one prompt, one per token it may write.

    They depend only on the seed and the prompt's index: a prompt gets the same draws alone and in a batch, and every
    variant of the gates uses the same draws, so that comparisons of variants are paired.
    """
    return np.random.default_rng([seed, prompt]).random(count)


def choose(logits: Tensor, temperature: float, top_p: float, draws: Tensor | None) -> Tensor:
    """One token for each row of `logits[B, vocabulary]`; `draws[B]` in [0, 1) decides unless temperature is 0.

    The tokens lie on [0, 1) in order of falling probability, each as wide as it is probable; with `top_p` the
    smallest leading group that holds at least that probability is stretched over the whole (nucleus sampling,
    Holtzman et al. 2020, arXiv 1904.09751).
    """
    if temperature == 0:
        return logits.argmax(-1)
    assert draws is not None
    # A shift changes no probability, and keeps tiny temperatures from overflowing; float32 has none below 1e-45.
    scaled = (logits.double() - logits.max(-1, keepdim=True).values) / temperature
    probabilities, tokens = scaled.softmax(-1).sort(descending=True, stable=True)
    cumulative = probabilities.cumsum(-1)
    in_nucleus = (cumulative - probabilities) < top_p
    total = (probabilities * in_nucleus).sum(-1)
    ranks = (cumulative <= (draws.to(cumulative.dtype) * total)[:, None]).sum(-1)
    ranks = ranks.minimum(in_nucleus.sum(-1) - 1)  # rounding may leave a remainder beyond the last
    return tokens.gather(-1, ranks[:, None])[:, 0]
