"""What is put into prompts, and where."""

from __future__ import annotations

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks.conditions import MARKS, Asked, conditions, filled_marks, marked_messages, plain_pieces

ASKED = Asked("1 + 1?", "Be brief.", (("2 + 2?", " 4"), ("3 + 3?", " 6")))


def plain(condition, **options):
    return plain_pieces(ASKED, condition, template="Q: {prompt}\nA:{target}", separator="\n\n", **options)


def test_the_default_fillers_are_fifty_five_slashes_and_fifty_five_words():
    none, meaningless, meaningful = conditions(["none", "meaningless", "meaningful"])
    assert none.text == ""
    assert meaningless.text.split(" ") == ["/"] * 55
    assert meaningful.text.split(" ") == ["he"] * 55


WHOLE = "Be brief.\n\nQ: 2 + 2?\nA: 4\n\nQ: 3 + 3?\nA: 6\n\nQ: 1 + 1?\nA:"


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("between", "Be brief.\n\nQ: 2 + 2?\nA: 4\n\nQ: 3 + 3?\nA: 6\n\n[/ /\n]Q: 1 + 1?\nA:"),
        ("before", f"[/ /\n]{WHOLE}"),
        ("end", f"{WHOLE.removesuffix(chr(10) + 'A:')}[\n/ /]\nA:"),
    ],
)
def test_a_filler_stands_where_it_was_asked_for(place, expected):
    (two,) = conditions(["meaningless:2"])
    pieces = plain(two, place=place)
    assert "".join(f"[{p.text}]" if p.inserted else p.text for p in pieces) == expected
    (none,) = conditions(["none"])
    assert [p.text for p in plain(none, place=place)] == [WHOLE]


def test_a_text_of_the_users_may_stand_around_the_question():
    (hint,) = conditions(["hint"], {"hint": "Think of {question} slowly."})
    shown = "".join(f"[{p.text}]" if p.inserted else p.text for p in plain(hint))
    assert shown.endswith("Q: [Think of ]1 + 1?[ slowly.]\nA:")
    rendered = "".join(f"<{m['role']}>{m['content']}" for m in marked_messages(ASKED, hint, "between", "\n"))
    shown = "".join(
        f"[{p.text}]" if p.inserted else p.text for p in filled_marks(rendered, hint, "between", "\n")
    )
    assert shown.endswith("<user>[Think of ]1 + 1?[ slowly.]")


@pytest.mark.parametrize("place", ["between", "before", "end"])
def test_a_chat_holds_the_filler_inside_the_right_message(place):
    (two,) = conditions(["meaningless:2"])
    messages = marked_messages(ASKED, two, place, "\n")
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    rendered = "".join(f"<{m['role']}>{m['content']}" for m in messages)
    pieces = filled_marks(rendered, two, place, "\n")
    shown = "".join(f"[{p.text}]" if p.inserted else p.text for p in pieces)
    expected = {
        "between": "<user>[/ /\n]1 + 1?",
        "before": "<system>[/ /\n]Be brief.",
        "end": "<user>1 + 1?[\n/ /]",
    }
    assert expected[place] in shown
    assert not any(mark in shown for mark in MARKS)


def test_a_template_that_repeats_or_drops_the_message_is_refused():
    (two,) = conditions(["meaningless:2"])
    for rendered in ("nothing", f"{MARKS[1]} twice {MARKS[1]}"):
        with pytest.raises(HeadwiseError, match="repeats or drops the message"):
            filled_marks(rendered, two, "between", "\n")


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (["meaningles"], {}, "did you mean 'meaningless'"),
        (["none:3"], {}, "inserts nothing"),
        (["meaningless:many"], {}, "does not say how many copies"),
        (["meaningless:0"], {}, "does not say how many copies"),
        ([], {}, "no condition"),
        (["none", "none"], {}, "given twice"),
        (["none"], {"fillers": {"arm": "x"}}, "cannot be called 'arm'"),
        (["dots"], {"fillers": {"dots": ""}}, "is empty"),
        (["hint"], {"fillers": {"hint": "{answer}"}}, "one gap"),
        (["meaningless"], {"lengths": (0,)}, "at least 1"),
    ],
)
def test_mistakes_are_named(names, options, said):
    with pytest.raises(HeadwiseError, match=said):
        conditions(names, **options)
