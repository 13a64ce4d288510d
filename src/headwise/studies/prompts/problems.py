"""The problems of the study `prompts`: questions, right answers, and how they are asked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from headwise.errors import HeadwiseError
from headwise.model.arm.arm import arm
from headwise.model.model import Model
from headwise.model.tokens.spans import Located, locate
from headwise.studies.prompts.settings import PromptsSettings
from headwise.studies.tables import fingerprint
from headwise.tasks import Example, Task, families, load_task, task
from headwise.tasks.conditions import ARM, Asked, Condition, filled_marks, marked_messages, plain_pieces
from headwise.tasks.opening import check_options
from headwise.tasks.shots import chosen_shots

STEP_BY_STEP = "Please reason step by step, and put your final answer within \\boxed{}."
MAPPED = {"gsm8k": "{question}", "math500": "{problem}"}
"""Data sets with a worked and a final answer, and the gap that is their bare question."""
POOL = 64
"""Examples from which the solved ones of a built-in task are drawn."""
_OPEN_END = 512
"""Tokens an answer may have where no solved example says how long answers are."""


@dataclass(frozen=True)
class ProblemSet:
    """Problems, and everything that decides how they are put to one model."""

    name: str
    questions: tuple[str, ...]
    gold: tuple[tuple[str, ...], ...]
    """Right answers of each problem."""
    system: str
    shots: tuple[tuple[str, str], ...]
    chat: bool
    system_role: bool
    """Whether the chat template knows system messages."""
    template: str
    separator: str
    place: str
    joint: str
    stop: tuple[str, ...]
    max_new_tokens: int
    groups: tuple[str | None, ...] | None = None
    """Of the problems, where some share one."""

    @property
    def fingerprint(self) -> str:
        fields = asdict(self)
        if self.groups is None:
            del fields["groups"]
        return fingerprint(json.dumps(fields, ensure_ascii=True, sort_keys=True))

    def first(self, most: int) -> ProblemSet:
        """The same set with at most so many problems."""
        groups = self.groups if self.groups is None else self.groups[:most]
        return replace(self, questions=self.questions[:most], gold=self.gold[:most], groups=groups)

    def prompts(self, model: Model, condition: Condition, most: int | None = None) -> list[Located]:
        """Each problem under a condition, in the model's tokens, with the inserted ones marked."""
        return [self._prompt(model, question, condition) for question in self.questions[:most]]

    def _prompt(self, model: Model, question: str, condition: Condition) -> Located:
        asked = Asked(question, self.system, self.shots)
        if self.chat:
            messages = marked_messages(asked, condition, self.place, self.joint, system_role=self.system_role)
            pieces = filled_marks(model.text.chat(messages), condition, self.place, self.joint)
            return locate(model.text, pieces, begin=False)  # the template writes the beginning token itself
        pieces = plain_pieces(
            asked,
            condition,
            template=self.template,
            separator=self.separator,
            place=self.place,
            joint=self.joint,
        )
        return locate(model.text, pieces, begin=True)


def baseline_of(conditions: Iterable[str]) -> str:
    """The condition that the others are compared with: `none`, or else the first."""
    names = list(conditions)
    return "none" if "none" in names else names[0]


def applied(condition: Condition, model: Model, settings: PromptsSettings) -> AbstractContextManager[Any]:
    """What a condition changes in the model: `arm` its activations, every other nothing."""
    return arm(model, **vars(settings.arm)) if condition.kind == ARM else nullcontext()


def problem_set(settings: PromptsSettings, source: str, model: Model) -> ProblemSet:
    """The problems of a built-in task, of GSM8K or MATH-500 by path, or of any task file."""
    if settings.chat and not model.text.has_chat:
        raise HeadwiseError(f"{model.name} has no chat template; use chat=false")
    scored, shots, system = _examples(settings, source, model)
    # Solved examples as turns of a chat lose small models: 13 % against 47 % right with the bundled one.
    chat = (model.text.has_chat and not shots) if settings.chat is None else settings.chat
    pairs = tuple((shot.prompt, shot.target) for shot in shots)
    longest = max((len(model.tokens(answer)) for _, answer in pairs), default=0)
    return ProblemSet(
        name=scored.name,
        questions=tuple(example.prompt for example in scored),
        gold=tuple((example.target.strip(), *(a.strip() for a in example.also)) for example in scored),
        system=system if settings.system is None else settings.system,
        shots=pairs,
        chat=chat,
        system_role=chat and _takes_system(model),
        template=settings.template,
        separator=settings.separator,
        place=settings.place,
        joint=settings.joint,
        stop=_stops(settings, pairs, chat) if settings.stop is None else settings.stop,
        max_new_tokens=settings.max_new_tokens or (2 * longest + 16 if pairs else _OPEN_END),
        groups=scored.shared_groups(),
    )


def _takes_system(model: Model) -> bool:
    messages = [{"role": "system", "content": "\ue0a1"}, {"role": "user", "content": "a"}]
    try:
        return "\ue0a1" in model.text.chat(messages)
    except HeadwiseError:  # Gemma's template raises
        return False


def _examples(settings: PromptsSettings, source: str, model: Model) -> tuple[Task, list[Example], str]:
    """The scored problems, the solved examples before each, and the system prompt that suits them."""
    n, seed, options = settings.n, settings.seed, dict(settings.task_options)
    check_options(options)
    if source in families():
        count = (8 if source == "word_problems" else 4) if settings.shots is None else settings.shots
        if source == "word_problems":
            scored = task(source, n, seed=seed, model=model, **options)
            answer = {"answer": "worked" if settings.working else "number"}
            pool = task(source, POOL, seed=seed + 1, model=model, **options | answer)
            return scored, chosen_shots(scored, count, seed=seed, pool=pool)[0], ""
        whole = task(source, n + count, seed=seed, model=model, **options)
        shots, rest = chosen_shots(whole, count, seed=seed)
        return Task(source, tuple(rest)), shots, ""
    in_chat = model.text.has_chat if settings.chat is None else settings.chat
    count = (0 if in_chat else 4) if settings.shots is None else settings.shots
    kind = str(load_task(source, limit=1, seed=seed, **options).settings["mapping"])
    if kind in MAPPED:
        plain = {"wording": MAPPED[kind], **options}
        scored = load_task(source, limit=n, seed=seed, **{**plain, "answers": "final"})
        if not count:
            return scored, [], STEP_BY_STEP
        answers = "final" if settings.working is False else "worked"
        pool = load_task(source, seed=seed, **{**plain, "answers": answers})
        return scored, chosen_shots(scored, count, seed=seed, pool=pool)[0], ""
    whole = load_task(source, limit=n + count, seed=seed, **options)
    shots, rest = chosen_shots(whole, count, seed=seed)
    return Task(whole.name, tuple(rest)), shots, ""


def _stops(settings: PromptsSettings, shots: tuple[tuple[str, str], ...], chat: bool) -> tuple[str, ...]:
    """In plain text an answer ends where the next example would begin."""
    if chat or not shots or not settings.separator:
        return ()
    if any(settings.separator in answer.strip() for _, answer in shots):
        head = settings.template.partition("{prompt}")[0]
        return (settings.separator + head,)
    return (settings.separator,)
