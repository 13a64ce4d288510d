"""GGUF files: their metadata, their conversion to a plain safetensors checkpoint, and a check of the tokenizer made of
one.
"""

from __future__ import annotations

import errno
import math
import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError

from headwise.errors import HeadwiseError
from headwise.model.load import checkpoint
from headwise.model.load.checkpoint import Weights
from headwise.model.tokens.text import tokenized

_TOKENS = "tokenizer.ggml.tokens"


def describe(path: Path) -> Header:
    """The header of a GGUF file with its vocabulary; a process keeps that of one file."""
    try:
        return _described(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        raise HeadwiseError(f"no GGUF file at {path}") from None


@lru_cache(maxsize=1)
def _described(path: Path, changed: int) -> Header:
    return _header(path, arrays=(_TOKENS,))


def _header(path: Path, arrays: tuple[str, ...]) -> Header:
    try:
        return read_header(path, arrays)
    except (OSError, ValueError, KeyError) as error:
        raise HeadwiseError(f"{path} is not a GGUF file that can be read: {error}") from error


def wants_bos(path: str | Path) -> bool | None:
    """Whether a GGUF file asks for a begin-of-text token before every prompt; None where it does not say."""
    request = describe(Path(path)).values.get("tokenizer.ggml.add_bos_token")
    return None if request is None else bool(request)


def check(path: Path) -> Weights:
    """The shapes of the file's weights; raises a `HeadwiseError` where they do not fit its metadata."""
    described = describe(path)
    numbers = [(key, value) for key, value in described.values.items() if isinstance(value, int)]
    size = path.stat().st_size
    checkpoint.check_numbers(path, numbers, len(described.shapes), size)
    return Weights(str(path), described.shapes, size)


def unpacked() -> dict[str, Any]:
    """Options of `from_pretrained` for plain weights: some versions of transformers can leave them in packed blocks,
    which cannot be saved or edited."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def convert(path: Path, out: Path) -> None:
    """Write a GGUF as a plain checkpoint folder with exactly the values that it dequantises to."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, output_loading_info=True, **unpacked()
    )
    # transformers fills a tensor that the file lacks with random numbers, and only warns.
    assert not report["missing_keys"], f"{path.name} lacks {sorted(report['missing_keys'])}"
    tokenizer = _tokenizer(path, max_length=model.config.max_position_embeddings)
    try:
        checkpoint.save_plain(model.to(_smallest_exact_dtype(model.state_dict())), out)
        tokenizer.save_pretrained(out)
    except SafetensorError as error:
        # Its writer hides the system's error number in the text.
        full = "os error 28" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error


def _smallest_exact_dtype(tensors: Mapping[str, torch.Tensor]) -> torch.dtype:
    """The smallest float type that keeps every value (scale × level of a Q4_1 or Q8_0 needs all 32 bits)."""
    for dtype in (torch.float16, torch.bfloat16):
        if all(torch.equal(tensor.to(dtype).to(tensor.dtype), tensor) for tensor in tensors.values()):
            return dtype
    return torch.float32


def _tokenizer(path: Path, max_length: int) -> Any:
    """The tokenizer that a GGUF of SmolLM's kind describes.

    Built from the file's own fields, because what transformers makes of them depends on its version: 5.17
    takes the wrong token for the end of a text, and up to 5.22 `pre` is ignored, so that digits are not cut
    off first and a blank line before a digit becomes two tokens that the model met as one in training.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    header = _header(path, arrays=(_TOKENS, "tokenizer.ggml.merges", "tokenizer.ggml.token_type"))
    described = header.values | header.arrays
    of = {key.removeprefix("tokenizer.ggml."): value for key, value in described.items()}
    kind = (of["model"], of["pre"], of["add_bos_token"])
    assert kind == ("gpt2", "smollm", False), f"{path.name} has a tokenizer of another kind, {kind}"
    tokens = of["tokens"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in of["merges"])]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    control = 3  # the GGUF type of tokens that are marks, not text
    special = [token for token, kind in zip(tokens, of["token_type"], strict=True) if kind == control]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[of["bos_token_id"]],
        eos_token=tokens[of["eos_token_id"]],
        unk_token=tokens[of["unknown_token_id"]],
        pad_token=tokens[of["padding_token_id"]],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = described.get("tokenizer.chat_template")
    return tokenizer


# ---- the file's own words must be encoded to themselves --------------------------------------------------
# What transformers makes of a GGUF's vocabulary depends on its version and on the family. A wrong tokenizer raises
# nothing: the model reads other tokens than it was trained on, and every score is wrong. transformers 5.17 makes such
# a tokenizer of Gemma 3.


WORDS = 200
"""Words that are tried."""
LEAST = 0.9
"""Share of them that must be encoded to themselves: a vocabulary may have tokens that no text is encoded to."""
_SPACE = "Ġ▁"
"""How vocabularies write a leading space: byte-level BPE, SentencePiece."""
_WORD = re.compile(f"[{_SPACE}]?[A-Za-z]{{3,}}")


def check_tokenizer(path: Path, tokenizer: Any) -> None:
    """Refuse a tokenizer that splits words which are single tokens of the file."""
    numbers = {token: number for number, token in enumerate(describe(path).arrays.get(_TOKENS, ()))}
    words = _spread([token for token in numbers if _WORD.fullmatch(token)])
    wrong = [word for word in words if not _is_kept(word, numbers, tokenizer)]
    if len(wrong) > (1 - LEAST) * len(words):
        import transformers

        text = _text(wrong[0])
        pieces = tokenizer.convert_ids_to_tokens(_encoded(text, tokenizer))
        raise HeadwiseError(
            f"the tokenizer that transformers {transformers.__version__} makes of {path.name} is wrong: "
            f"{len(wrong)} of {len(words)} words that are single tokens of the file are not encoded to them "
            f"({text!r} becomes {pieces}); use another version of transformers, or give the model's own tokenizer: "
            "hw.load(…, tokenizer=AutoTokenizer.from_pretrained(…))"
        )


def _spread(words: Sequence[str]) -> Sequence[str]:
    """At most `WORDS` of them, evenly over the vocabulary, whose first words are the frequent ones."""
    return [words[number * len(words) // WORDS] for number in range(WORDS)] if len(words) > WORDS else words


def _text(token: str) -> str:
    return " " + token[1:] if token[0] in _SPACE else token


def _encoded(text: str, tokenizer: Any) -> list[int]:
    ids: list[int] = tokenized(tokenizer, text)["input_ids"]
    return ids


def _is_kept(token: str, numbers: Mapping[str, int], tokenizer: Any) -> bool:
    """Whether the word becomes its token. A tokenizer may put a space before every text; the word then becomes the
    token with the space, or its token after a space alone."""
    ids = _encoded(_text(token), tokenizer)
    accepted = {numbers[token], *(numbers[space + token] for space in _SPACE if space + token in numbers)}
    return bool(ids) and ids[-1] in accepted and not tokenizer.decode(ids[:-1]).strip()


# ---- the header: metadata and the shapes of the tensors, without the weights -----------------------------
# The reader of the package gguf makes several Python objects of every token and merge, which takes ten seconds for a
# vocabulary of 150,000. Format: github.com/ggml-org/ggml, docs/gguf.md.


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> its format in `struct`."""
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 8


class Header(NamedTuple):
    """What stands before the weights."""

    values: dict[str, Any]
    """Metadata of one value each."""
    arrays: dict[str, list[Any]]
    """Metadata of many values: those that were asked for, of the others nothing."""
    shapes: dict[str, tuple[int, ...]]
    """Of every tensor, the dimension whose numbers are adjacent first."""


def read_header(path: Path, arrays: tuple[str, ...] = ()) -> Header:
    """Read the header of a file; raises a `ValueError` where it is not a whole GGUF file."""
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise ValueError("it is shorter than a GGUF header")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).header(arrays)
            except struct.error:
                raise ValueError("it ends in the middle of its header") from None


class _Reader:
    """A place in the bytes of a file that moves on with every value."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.order = data, 0, "<"

    def header(self, wanted: tuple[str, ...]) -> Header:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin with the letters GGUF")
        self.at = 4
        version = self.number("I")
        if version & 0xFFFF == 0:  # written by a machine of the other byte order
            self.order, self.at = ">", 4
            version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}, and versions 2 and 3 can be read")
        tensors, entries = self.number("Q"), self.number("Q")
        values: dict[str, Any] = {}
        arrays: dict[str, list[Any]] = {}
        for _ in range(entries):
            key, kind = self.text(), self.number("I")
            if kind != _ARRAY:
                values[key] = self.value(kind)
                continue
            found = self.array(key in wanted)
            if key in wanted:
                arrays[key] = found
            elif len(found) == 1:
                values[key] = found[0]
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment}")
        return Header(values, arrays, self.tensors(tensors, alignment))

    def tensors(self, count: int, alignment: int) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors, whose weights must lie inside the file, each in bytes of its own."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        shapes: dict[str, tuple[int, ...]] = {}
        places = []
        for _ in range(count):
            name, dimensions = self.text(), self.number("I")
            if dimensions > _MOST_DIMENSIONS:
                raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
            if name in shapes:
                raise ValueError(f"it has two tensors of the name {name!r}")
            shapes[name] = tuple(self.number("Q") for _ in range(dimensions))
            kind, offset = self.number("I"), self.number("Q")
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            places.append((offset, offset + math.prod(shapes[name]) // block * size, name))
        end = 0
        for first, last, name in sorted(places):
            if first < end:
                raise ValueError(f"the weights of {name!r} overlap with those of another tensor")
            end = max(end, last)
        start = -(-self.at // alignment) * alignment
        if count and start + end > len(self.data):
            raise ValueError(f"its weights end at byte {start + end}, and it has {len(self.data)} bytes")
        return shapes

    def number(self, kind: str) -> Any:
        (found,) = struct.unpack_from(self.order + kind, self.data, self.at)
        self.at += struct.calcsize(self.order + kind)
        return found

    def text(self) -> str:
        start = self.at + 8
        self.at = start + self.number("Q")
        if self.at > len(self.data):
            raise ValueError("it ends in the middle of its header")
        return self.data[start : self.at].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind not in _SCALARS:
            raise ValueError(f"its metadata has a value of the unknown type {kind}")
        return self.number(_SCALARS[kind])

    def array(self, wanted: bool) -> list[Any]:
        """The values of an array; of one that is not wanted only a single value."""
        kind, count = self.number("I"), self.number("Q")
        if count > len(self.data):
            raise ValueError(
                f"its metadata has an array of {count} values, and it has {len(self.data)} bytes"
            )
        if kind in _SCALARS and not (wanted or count == 1):
            self.at += count * struct.calcsize(self.order + _SCALARS[kind])
            return []
        if kind == _ARRAY:
            raise ValueError("its metadata has an array of arrays")
        found = []
        for _ in range(count):
            value = self.value(kind)
            if wanted or count == 1:
                found.append(value)
        return found
