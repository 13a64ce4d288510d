"""The tables behind the cards of several heads of one model on one task, computed together.

Tables: `card_examples` (the examples on which a head helps and hurts most), `card_attention` (its attention on the
strongest ones), `card_tokens` and `card_patterns` (known attention patterns of every head, on the task's prompts and on
random tokens that come twice). Each has the columns model, task, layer and head.

The random sequences are the usual test for induction heads (Olsson et al. 2022, arXiv 2209.11895): a task's prompts may
have no repeated token, and what repeats there may be attended to for other reasons.

K kinds of pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from headwise.cards.tokens import Prompt, TokenReader, answer_prompts
from headwise.errors import HeadwiseError
from headwise.heads import Head, single_gates
from headwise.heads.head import head_columns
from headwise.metrics import metric as metric_named
from headwise.model.attention.attention import Attention, attention
from headwise.model.attention.weights import watchable, watcher
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.model.sites.attention_function import Watcher
from headwise.model.tokens.encode import Row, encode_rows
from headwise.scores.descriptive import KINDS, Shares, attention_shares, counted_pairs
from headwise.tasks.examples import Task

TABLES = ("card_examples", "card_attention", "card_tokens", "card_patterns")
WHOLE_MAP = 40
"""Most tokens of a head's strongest prompts whose whole attention maps are kept; else only the answer's rows are."""
RANDOM = "random tokens"
_KINDS = list(KINDS)
_SEQUENCES, _HALF = 8, 25
"""Random sequences, and the tokens in each half of one."""


@dataclass
class HeadTables:
    """The tables of the cards of several heads."""

    tables: dict[str, pd.DataFrame]
    effects: np.ndarray  # heads, E: the metric with the head minus the metric without it
    metric: str
    reference: str
    notes: list[str] = field(default_factory=list)
    """Why a part is missing, where one is."""


def measure_heads(
    model: Model,
    task: Task,
    heads: Sequence[Head],
    *,
    examples: int = 3,
    metric: str | None = None,
    reference: str = "mean",
    advance: Callable[[int], None] | None = None,
    **options: Any,
) -> HeadTables:
    """Everything that the cards of these heads show, except for their scores.

    examples: how many examples are shown in each list. metric: by default the task's own. advance: called after each
    of `STEPS` parts. reference: what replaces each head. options: positions, seed and batch_tokens (see `Engine`).
    """
    model.check_heads(heads)
    step = advance or (lambda steps: None)
    measured = metric_named(metric or task.metric)
    engine = Engine(model, task, measured, reference=reference, **options)
    effects = engine.measure(single_gates(heads, model.shape)).effects
    step(1)
    prompts, notes = answer_prompts(model, task), list[str]()
    strongest = [np.argsort(-np.abs(np.nan_to_num(of_head)), kind="stable")[:examples] for of_head in effects]
    looked = _optional(notes, "attention", _attention, model, heads, prompts, strongest)
    step(1)
    listed = [[] if looked is None else _most_attended(looked, head) for head in heads]
    shares = _shares_beside_tokens(model, task, prompts)
    reading = (_tokens, model, heads, prompts, strongest, listed)
    tokens = _optional([] if shares else notes, "token lists", *reading, shares)
    if tokens is None and shares is not None:  # one of the two is refused, and will say so itself
        shares, tokens = None, _optional(notes, "token lists", *reading)
    step(1)
    sampling = (options.get("seed", 0), options.get("batch_tokens"))
    patterns = _optional(notes, "attention patterns", pattern_table, model, task, *sampling, shares)
    step(1)
    parts = {
        "card_examples": _examples(task, heads, effects, examples).assign(
            metric=measured.name, reference=engine.reference
        ),
        "card_attention": looked,
        "card_tokens": tokens,
        "card_patterns": None if patterns is None else _of_heads(patterns, heads),
    }
    names = {"model": model.name, "task": task.name}
    there = {name: part for name, part in parts.items() if part is not None and len(part)}
    tables = {name: pd.DataFrame({**names, **part}) for name, part in there.items()}
    return HeadTables(tables, effects, measured.name, engine.reference, list(dict.fromkeys(notes)))


STEPS = 4
"""How many parts `measure_heads` reports as done."""


def _optional(notes: list[str], what: str, compute: Callable[..., Any], *args: Any) -> Any:
    """A part of the card, or None with a note where this model does not allow it."""
    try:
        return compute(*args)
    except HeadwiseError as error:
        notes.append(f"no {what}: {error}")
        return None


def _examples(task: Task, heads: Sequence[Head], effects: np.ndarray, count: int) -> pd.DataFrame:
    """The examples with the largest and the smallest effect of each head."""
    rows = []
    for head, of_head in zip(heads, effects, strict=True):
        for kind, sign in (("helps", 1), ("hurts", -1)):
            order = [e for e in np.argsort(-sign * of_head, kind="stable") if sign * of_head[e] > 0]
            for rank, number in enumerate(order[:count], 1):
                example = task.examples[number]
                place = (head.layer, head.head, kind, rank, int(number))
                answer = (example.target.strip(), ", ".join(foil.strip() for foil in example.foils))
                rows.append((*place, example.prompt, *answer, float(of_head[number])))
    columns = ["layer", "head", "kind", "rank", "example", "prompt", "target", "foils", "value"]
    return pd.DataFrame(rows, columns=columns)


def _attention(
    model: Model, heads: Sequence[Head], prompts: Sequence[Prompt], strongest: Sequence[np.ndarray]
) -> pd.DataFrame:
    """Attention of each head on its strongest examples, a row for every query and each key that it can attend to."""
    parts = []
    whole = [max(len(prompts[number].ids) for number in chosen) <= WHOLE_MAP for chosen in strongest]
    for maps in set(whole):  # heads that keep the same share one pass
        some = [one for one in range(len(heads)) if whole[one] == maps]
        numbers = sorted({int(number) for one in some for number in strongest[one]})
        rows, kept = [prompts[number].ids for number in numbers], [heads[one] for one in some]
        looked = dict(zip(numbers, attention(model, rows, kept, maps=maps), strict=True))
        for place, one in enumerate(some):
            for number in map(int, strongest[one]):
                parts.append((one, _attention_of(heads[one], number, looked[number], place)))
    return pd.concat([part for _, part in sorted(parts, key=lambda pair: pair[0])], ignore_index=True)


def _attention_of(head: Head, number: int, seen: Attention, place: int) -> pd.DataFrame:
    """The rows of one head, at `place` of those looked at, on one example."""
    weights = seen.rows[place] if seen.maps is None else seen.maps[place]
    first = len(seen.ids) - len(weights)  # the first query that is kept
    query, key = np.nonzero(np.tri(len(weights), len(seen.ids), first, bool))
    columns = {"layer": head.layer, "head": head.head, "example": number}
    pairs = {"query": query + first, "key": key, "attention": weights[query, key]}
    texts = {"token": np.array(seen.tokens, dtype=object)[key], "id": np.array(seen.ids)[key]}
    return pd.DataFrame({**columns, **pairs, **texts})


def _most_attended(looked: pd.DataFrame, head: Head) -> list[int]:
    """The token that the answer's position attends to most in each example; the first token is not counted."""
    of_head = _of_heads(looked, [head])
    rows = of_head[
        (of_head["query"] == of_head.groupby("example")["query"].transform("max")) & (of_head["key"] > 0)
    ]
    largest = rows.loc[rows.groupby("example", sort=False)["attention"].idxmax(), "id"]
    return list(dict.fromkeys(map(int, largest)))


def _tokens(
    model: Model,
    heads: Sequence[Head],
    prompts: Sequence[Prompt],
    strongest: Sequence[np.ndarray],
    listed: Sequence[list[int]],
    shares: Shares | None = None,
) -> pd.DataFrame:
    """Token lists of the strongest examples, the logits of the answers of all, and the lists of the OV weights.

    shares: added up in the same pass.
    """

    def watch(numbers: list[int]) -> Watcher:
        assert shares is not None
        return watcher(model, shares.heads, partial(shares.add, numbers))

    reader = TokenReader(model, prompts, watch if shares else None)
    parts = []
    for head, chosen, sources in zip(heads, strongest, listed, strict=True):
        output = reader.output_table(head, chosen)
        both = pd.concat([output, reader.weights_table(head, sources)], ignore_index=True)
        parts.append(pd.DataFrame({"layer": head.layer, "head": head.head, **both}))
    return pd.concat(parts, ignore_index=True)


def _of_heads(table: pd.DataFrame, heads: Sequence[Head]) -> pd.DataFrame:
    chosen = [head in heads for head in zip(table["layer"], table["head"], strict=True)]
    return table[chosen].reset_index(drop=True)


# ---- attention patterns --------------------------------------------------------------------------------


def pattern_table(
    model: Model,
    task: Task,
    seed: int = 0,
    batch_tokens: int | None = None,
    of_task: Shares | None = None,
) -> pd.DataFrame:
    """One row per head, pattern and kind of prompts: mean attention, rank among all heads, number of prompts.

    A pattern that no prompt has (retrieval of an answer that is not in the prompt) has no rows. of_task: the shares of
    the task's prompts, where a pass has added them up already.
    """
    if of_task is None:
        rows = encode_rows(model.text, task.examples, "target")
        task_shares = attention_shares(model, rows, _masks(rows, _KINDS), batch_tokens)
    else:
        task_shares = of_task.mean()

    def of_random() -> pd.DataFrame:
        rows, kinds = _repeated(model, seed), [kind for kind in _KINDS if kind != "retrieval"]
        return _ranked(model, attention_shares(model, rows, _masks(rows, kinds), batch_tokens), kinds, RANDOM)

    parts = [
        _ranked(model, task_shares, _KINDS, task.name),
        model.once(("random patterns", seed, batch_tokens), of_random),
    ]
    return pd.concat(parts, ignore_index=True)


def _shares_beside_tokens(model: Model, task: Task, prompts: Sequence[Prompt]) -> Shares | None:
    """What adds up the attention patterns in the pass that reads the tokens; None where that pass has other prompts,
    or does not see the weights."""
    rows = encode_rows(model.text, task.examples, "target")
    same = [row.ids for row in rows] == [prompt.ids for prompt in prompts]
    return Shares(model, _masks(rows, _KINDS)) if same and watchable(model.hooks) is model.hooks else None


def _masks(rows: Sequence[Row], kinds: Sequence[str]) -> list[np.ndarray]:
    """For each row, the pairs of every kind `[K, T, T]`."""
    # An answer of several tokens makes the row longer than its prompt.
    sizes = [len(row.ids) for row in rows]
    masks = [np.zeros((len(kinds), size, size), dtype=bool) for size in sizes]
    for row, mask in zip(rows, masks, strict=True):
        for kind, of_kind in zip(kinds, mask, strict=True):
            pairs = counted_pairs(kind, row)
            of_kind[: len(pairs), : len(pairs)] = pairs
    return masks


def _ranked(model: Model, shares: np.ndarray, kinds: Sequence[str], prompts: str) -> pd.DataFrame:
    """From shares `[rows, K, heads]` to a row per head and pattern."""
    heads = model.heads()
    parts = []
    for number, kind in enumerate(kinds):
        counted = shares[:, number][~np.isnan(shares[:, number, 0])]
        if len(counted):
            mean = counted.mean(0)
            columns = {"prompts": prompts, "pattern": kind, "n": len(counted), "heads": len(heads)}
            rank = pd.Series(mean).rank(ascending=False, method="min").astype(int)
            of_head = head_columns(heads) | {"attention": mean, "rank": rank}
            parts.append(pd.DataFrame(columns | of_head))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _repeated(model: Model, seed: int) -> list[Row]:
    """Sequences of random tokens, each half the same."""
    text = model.text
    special = set(getattr(text.tokenizer, "all_special_ids", ()))
    vocabulary = min(model.embedded_tokens or model.vocabulary, len(text.tokenizer))
    tokens = np.array([token for token in range(vocabulary) if token not in special])
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(_SEQUENCES):
        half = rng.choice(tokens, min(_HALF, len(tokens)), replace=False).tolist()
        ids = [*text.prefix, *half, *half]
        rows.append(Row(number, ids, len(ids), [], []))
    return rows
