"""One head on the prompt of the page: its attention, the tokens it promotes, and what the run says of it.

T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from headwise.cards import card
from headwise.cards.tokens import Prompt as AnsweredPrompt
from headwise.cards.tokens import TokenReader
from headwise.charts.card import strongest
from headwise.errors import HeadwiseError
from headwise.explorer.live import Live, edits_of, listed
from headwise.explorer.prompt_cache import Prompt
from headwise.explorer.requests import Card, OpenHead
from headwise.explorer.run_data import RunData
from headwise.explorer.worker import Event, Job
from headwise.heads import Head
from headwise.model.attention.attention import attention

WHOLE_MAP = 64
"""Longest prompt, in tokens, whose attention map is sent; of a longer one, one row at a time."""
_ATTENDED = 8


class OpenedHeads:
    """Answers requests about single heads."""

    def __init__(self, live: Live, run: RunData | None) -> None:
        self.live, self.run, self.model = live, run, live.model

    def open(self, request: OpenHead, job: Job) -> Iterator[Event]:
        """Events: `attention`, then `promoted`, then `rows` (scores, edges and backups of the run)."""
        head = Head.parse(request.head)
        self.model.check_heads([head])
        prompt = self.live.prompts.get(request)
        yield self._attention(prompt, head, request, job)
        if request.only_row:
            return
        yield self._promoted(prompt, head)
        tables = [] if self.run is None else self.run.rows_of(head)
        yield {"event": "rows", "head": str(head), "tables": tables}

    def _attention(self, prompt: Prompt, head: Head, request: OpenHead, job: Job) -> Event:
        """The row of one query under the current gates: never more than one row of a long prompt is held."""
        length = len(prompt.ids)
        query = length - 1 if request.query is None else request.query
        if query >= length:
            raise HeadwiseError(f"token {query} is not in the prompt, which has tokens 0 to {length - 1}")
        intervention = self.live.intervention(prompt, request)
        edits = edits_of(intervention.hook(self.model, length, length), job)
        beside = edits["attention"] and edits["attention"](None)
        event: dict[str, Any] = {"event": "attention", "head": str(head), "query": query}
        try:
            with self.model.hooks.attached(edits["heads"], attention=beside), torch.inference_mode():
                whole = length <= WHOLE_MAP and not request.only_row
                (seen,) = attention(self.model, [prompt.ids], head, queries=[query], maps=whole)
        except HeadwiseError as error:  # a family whose attention cannot be shown
            return {**event, "note": str(error)}
        row = seen.rows[0, 0]
        most = sorted(range(query + 1), key=lambda key: -row[key])[:_ATTENDED]
        event["most"] = [{"key": key, "text": seen.tokens[key], "share": float(row[key])} for key in most]
        event["row"] = listed(row, 3)[0]
        if not request.only_row:
            event["tokens"] = seen.tokens
            event["map"] = None if seen.maps is None else listed(seen.maps[0], 3)
        return event

    def _promoted(self, prompt: Prompt, head: Head) -> Event:
        """The tokens that the head promotes and suppresses at the last token, with all heads on."""
        event: dict[str, Any] = {"event": "promoted", "head": str(head)}
        try:
            if prompt.reader is None:
                prompt.reader = TokenReader(self.model, [AnsweredPrompt(prompt.ids, 0, ())])
            table = prompt.reader.output_table(head)
        except HeadwiseError as error:
            return {**event, "note": str(error)}
        for kind in ("promoted", "suppressed"):
            rows = strongest(table, kind)[["token", "logit"]].to_dict("records")
            event[kind] = [{"text": str(row["token"]), "logit": float(row["logit"])} for row in rows]
        return event

    def card(self, request: Card, source: Any, job: Job) -> Iterator[Event]:
        """The card of the head on a task, as text."""
        yield {"event": "progress", "done": 0, "of": 1}
        job.check()
        head_card = card(self.model, request.head, source, n=request.n, progress=lambda steps: job.check())
        yield {"event": "card", "head": request.head, "text": repr(head_card)}
