"""The problems of the study `prompts`: a task, and how its questions are put to one model under a condition."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from headwise.errors import HeadwiseError
from headwise.model.arm import arm
from headwise.model.model import Model
from headwise.model.tokens.spans import Located, locate
from headwise.studies.prompts.settings import ArmSettings, PromptsSettings
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
class Problems:
    """Problems, and everything that decides how they are put to one model."""

    task: Task
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
    batch_tokens: int | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def questions(self) -> list[str]:
        return [example.prompt for example in self.task]

    @property
    def gold(self) -> list[tuple[str, ...]]:
        """Right answers of each problem."""
        return [(e.target.strip(), *(other.strip() for other in e.also)) for e in self.task]

    def first(self, most: int) -> Problems:
        """The same set with at most so many problems."""
        return replace(self, task=self.task.take(range(min(most, len(self.task)))))

    def prompts(self, model: Model, condition: Condition) -> list[Located]:
        """Each problem under a condition, in the model's tokens, with the inserted ones marked."""
        return [self._prompt(model, Asked(q, self.system, self.shots), condition) for q in self.questions]

    def _prompt(self, model: Model, problem: Asked, condition: Condition) -> Located:
        where = {"place": self.place, "joint": self.joint}
        if self.chat:
            messages = marked_messages(problem, condition, **where, system_role=self.system_role)
            pieces = filled_marks(model.text.chat(messages), condition, **where)
        else:
            form = {"template": self.template, "separator": self.separator}
            pieces = plain_pieces(problem, condition, **form, **where)
        return locate(model.text, pieces, begin=not self.chat)  # a chat template writes the beginning itself


def baseline_of(conditions: Sequence[Condition]) -> str:
    """The condition that the others are compared with: `none`, or else the first."""
    names = [condition.name for condition in conditions]
    return "none" if "none" in names else names[0]


def applied(condition: Condition, model: Model, settings: ArmSettings | None) -> AbstractContextManager[Any]:
    """What a condition changes in the model: `arm`, which needs its settings, the activations; others nothing."""
    return arm(model, **vars(settings)) if condition.kind == ARM else nullcontext()


def open_problems(s: PromptsSettings, source: str, model: Model) -> Problems:
    """The problems of a built-in task, of GSM8K or MATH-500 by path, or of any task file."""
    if s.chat and not model.text.has_chat:
        raise HeadwiseError(f"{model.name} has no chat template; use chat=false")
    scored, solved, system = _examples(s, source, model)
    # Solved examples as turns of a chat lose small models: 13 % against 47 % right with the bundled one.
    chat = (model.text.has_chat and not solved) if s.chat is None else s.chat
    shots = tuple((shot.prompt, shot.target) for shot in solved)
    longest = max((len(model.tokens(answer)) for _, answer in shots), default=0)
    return Problems(
        task=scored,
        system=system if s.system is None else s.system,
        shots=shots,
        chat=chat,
        system_role=chat and _takes_system(model),
        template=s.template,
        separator=s.separator,
        place=s.place,
        joint=s.joint,
        stop=_stops(s, shots, chat) if s.stop is None else s.stop,
        max_new_tokens=s.max_new_tokens or (2 * longest + 16 if shots else _OPEN_END),
        batch_tokens=s.batch_tokens,
    )


def _takes_system(model: Model) -> bool:
    mark = "\ue0a1"
    messages = [{"role": "system", "content": mark}, {"role": "user", "content": "a"}]
    try:
        return mark in model.text.chat(messages)
    except HeadwiseError:  # Gemma's template raises
        return False


def _examples(s: PromptsSettings, source: str, model: Model) -> tuple[Task, list[Example], str]:
    """The scored problems, the solved examples before each, and the system prompt that suits them."""
    n, seed, options = s.n, s.seed, dict(s.task_options)
    check_options(options)
    if source == "word_problems":
        count = 8 if s.shots is None else s.shots
        scored = task(source, n, seed=seed, model=model, **options)
        answers = {"answer": "worked" if s.working else "number"}
        pool = task(source, POOL, seed=seed + 1, model=model, **options | answers)
        return scored, chosen_shots(scored, count, seed=seed, pool=pool)[0], ""
    built_in, in_chat = source in families(), model.text.has_chat if s.chat is None else s.chat
    count = (0 if in_chat and not built_in else 4) if s.shots is None else s.shots
    kind = "" if built_in else str(load_task(source, limit=1, seed=seed, **options).settings["mapping"])
    if kind in MAPPED:
        options = {"wording": MAPPED[kind], **options}
        scored = load_task(source, limit=n, seed=seed, **options | {"answers": "final"})
        if not count:
            return scored, [], STEP_BY_STEP
        answers = {"answers": "final" if s.working is False else "worked"}
        pool = load_task(source, seed=seed, **options | answers)
        return scored, chosen_shots(scored, count, seed=seed, pool=pool)[0], ""
    if built_in:
        whole = task(source, n + count, seed=seed, model=model, **options)
    else:
        whole = load_task(source, limit=n + count, seed=seed, **options)
    shots, rest = chosen_shots(whole, count, seed=seed)
    return Task(whole.name, tuple(rest)), shots, ""


def _stops(s: PromptsSettings, shots: tuple[tuple[str, str], ...], chat: bool) -> tuple[str, ...]:
    """In plain text an answer ends where the next example would begin."""
    if chat or not shots or not s.separator:
        return ()
    in_answers = any(s.separator in answer.strip() for _, answer in shots)
    return (s.separator + s.template.partition("{prompt}")[0] if in_answers else s.separator,)
