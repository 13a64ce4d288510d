"""The structures of the word problems: a story with its numbers left open, and how it is worked out.

Numbers a, b, c, d are amounts; k, m, p, q are small factors (packs, days, prices). {A}, {B}, {C} are people,
{things} something that can be counted. P, Q and R are the results of earlier steps (see `arithmetic`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Story:
    """A word problem whose numbers, names and things are still open."""

    text: str
    calculation: str
    """Its steps, with a semicolon between them."""

    @property
    def steps(self) -> list[str]:
        return self.calculation.split("; ")


ONE_STEP = (
    Story("{A} has {a} {things} and gets {b} more. How many {things} does {A} have now?", "a + b"),
    Story("{A} had {a} {things} and gave {b} to {B}. How many {things} does {A} have left?", "a - b"),
    Story(
        "There are {a} {things} on the table and {b} {things} on the floor. How many {things} are there in all?",
        "a + b",
    ),
    Story("{A} has {a} {things}. {B} has {b} more than {A}. How many {things} does {B} have?", "a + b"),
    Story("{A} has {a} {things}. {B} has {b} fewer than {A}. How many {things} does {B} have?", "a - b"),
    Story("A box holds {k} {things}. How many {things} are in {m} boxes?", "k * m"),
    Story(
        "{A} shares {a} {things} equally among {k} friends. How many {things} does each friend get?",
        "a / k",
    ),
    Story(
        "There are {a} people on a bus. At a stop, {b} people get off. How many people are still on the bus?",
        "a - b",
    ),
    Story(
        "There are {a} passengers on a train. At the station, {b} more get on. How many passengers are on it now?",
        "a + b",
    ),
    Story(
        "{A} read {a} pages on Monday and {b} pages on Tuesday. How many pages did {A} read in total?",
        "a + b",
    ),
    Story("A book has {a} pages. {A} has read {b} of them. How many pages are left?", "a - b"),
    Story("A notebook costs {k} dollars. How many dollars do {m} notebooks cost?", "k * m"),
    Story("{A} has {a} dollars and spends {b} dollars. How many dollars does {A} have left?", "a - b"),
    Story("{A} is {a} years old. How old will {A} be in {b} years?", "a + b"),
    Story("{A} is {a} years old. How old was {A} {b} years ago?", "a - b"),
    Story("{A} is {a} years old. {B} is {b} years younger. How old is {B}?", "a - b"),
    Story("A week has 7 days. How many days are there in {k} weeks?", "7 * k"),
    Story("A spider has 8 legs. How many legs do {k} spiders have?", "8 * k"),
    Story("There were {a} birds in a tree, and {b} flew away. How many birds are still there?", "a - b"),
    Story("A class has {a} girls and {b} boys. How many children are in the class?", "a + b"),
    Story("A class has {a} children, and {b} of them are boys. How many are girls?", "a - b"),
    Story("{A} puts {a} {things} into bags of {k}. How many bags does {A} fill?", "a / k"),
    Story("{A} walks {k} miles every day. How many miles does {A} walk in {m} days?", "k * m"),
    Story(
        "It was {a} degrees in the morning, and then it got {b} degrees warmer. How many degrees is it now?",
        "a + b",
    ),
    Story("It was {a} degrees at noon. By night it was {b} degrees colder. How cold was it?", "a - b"),
    Story("{A} needs {a} {things} but has only {b}. How many more {things} does {A} need?", "a - b"),
    Story("A rope is {a} meters long. {A} cuts off {b} meters. How many meters are left?", "a - b"),
    Story(
        "{A} scored {a} points in the first game and {b} points in the second. How many points is that?",
        "a + b",
    ),
    Story("{A} gives away half of {a} {things}. How many {things} does {A} give away?", "a / 2"),
    Story("{A} has {a} {things}. {B} has twice as many. How many {things} does {B} have?", "2 * a"),
)

TWO_STEPS = (
    Story(
        "{A} has {a} {things}, buys {b} more and then gives {c} away. How many {things} does {A} have now?",
        "a + b; P - c",
    ),
    Story(
        "{A} buys {k} boxes with {m} {things} in each and then finds {b} more. How many {things} is that in all?",
        "k * m; P + b",
    ),
    Story(
        "{A} buys {k} boxes with {m} {things} in each and loses {b}. How many {things} are left?",
        "k * m; P - b",
    ),
    Story(
        "There were {a} people on a bus. At a stop, {b} got off and {c} got on. How many people are on the bus now?",
        "a - b; P + c",
    ),
    Story(
        "{A} has {a} {things}. {B} has {b} more than {A}. How many {things} do they have together?",
        "a + b; a + P",
    ),
    Story(
        "{A} has {a} {things}. {B} has {b} fewer than {A}. How many {things} do they have together?",
        "a - b; a + P",
    ),
    Story(
        "{A} has {c} dollars and buys a shirt for {a} dollars and a hat for {b} dollars. How many dollars are left?",
        "c - a; P - b",
    ),
    Story(
        "{A} has {a} red and {b} blue {things} and shares them equally among {k} friends. How many does each get?",
        "a + b; P / k",
    ),
    Story(
        "{A} earns {k} dollars an hour and works {m} hours on Monday and {p} hours on Tuesday. "
        "How many dollars does {A} earn?",
        "m + p; k * P",
    ),
    Story(
        "{A} is {a} years old. {B} is {k} times as old. How old will {B} be in {b} years?",
        "k * a; P + b",
    ),
    Story(
        "A farmer has {k} hens, and each lays {m} eggs. The farmer sells {b} eggs. How many eggs are left?",
        "k * m; P - b",
    ),
    Story(
        "There are {k} rows with {m} chairs each, and {b} chairs are taken. How many chairs are free?",
        "k * m; P - b",
    ),
    Story(
        "A book has {a} pages. {A} reads {k} pages a day for {m} days. How many pages are left?",
        "k * m; a - P",
    ),
    Story(
        "A baker makes {a} cakes in the morning and {b} in the afternoon, and sells {c}. How many cakes are left?",
        "a + b; P - c",
    ),
    Story(
        "{A} scored {a}, {b} and {c} points in three games. How many points is that in total?",
        "a + b; P + c",
    ),
    Story(
        "{A} had {a} {things} and gave {b} to {B} and {c} to {C}. How many {things} does {A} have left?",
        "a - b; P - c",
    ),
    Story(
        "{A} has {a} {things}. {B} has {k} times as many. How many {things} do they have together?",
        "k * a; a + P",
    ),
    Story(
        "A tank holds {a} liters. {A} pours in {k} buckets of {m} liters. How many more liters fit in?",
        "k * m; a - P",
    ),
    Story(
        "A basket has {a} apples and {b} pears. {A} takes out {c} pieces of fruit. How many pieces are left in it?",
        "a + b; P - c",
    ),
    Story(
        "{A} saves {k} dollars a week for {m} weeks and gets {b} dollars as a gift. How many dollars is that?",
        "k * m; P + b",
    ),
)

THREE_STEPS = (
    Story(
        "A pen costs {k} dollars and a book costs {m} dollars. {A} buys {p} pens and {q} books. "
        "How many dollars does {A} pay?",
        "k * p; m * q; P + Q",
    ),
    Story(
        "{A} has {a} {things}. {B} has twice as many, and {C} has {b} fewer than {B}. "
        "How many {things} do they have together?",
        "2 * a; P - b; a + P; R + Q",
    ),
    Story(
        "A bus starts with {a} people. First {b} get on and {c} get off, and then {d} more get on. "
        "How many people are on the bus?",
        "a + b; P - c; Q + d",
    ),
    Story(
        "There are {k} boxes with {m} red and {p} blue balls in each, and {b} balls are lost. How many are left?",
        "m + p; k * P; Q - b",
    ),
    Story(
        "{A} read {a} pages on Monday, twice as many on Tuesday and {b} fewer than that on Wednesday. "
        "How many pages did {A} read on the three days?",
        "2 * a; P - b; a + P; R + Q",
    ),
    Story(
        "A farm has {k} cows with 4 legs each and {m} hens with 2 legs each. How many legs is that?",
        "4 * k; 2 * m; P + Q",
    ),
    Story(
        "{A} saves {k} dollars a week for {m} weeks, buys a toy for {b} dollars and then finds {c} dollars. "
        "How many dollars does {A} have?",
        "k * m; P - b; Q + c",
    ),
    Story(
        "A ticket costs {k} dollars for a child and {m} dollars for an adult. How many dollars do {p} children "
        "and 2 adults pay?",
        "k * p; 2 * m; P + Q",
    ),
    Story(
        "{A} buys {k} bags of {m} {things}, gives {b} to {B} and shares the rest equally among {p} friends. "
        "How many {things} does each friend get?",
        "k * m; P - b; Q / p",
    ),
    Story(
        "{A} has {a} dollars and buys {k} tickets for {m} dollars each and a drink for {p} dollars. "
        "How many dollars are left?",
        "k * m; a - P; Q - p",
    ),
)
