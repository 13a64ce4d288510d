"""The structures of the word problems: a story with its numbers left open, and the rule for its answer.

Numbers a, b, c, d are amounts; k, m, p, q are small factors (packs, days, prices). {A}, {B}, {C} are people,
{things} something that can be counted. A rule gives None where the drawn numbers make no sensible story.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Story:
    """A word problem whose numbers, names and things are still open."""

    text: str
    answer: Callable[..., int | None]
    """Called with the numbers of the story, by name."""


def even(total: int, parts: int) -> int | None:
    """The share of each part, where it comes out even."""
    return total // parts if total % parts == 0 else None


ONE_STEP = (
    Story("{A} has {a} {things} and gets {b} more. How many {things} does {A} have now?", lambda a, b: a + b),
    Story(
        "{A} had {a} {things} and gave {b} to {B}. How many {things} does {A} have left?", lambda a, b: a - b
    ),
    Story(
        "There are {a} {things} on the table and {b} {things} on the floor. How many {things} are there in all?",
        lambda a, b: a + b,
    ),
    Story(
        "{A} has {a} {things}. {B} has {b} more than {A}. How many {things} does {B} have?",
        lambda a, b: a + b,
    ),
    Story(
        "{A} has {a} {things}. {B} has {b} fewer than {A}. How many {things} does {B} have?",
        lambda a, b: a - b,
    ),
    Story("A box holds {k} {things}. How many {things} are in {m} boxes?", lambda k, m: k * m),
    Story(
        "{A} shares {a} {things} equally among {k} friends. How many {things} does each friend get?",
        lambda a, k: even(a, k),
    ),
    Story(
        "There are {a} people on a bus. At a stop, {b} people get off. How many people are still on the bus?",
        lambda a, b: a - b,
    ),
    Story(
        "There are {a} passengers on a train. At the station, {b} more get on. How many passengers are on it now?",
        lambda a, b: a + b,
    ),
    Story(
        "{A} read {a} pages on Monday and {b} pages on Tuesday. How many pages did {A} read in total?",
        lambda a, b: a + b,
    ),
    Story("A book has {a} pages. {A} has read {b} of them. How many pages are left?", lambda a, b: a - b),
    Story("A notebook costs {k} dollars. How many dollars do {m} notebooks cost?", lambda k, m: k * m),
    Story(
        "{A} has {a} dollars and spends {b} dollars. How many dollars does {A} have left?", lambda a, b: a - b
    ),
    Story("{A} is {a} years old. How old will {A} be in {b} years?", lambda a, b: a + b),
    Story("{A} is {a} years old. How old was {A} {b} years ago?", lambda a, b: a - b),
    Story("{A} is {a} years old. {B} is {b} years younger. How old is {B}?", lambda a, b: a - b),
    Story("A week has 7 days. How many days are there in {k} weeks?", lambda k: 7 * k),
    Story("A spider has 8 legs. How many legs do {k} spiders have?", lambda k: 8 * k),
    Story(
        "There were {a} birds in a tree, and {b} flew away. How many birds are still there?",
        lambda a, b: a - b,
    ),
    Story("A class has {a} girls and {b} boys. How many children are in the class?", lambda a, b: a + b),
    Story("A class has {a} children, and {b} of them are boys. How many are girls?", lambda a, b: a - b),
    Story("{A} puts {a} {things} into bags of {k}. How many bags does {A} fill?", lambda a, k: even(a, k)),
    Story("{A} walks {k} miles every day. How many miles does {A} walk in {m} days?", lambda k, m: k * m),
    Story(
        "It was {a} degrees in the morning, and then it got {b} degrees warmer. How many degrees is it now?",
        lambda a, b: a + b,
    ),
    Story(
        "It was {a} degrees at noon. By night it was {b} degrees colder. How cold was it?", lambda a, b: a - b
    ),
    Story(
        "{A} needs {a} {things} but has only {b}. How many more {things} does {A} need?", lambda a, b: a - b
    ),
    Story(
        "A rope is {a} meters long. {A} cuts off {b} meters. How many meters are left?", lambda a, b: a - b
    ),
    Story(
        "{A} scored {a} points in the first game and {b} points in the second. How many points is that?",
        lambda a, b: a + b,
    ),
    Story("{A} gives away half of {a} {things}. How many {things} does {A} give away?", lambda a: even(a, 2)),
    Story("{A} has {a} {things}. {B} has twice as many. How many {things} does {B} have?", lambda a: 2 * a),
)

TWO_STEPS = (
    Story(
        "{A} has {a} {things}, buys {b} more and then gives {c} away. How many {things} does {A} have now?",
        lambda a, b, c: a + b - c,
    ),
    Story(
        "{A} buys {k} boxes with {m} {things} in each and then finds {b} more. How many {things} is that in all?",
        lambda k, m, b: k * m + b,
    ),
    Story(
        "{A} buys {k} boxes with {m} {things} in each and loses {b}. How many {things} are left?",
        lambda k, m, b: k * m - b,
    ),
    Story(
        "There were {a} people on a bus. At a stop, {b} got off and {c} got on. How many people are on the bus now?",
        lambda a, b, c: a - b + c if a > b else None,
    ),
    Story(
        "{A} has {a} {things}. {B} has {b} more than {A}. How many {things} do they have together?",
        lambda a, b: a + a + b,
    ),
    Story(
        "{A} has {a} {things}. {B} has {b} fewer than {A}. How many {things} do they have together?",
        lambda a, b: a + a - b if a > b else None,
    ),
    Story(
        "{A} has {c} dollars and buys a shirt for {a} dollars and a hat for {b} dollars. How many dollars are left?",
        lambda a, b, c: c - a - b,
    ),
    Story(
        "{A} has {a} red and {b} blue {things} and shares them equally among {k} friends. How many does each get?",
        lambda a, b, k: even(a + b, k),
    ),
    Story(
        "{A} earns {k} dollars an hour and works {m} hours on Monday and {p} hours on Tuesday. "
        "How many dollars does {A} earn?",
        lambda k, m, p: k * (m + p),
    ),
    Story(
        "{A} is {a} years old. {B} is {k} times as old. How old will {B} be in {b} years?",
        lambda a, k, b: a * k + b if a * k < 90 else None,
    ),
    Story(
        "A farmer has {k} hens, and each lays {m} eggs. The farmer sells {b} eggs. How many eggs are left?",
        lambda k, m, b: k * m - b,
    ),
    Story(
        "There are {k} rows with {m} chairs each, and {b} chairs are taken. How many chairs are free?",
        lambda k, m, b: k * m - b,
    ),
    Story(
        "A book has {a} pages. {A} reads {k} pages a day for {m} days. How many pages are left?",
        lambda a, k, m: a - k * m,
    ),
    Story(
        "A baker makes {a} cakes in the morning and {b} in the afternoon, and sells {c}. How many cakes are left?",
        lambda a, b, c: a + b - c,
    ),
    Story(
        "{A} scored {a}, {b} and {c} points in three games. How many points is that in total?",
        lambda a, b, c: a + b + c,
    ),
    Story(
        "{A} had {a} {things} and gave {b} to {B} and {c} to {C}. How many {things} does {A} have left?",
        lambda a, b, c: a - b - c,
    ),
    Story(
        "{A} has {a} {things}. {B} has {k} times as many. How many {things} do they have together?",
        lambda a, k: a + a * k,
    ),
    Story(
        "A tank holds {a} liters. {A} pours in {k} buckets of {m} liters. How many more liters fit in?",
        lambda a, k, m: a - k * m,
    ),
    Story(
        "A basket has {a} apples and {b} pears. {A} takes out {c} pieces of fruit. How many pieces are left in it?",
        lambda a, b, c: a + b - c,
    ),
    Story(
        "{A} saves {k} dollars a week for {m} weeks and gets {b} dollars as a gift. How many dollars is that?",
        lambda k, m, b: k * m + b,
    ),
)

THREE_STEPS = (
    Story(
        "A pen costs {k} dollars and a book costs {m} dollars. {A} buys {p} pens and {q} books. "
        "How many dollars does {A} pay?",
        lambda k, m, p, q: k * p + m * q,
    ),
    Story(
        "{A} has {a} {things}. {B} has twice as many, and {C} has {b} fewer than {B}. "
        "How many {things} do they have together?",
        lambda a, b: 5 * a - b if 2 * a > b else None,
    ),
    Story(
        "A bus starts with {a} people. First {b} get on and {c} get off, and then {d} more get on. "
        "How many people are on the bus?",
        lambda a, b, c, d: a + b - c + d if a + b > c else None,
    ),
    Story(
        "There are {k} boxes with {m} red and {p} blue balls in each, and {b} balls are lost. How many are left?",
        lambda k, m, p, b: k * (m + p) - b,
    ),
    Story(
        "{A} read {a} pages on Monday, twice as many on Tuesday and {b} fewer than that on Wednesday. "
        "How many pages did {A} read on the three days?",
        lambda a, b: 5 * a - b if 2 * a > b else None,
    ),
    Story(
        "A farm has {k} cows with 4 legs each and {m} hens with 2 legs each. How many legs is that?",
        lambda k, m: 4 * k + 2 * m,
    ),
    Story(
        "{A} saves {k} dollars a week for {m} weeks, buys a toy for {b} dollars and then finds {c} dollars. "
        "How many dollars does {A} have?",
        lambda k, m, b, c: k * m - b + c if k * m > b else None,
    ),
    Story(
        "A ticket costs {k} dollars for a child and {m} dollars for an adult. How many dollars do {p} children "
        "and 2 adults pay?",
        lambda k, m, p: k * p + 2 * m,
    ),
    Story(
        "{A} buys {k} bags of {m} {things}, gives {b} to {B} and shares the rest equally among {p} friends. "
        "How many {things} does each friend get?",
        lambda k, m, b, p: even(k * m - b, p),
    ),
    Story(
        "{A} has {a} dollars and buys {k} tickets for {m} dollars each and a drink for {p} dollars. "
        "How many dollars are left?",
        lambda a, k, m, p: a - k * m - p,
    ),
)
