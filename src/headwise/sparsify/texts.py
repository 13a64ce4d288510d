"""Text files as token sequences of one length."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.tokens.text import Text

_CALCULATOR = re.compile(r"<<.*?>>")  # GSM8K's notes to a calculator are not part of its text
_FIELDS = (("text",), ("question", "answer"), ("prompt", "target"), ("input", "output"))


def read_text(path: Path) -> str:
    """A plain text file, or the texts of a JSON-lines file one below the other."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HeadwiseError(f"the text {path} cannot be read: {error}") from error
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        return content
    return "\n\n".join(
        _row_text(line, path, number) for number, line in enumerate(content.splitlines(), 1) if line.strip()
    )


def _row_text(line: str, path: Path, number: int) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise HeadwiseError(f"{path}, line {number}: not JSON ({error})") from error
    for fields in _FIELDS:
        if isinstance(row, dict) and all(isinstance(row.get(field), str) for field in fields):
            return _CALCULATOR.sub("", "\n".join(row[field].strip() for field in fields))
    wanted = " or ".join("+".join(fields) for fields in _FIELDS)
    raise HeadwiseError(f"{path}, line {number}: no text in it; expected the fields {wanted}")


def sequences(text: Text, paths: Sequence[Path], length: int, most: int | None = None) -> Tensor:
    """The files' tokens, cut into rows `[N, length]`; what is left over at the end of a file is dropped."""
    rows: list[Tensor] = []
    own = length - len(text.prefix)
    for path in paths:
        ids = text.tokenizer(read_text(path), add_special_tokens=False, verbose=False)["input_ids"]
        count = len(ids) // own
        if most is not None:
            count = min(count, most)
        if not count:
            raise HeadwiseError(f"{path} has {len(ids)} tokens; at least one sequence of {own} is needed")
        body = torch.tensor(ids[: count * own], dtype=torch.int32).view(count, own)
        start = torch.tensor(text.prefix, dtype=torch.int32).expand(count, -1)
        rows.append(torch.cat([start, body], dim=1))
    return torch.cat(rows) if rows else torch.empty(0, length, dtype=torch.int32)
