"""RASP programs whose answer at the last position needs attention, each beside the same function in plain Python.

`PROGRAMS` is read without tracr. Only the function that builds the RASP expression, `Program.rasp(r)`, gets it: `r` is
the module `tracr.rasp.rasp`. All programs are causal: a position reads itself and earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Tokens = tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """One program, twice."""

    name: str
    rasp: Callable[[Any], Any]
    """From tracr's module to the expression that is compiled."""
    answer: Callable[[Tokens], Any]
    """The program's value at the last position, in plain Python."""
    vocabulary: str = "abc"
    """One token per letter."""
    length: int = 6
    """Tokens of every prompt, without the beginning-of-sequence token."""
    valid: Callable[[Tokens], bool] = lambda t: True
    """Prompts for which every head that moves a token attends to one token only, as tracr needs it."""


# ---- parts of programs ---------------------------------------------------------------------------------------------


def back(r: Any, steps: int, sop: Any = None) -> Any:
    """What stands `steps` positions earlier."""
    earlier = r.Select(r.indices, r.indices, lambda k, q: q == k + steps)
    return r.Aggregate(earlier, r.tokens if sop is None else sop).named(f"back{steps}")


def at(r: Any, place: int, sop: Any = None) -> Any:
    """What stands at a fixed position."""
    there = r.Select(r.indices, r.indices, lambda k, q: k == place)
    return r.Aggregate(there, r.tokens if sop is None else sop).named(f"at{place}")


def count(r: Any, letter: str) -> Any:
    """How often a letter has come."""
    return r.SelectorWidth(r.Select(r.tokens, r.tokens, lambda k, q: k == letter)).named(f"count_{letter}")


def share(r: Any, letter: str) -> Any:
    """The share of a letter among the tokens so far, as a number."""
    before = r.Select(r.indices, r.indices, r.Comparison.LEQ)
    is_letter = r.numerical(r.Map(lambda x: int(x == letter), r.tokens)).named(f"is_{letter}")
    return r.numerical(r.Aggregate(before, is_letter, default=0)).named(f"share_{letter}")


def fetch(r: Any, place: Any) -> Any:
    """The token at the position that `place` names."""
    return r.Aggregate(r.Select(r.indices, place, r.Comparison.EQ), r.tokens)


def number(letter: str) -> int:
    return "abcdef".index(letter)


# ---- families of programs ------------------------------------------------------------------------------------------


def _one_head() -> Iterator[Program]:
    for k in (1, 2, 3):
        yield Program(f"back_{k}", lambda r, k=k: back(r, k), lambda t, k=k: t[-1 - k])
    for i in (0, 1, 2):
        yield Program(f"at_{i}", lambda r, i=i: at(r, i), lambda t, i=i: t[i], "abcd")
    for x in "abc":
        yield Program(f"count_{x}", lambda r, x=x: count(r, x), lambda t, x=x: t.count(x))
    for x in "ab":
        yield Program(
            f"parity_{x}", lambda r, x=x: r.Map(lambda n: n % 2, count(r, x)), lambda t, x=x: t.count(x) % 2
        )
        yield Program(
            f"half_{x}",
            lambda r, x=x: r.categorical(r.Map(lambda n: int(n > 0.45), share(r, x))),
            lambda t, x=x: int(t.count(x) / len(t) > 0.45),
        )
    for letters in ("abc", "abcd"):
        yield Program(
            f"same_as_last_{letters}",
            lambda r: r.SelectorWidth(r.Select(r.tokens, r.tokens, r.Comparison.EQ)),
            lambda t: t.count(t[-1]),
            letters,
        )
        yield Program(
            f"rank_of_last_{letters}",
            lambda r: r.SelectorWidth(r.Select(r.tokens, r.tokens, r.Comparison.LT)),
            lambda t: sum(x < t[-1] for x in t),
            letters,
        )
        yield Program(
            f"last_is_largest_{letters}",
            lambda r: r.Map(
                lambda n: int(n == 0), r.SelectorWidth(r.Select(r.tokens, r.tokens, r.Comparison.GT))
            ),
            lambda t: int(t[-1] == max(t)),
            letters,
        )
    for turn in (0, 1):
        yield Program(
            f"pointer_{turn}",
            lambda r, turn=turn: fetch(r, r.Map(lambda x: (number(x) + turn) % 4, r.tokens)),
            lambda t, turn=turn: t[(number(t[-1]) + turn) % 4],
            "abcd",
        )


def _two_heads_side_by_side() -> Iterator[Program]:
    for i, j in ((1, 2), (1, 3), (2, 4)):
        yield Program(
            f"equal_{i}_{j}",
            lambda r, i=i, j=j: r.SequenceMap(lambda x, y: int(x == y), back(r, i), back(r, j)),
            lambda t, i=i, j=j: int(t[-1 - i] == t[-1 - j]),
        )
        yield Program(
            f"sum_{i}_{j}",
            lambda r, i=i, j=j: r.SequenceMap(
                lambda x, y: (number(x) + number(y)) % 3, back(r, i), back(r, j)
            ),
            lambda t, i=i, j=j: (number(t[-1 - i]) + number(t[-1 - j])) % 3,
        )
    for x, y in ("ab", "bc", "ca"):
        yield Program(
            f"more_{x}_than_{y}",
            lambda r, x=x, y=y: r.SequenceMap(lambda n, m: int(n > m), count(r, x), count(r, y)),
            lambda t, x=x, y=y: int(t.count(x) > t.count(y)),
        )
    for x, y in ("ab", "bc"):
        yield Program(
            f"balance_{x}_{y}",
            lambda r, x=x, y=y: r.categorical(
                r.Map(
                    lambda d: int(d > 0.05),
                    r.numerical(r.LinearSequenceMap(share(r, x), share(r, y), 1, -1)),
                )
            ),
            lambda t, x=x, y=y: int(t.count(x) > t.count(y)),
        )
    for i, x in ((1, "a"), (0, "b")):
        yield Program(
            f"at_{i}_with_parity_{x}",
            lambda r, i=i, x=x: r.SequenceMap(lambda y, n: (number(y) + n) % 3, at(r, i), count(r, x)),
            lambda t, i=i, x=x: (number(t[i]) + t.count(x)) % 3,
        )
    for pattern in ("aab", "bca"):
        yield Program(
            f"pattern_{pattern}",
            lambda r, p=pattern: r.SequenceMap(
                lambda seen, z: int(seen and z == p[2]),
                r.SequenceMap(lambda x, y: int(x == p[0] and y == p[1]), back(r, 2), back(r, 1)),
                r.tokens,
            ),
            lambda t, p=pattern: int(t[-3:] == tuple(p)),
        )


def _three_and_more_heads() -> Iterator[Program]:
    for i, j, k in ((1, 2, 3), (1, 3, 5)):
        yield Program(
            f"sum_{i}_{j}_{k}",
            lambda r, i=i, j=j, k=k: r.SequenceMap(
                lambda n, z: (n + number(z)) % 2,
                r.SequenceMap(lambda x, y: (number(x) + number(y)) % 2, back(r, i), back(r, j)),
                back(r, k),
            ),
            lambda t, i=i, j=j, k=k: sum(number(t[-1 - n]) for n in (i, j, k)) % 2,
            "ab",
        )
    for x in "ab":
        yield Program(
            f"switch_by_parity_{x}",
            lambda r, x=x: r.SequenceMap(
                lambda n, pair: pair[n % 2],
                count(r, x),
                r.SequenceMap(lambda y, z: y + z, back(r, 1), back(r, 2)),
            ),
            lambda t, x=x: t[-2 - t.count(x) % 2],
        )
    yield Program(
        "switch_by_first",
        lambda r: r.SequenceMap(
            lambda first, pair: pair[number(first) % 2],
            at(r, 0),
            r.SequenceMap(lambda y, z: y + z, back(r, 1), back(r, 2)),
        ),
        lambda t: t[-2 - number(t[0]) % 2],
    )


def _chains() -> Iterator[Program]:
    for steps in ((1, 1), (1, 2), (2, 2), (1, 1, 1), (2, 1, 1)):

        def chain(r: Any, steps: tuple[int, ...] = steps) -> Any:
            sop = r.tokens
            for n, step in enumerate(steps):
                sop = back(r, step, sop).named(f"chain{n}")
            return sop

        yield Program(
            f"chain_{'_'.join(map(str, steps))}", chain, lambda t, steps=steps: t[-1 - sum(steps)], "abcd"
        )
    for k in (1, 2):
        yield Program(
            f"pointer_of_back_{k}",
            lambda r, k=k: fetch(r, r.Map(number, back(r, k))),
            lambda t, k=k: t[number(t[-1 - k])],
            "abcd",
        )
        yield Program(
            f"count_of_back_{k}",
            lambda r, k=k: r.SelectorWidth(r.Select(r.tokens, back(r, k), r.Comparison.EQ)),
            lambda t, k=k: t.count(t[-1 - k]),
        )
        yield Program(
            f"how_often_repeated_{k}",
            lambda r, k=k: r.SelectorWidth(
                r.Select(
                    r.SequenceMap(lambda x, y: int(x == y), r.tokens, back(r, k)),
                    r.tokens,
                    lambda e, q: e == 1,
                )
            ),
            lambda t, k=k: sum(x == y for x, y in zip(t, t[k:], strict=False)),
        )
    for i in (0, 1):
        yield Program(
            f"count_of_at_{i}",
            lambda r, i=i: r.SelectorWidth(r.Select(r.tokens, at(r, i), r.Comparison.EQ)),
            lambda t, i=i: t.count(t[i]),
        )
    for x in "ab":
        yield Program(
            f"at_count_{x}",
            lambda r, x=x: fetch(r, r.Map(lambda n: min(n, 3), count(r, x))),
            lambda t, x=x: t[min(t.count(x), 3)],
            "abcd",
        )
        yield Program(
            f"before_{x}",
            lambda r, x=x: r.Aggregate(r.Select(r.tokens, r.tokens, lambda k, q: k == x), back(r, 1)),
            lambda t, x=x: t[t.index(x) - 1],
            "abcd",
            valid=lambda t, x=x: t.count(x) == 1 and t[0] != x,
        )
        yield Program(
            f"after_{x}",
            lambda r, x=x: r.Aggregate(r.Select(back(r, 1), r.tokens, lambda k, q: k == x), r.tokens),
            lambda t, x=x: t[t.index(x) + 1],
            "abcd",
            valid=lambda t, x=x: t.count(x) == 1 and t[-1] != x,
        )
    for letters, length in (("abcd", 6), ("abcde", 7)):
        yield Program(
            f"induction_{letters}",
            lambda r: r.Aggregate(r.Select(back(r, 1), r.tokens, r.Comparison.EQ), r.tokens),
            lambda t: t[t.index(t[-1]) + 1],
            letters,
            length,
            valid=lambda t: t.count(t[-1]) == 2,
        )
    yield Program(
        "two_hops",
        lambda r: fetch(r, r.Map(number, fetch(r, r.Map(number, r.tokens)).named("hop1"))),
        lambda t: t[number(t[number(t[-1])])],
        "abcd",
    )
    yield Program(
        "three_hops",
        lambda r: fetch(
            r,
            r.Map(
                number, fetch(r, r.Map(number, fetch(r, r.Map(number, r.tokens)).named("hop1"))).named("hop2")
            ),
        ),
        lambda t: t[number(t[number(t[number(t[-1])])])],
        "abcd",
    )
    yield Program(
        "repeats_of_first",
        lambda r: r.SequenceMap(
            lambda n, x: (n + number(x)) % 3,
            r.SelectorWidth(r.Select(r.tokens, at(r, 0), r.Comparison.EQ)),
            back(r, 1),
        ),
        lambda t: (t.count(t[0]) + number(t[-2])) % 3,
    )


PROGRAMS = {
    program.name: program
    for family in (_one_head, _two_heads_side_by_side, _three_and_more_heads, _chains)
    for program in family()
}
