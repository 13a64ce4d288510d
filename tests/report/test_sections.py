"""What the report says and draws of roles, circuits, masking and prompts, worked out a second time by hand."""

from __future__ import annotations

import json
import math
import re
from types import SimpleNamespace

import pandas as pd
import pytest

from headwise.charts.interactive import page_chart
from headwise.charts.section import SECTIONS
from headwise.report import write_report
from report import small_tables as small
from report.small_tables import HEADS
from report.test_page import data_of


@pytest.fixture
def section():
    """What the report has to say of a study, given its tables; charts as the page has them."""

    def make(study, tables, models=("tiny",)):
        own = SECTIONS.get(study)
        charts = [SimpleNamespace(**page_chart(chart)) for chart in own.charts(tables)]
        for chart in charts:
            chart.panels = [SimpleNamespace(**panel) for panel in chart.panels]
        return SimpleNamespace(findings=own.findings(tables), charts=charts, heads=own.heads(tables))

    return make


def said(section) -> list[str]:
    return [finding.sentence for finding in section.findings]


def chart(section, title):
    (found,) = [one for one in section.charts if one.title.startswith(title)]
    return found


def panel(section, title, name):
    (found,) = [one for one in chart(section, title).panels if one.title == name]
    return found


def lines(panel) -> dict:
    """The lines of a panel by name, without their bands."""
    return {trace["name"]: trace for trace in panel.traces if "name" in trace}


def points(trace) -> dict:
    """k -> (y, lo, hi), as hovering shows them."""
    return {k: (y, lo, hi) for y, (lo, hi, k) in zip(trace["y"], trace["customdata"], strict=True)}


def band(panel, name):
    (found,) = [t for t in panel.traces if t.get("hoverinfo") == "skip" and t.get("legendgroup") == name]
    return found


def names(order) -> list[str]:
    return [f"L{layer}H{head}" for layer, head in order]


def by_value(values) -> list[str]:
    """Heads from the largest value to the smallest, by picking the largest that is left."""
    left, order = dict(zip(HEADS, values, strict=True)), []
    while left:
        best = next(head for head in left if left[head] == max(left.values()))
        order.append(best)
        del left[best]
    return names(order)


# ---- roles ---------------------------------------------------------------------------------------------


def test_roles_are_told_with_the_numbers_of_curves_and_seeds(section):
    first, second, joint = said(section("roles", small.roles(), ("big", "small")))
    assert first == (
        "On syntax, big: ablating the 4 most facilitating heads changes the answer's log probability by −4.00 nats, "
        "ablating 4 irrelevant heads by −0.30; ablating the 2 most interfering heads changes it by +2.00, 2 irrelevant "
        "heads by −0.12. Of 6 heads over 2 seeds, 1 facilitate in every seed, 3 in at least one; 1 interfere in every "
        "seed, 2 in at least one; 1 are irrelevant in every seed, 2 in at least one."
    )
    assert "by −0.40 nats, ablating 4 irrelevant heads by −0.60 (not significantly lower)" in second
    assert "changes it by −0.30, 2 irrelevant heads by −0.10 (not significantly higher)" in second
    assert "costs 3.25 nats [2.50, 4.00], more than 97.5% of 40 random sets of heads (mean 0.50)" in joint
    assert joint.endswith("rank correlation of facilitation with exact ablation is +0.62.")


@pytest.mark.parametrize("model", ["big", "small"])
def test_the_counts_of_roles_are_those_of_the_seeds_labels(section, model):
    (sentence,) = [
        s
        for s in said(section("roles", small.roles(), ("big", "small")))
        if f"syntax, {model}: " in s and "in every seed" in s
    ]
    pattern = r"(\d+) (facilitate|interfere|are irrelevant) in every seed, (\d+) in at least one"
    counted = {word: (int(always), int(ever)) for always, word, ever in re.findall(pattern, sentence)}
    seeds = [
        {label: {h for h, own in enumerate(labels) if own == label} for label in set(labels)}
        for labels in small.SEED_LABELS[model]
    ]
    words = {"facilitating": "facilitate", "interfering": "interfere", "irrelevant": "are irrelevant"}
    for label, word in words.items():
        each = [seed.get(label, set()) for seed in seeds]
        assert counted[word] == (len(set.intersection(*each)), len(set.union(*each)))


def test_the_curves_of_roles_have_every_point_and_one_scale_for_a_task(section):
    whole = section("roles", small.roles(), ("big", "small"))
    for (model, task, role), expected in small.ROLE_POINTS.items():
        shown = panel(whole, "Effect of ablating", f"{task.capitalize()}, {model}")
        assert points(lines(shown)[role.capitalize()]) == expected
        edge = band(shown, role.capitalize())
        assert edge["x"] == [0, 2, 4, 4, 2, 0]
        assert edge["y"] == [expected[k][2] for k in (0, 2, 4)] + [expected[k][1] for k in (4, 2, 0)]
        low, high = shown.y["range"]
        assert -5 < low < -4.5  # the lowest and the highest bound of either model, and a little room
        assert 2.5 < high < 3


def test_a_dot_marks_where_the_heads_of_a_role_end(section):
    shown = panel(section("roles", small.roles(), ("big", "small")), "Effect of ablating", "Syntax, big")
    dots = [trace for trace in shown.traces if trace.get("mode") == "markers"]
    # Facilitating 2 and 2, irrelevant 2 and 1, interfering 1 and 2 of the heads in the two seeds.
    places = {"facilitation": (2, -1.5), "irrelevance": (1.5, -0.75 * 0.125), "interference": (1.5, 1.5)}
    assert [(dot["x"][0], dot["y"][0]) for dot in dots] == [pytest.approx(place) for place in places.values()]
    assert [dot["marker"]["color"] for dot in dots] == [
        line["line"]["color"] for line in lines(shown).values()
    ]
    assert dots[1]["hovertext"] == ["1.5 irrelevant heads on average"]


def test_one_wide_band_does_not_flatten_the_other_curves(section):
    tables = small.roles()
    last = tables["curves"].query("model == 'big' and series == 'facilitation'")["k"].idxmax()
    tables["curves"].loc[last, "lo"] = -400.0
    shown = panel(section("roles", tables, ("big", "small")), "Effect of ablating", "Syntax, big")
    low, high = shown.y["range"]
    assert -8 < low < -6  # the lines go from -4 to 2
    assert 2.5 < high < 3


def test_a_head_is_marked_at_its_place_in_each_role(section):
    shown = panel(section("roles", small.roles(), ("big", "small")), "Effect of ablating", "Syntax, big")
    for role, values in small.ROLE_SCORES.items():
        assert shown.orders[role] == by_value(values)[:4]  # the curve ends there


def test_the_maps_and_shares_of_roles_are_those_of_the_tables(section):
    whole = section("roles", small.roles(), ("big", "small"))
    for role, values in small.ROLE_SCORES.items():
        (trace,) = panel(whole, "The three roles of big", f"Syntax, {role.capitalize()}").traces
        for (layer, head), value in zip(HEADS, values, strict=True):
            assert trace["z"][layer][head] == value
        # Only facilitation has an interval; none may be shown as 0.
        assert ("customdata[0]" in trace["hovertemplate"]) == (role == "facilitation")
    shares, counts = chart(whole, "How many heads").panels
    assert shares.y["ticktext"] == ["Syntax<br>big", "Syntax<br>small"]
    for place, by_seed in enumerate(small.SEED_LABELS.values()):
        every = [label for seed in by_seed for label in seed]
        ends = 0.0
        for trace in shares.traces:
            share = every.count(trace["name"].lower()) / len(every)
            assert trace["x"][place] == pytest.approx(share, abs=1e-5)
            assert trace["base"][place] == pytest.approx(ends, abs=1e-4)  # one stands where the last ended
            ends += share
        assert ends == pytest.approx(1)
    texts = {(mark["x"], mark["y"]): mark["text"] for mark in counts.marks}
    assert texts[0, 0] == "1 / 3"  # as the sentence has it: 1 in every seed, 3 in at least one


def test_heads_that_every_seed_calls_alike_carry_a_dot():
    tables = small.roles()
    big = tables["scores"]["model"] == "big"
    labels = ["facilitating", "facilitating", "interfering", "irrelevant", "irrelevant", "undecided"]
    tables["scores"].loc[big, "label"] = labels
    tables["scores"].loc[big, "agreement"] = [1, 0.5, 1, 1, 0.5, 1]
    (maps,) = [one for one in SECTIONS.get("roles").charts(tables) if one.name == "role-map-big"]
    dots = [panel["traces"][1] for panel in page_chart(maps)["panels"]]
    assert [(dot["y"], dot["x"]) for dot in dots] == [([0], [0]), ([1], [0]), ([0], [2])]


# ---- circuits ------------------------------------------------------------------------------------------


TITLES = {"ioi": "IOI", "docstring": "Docstring"}


def first_at(points, threshold=0.9) -> int:
    """Walk along a curve until it is there."""
    for k in sorted(points):
        if points[k] >= threshold:
            return k
    raise AssertionError("it never is")


def test_circuits_are_told_with_the_heads_their_curves_need(section):
    sentences = said(section("circuits", small.circuits(), ("plain", "thin")))
    for (model, task), curve in small.EXPLAINED.items():
        k = first_at(curve)
        assert (
            f"{model}: {k} of 6 heads (MLPs intact) recover 90 % of the mean logit_diff of {TITLES[task]} under "
            f"counterfactual patching (95 % CI {k - 1}–{k + 1}, n = 8), ranked by integrated."
        ) in sentences
    start = "Circuit size at 90 % faithfulness under counterfactual patching, each by its chosen order: "
    (ratio,) = [s for s in sentences if s.startswith(start)]
    for task in ("ioi", "docstring"):
        needed = [first_at(small.EXPLAINED[model, task]) for model in ("plain", "thin")]
        ((plain, thin, shown),) = re.findall(
            rf"{TITLES[task]} plain (\d+) heads?, thin (\d+) heads? \(ratio ([\d.]+),", ratio
        )
        assert [int(plain), int(thin)] == needed
        assert float(shown) == pytest.approx(needed[0] / needed[1], abs=0.051)
    assert (
        "IOI plain 4 heads, thin 2 heads (ratio 2.0, 95 % CI 1.5–2.5; both by integrated 2.0); Doc" in ratio
    )


def test_the_curves_of_circuits_have_every_point_and_controls_their_mean(section):
    whole = section("circuits", small.circuits(), ("plain", "thin"))
    for (model, task), curve in small.EXPLAINED.items():
        shown = [
            trace for trace in panel(whole, "Explained effect", TITLES[task]).traces if "customdata" in trace
        ]
        (line,) = [trace for trace in shown if trace["name"] == model]
        drawn = points(line)
        assert line["x"] == sorted(curve)
        assert set(drawn) == set(curve)  # the metric itself, in the same table, is another thing
        for k, value in curve.items():
            assert drawn[k] == pytest.approx((value, value - 0.05, value + 0.05), abs=1e-5)
        (control,) = [
            t for t in shown if t["name"] == "random heads" and t["hovertemplate"].startswith(f"{model}, ")
        ]
        chance = points(control)
        assert {k: y for k, (y, _, _) in chance.items()} == {0: 0.0, 2: pytest.approx(0.2), 6: 1.0}


@pytest.mark.parametrize("task", ["ioi", "docstring"])
def test_the_dashed_segment_runs_from_curve_to_curve(section, task):
    whole = section("circuits", small.circuits(), ("plain", "thin"))
    shown = panel(whole, "Explained effect", TITLES[task])
    (text,) = shown.marks
    (line,) = [trace for trace in shown.traces if trace["line"].get("color") == "ink"]
    ends = {first_at(small.EXPLAINED[model, task]) for model in ("plain", "thin")}
    assert set(line["x"]) == ends
    assert line["y"] == [0.9, 0.9]
    dense, sparse = (first_at(small.EXPLAINED[model, task]) for model in ("plain", "thin"))
    assert text["text"].startswith(f"{dense / sparse:.1f}x<br>[")
    assert text["x"] == max(ends)


def test_few_of_many_heads_get_room_on_a_root_axis(section):
    tables = small.circuits()
    last = tables["curves"]["k"] == 6
    tables["curves"].loc[last, "k"] = 900  # a model of 900 heads that needs four
    whole = section("circuits", tables, ("plain", "thin"))
    shown = panel(whole, "Explained effect", "IOI")
    assert shown.root
    assert shown.x["title"].endswith("(√ axis)")
    (line,) = [trace for trace in shown.traces if trace.get("name") == "plain"]
    assert [x * x for x in line["x"]] == pytest.approx([0, 1, 2, 4, 900], rel=1e-3)
    assert set(points(line)) == {0, 1, 2, 4, 900}  # what is said is the number itself
    for at, text in zip(shown.x["tickvals"], shown.x["ticktext"], strict=True):
        assert at * at == pytest.approx(int(text), rel=1e-3)
    (segment,) = [trace for trace in shown.traces if trace["line"].get("color") == "ink"]
    assert {round(end**2) for end in segment["x"]} == {2, 4}


@pytest.mark.parametrize("by", ["signed", "absolute", "hinders", "unsigned"])
def test_heads_are_marked_in_the_order_in_which_they_were_kept_for_each_model(section, by):
    whole = section("circuits", small.circuits(by), ("plain", "thin"))
    key = {"absolute": abs, "hinders": lambda v: -v}.get(by, lambda v: v)
    expected = by_value([key(value) for value in small.CIRCUIT_SCORES])
    shown = panel(whole, "Explained effect", "IOI")
    assert set(shown.owners.values()) == {"plain", "thin"}
    for series, order in shown.orders.items():
        assert order == expected
        assert series == shown.owners[series]


def test_masked_heads_are_not_called_kept(section):
    whole = section("circuits", small.circuits(action="mask"), ("plain", "thin"))
    assert panel(whole, "Explained effect", "IOI").x["title"] == "Number of Heads Masked"
    assert any(
        "heads take away 90 % of the mean logit_diff of IOI when they are masked" in s for s in said(whole)
    )


def test_the_attention_map_has_each_weight_at_its_query_and_key(section):
    shown = panel(
        section("circuits", small.circuits(), ("plain", "thin")), "IOI: attention of the top heads", "1. L0H2"
    )
    (trace,) = shown.traces
    assert trace["z"] == [[1, None, None], [0.5, 0.5, None], [0.33333, 0.33333, 0.33333]]
    assert (
        shown.x["ticktext"] == shown.y["ticktext"] == ["a", "b", "c"]
    )  # each token beside its row and column
    assert trace["customdata"][2][0] == ["c", "a"]
    assert shown.attention == "L0H2"


# ---- circuits with several orders and ablation types ---------------------------------------------------


def test_circuits_of_several_orders_are_told_with_the_chosen_one_first(section):
    sentences = said(section("circuits", small.circuit_orders(), ("plain", "thin")))
    squared = {key: {k: v**2 for k, v in curve.items()} for key, curve in small.EXPLAINED.items()}
    for (model, task), curve in small.EXPLAINED.items():
        size, other = first_at(curve), first_at(squared[model, task])
        for under in ("mean ablation", "counterfactual patching"):
            assert (
                f"{model}: {size} of 6 heads (MLPs intact) recover 90 % of the mean logit_diff of {TITLES[task]} under "
                f"{under} (95 % CI {size - 1}–{size + 1}, n = 8), ranked by nested; ranked by integrated it takes "
                f"{other}."
            ) in sentences
    (ratio,) = [
        s for s in sentences if s.startswith("Circuit size at 90 % faithfulness under mean ablation, each by")
    ]
    nested, integrated = (
        [first_at(curves[model, "ioi"]) for model in ("plain", "thin")]
        for curves in (small.EXPLAINED, squared)
    )
    assert (
        f"IOI plain {nested[0]} heads, thin {nested[1]} heads (ratio {nested[0] / nested[1]:.1f}, 95 % CI 1.5–2.5; "
        f"both by integrated {integrated[0] / integrated[1]:.1f}, by nested {nested[0] / nested[1]:.1f})"
    ) in ratio


def test_an_overshoot_is_told_with_the_heads_of_its_largest_steps(section):
    sentences = said(section("circuits", small.circuit_orders(), ("plain", "thin")))
    assert (
        "plain on Docstring under counterfactual patching: the first 4 heads by nested reach 1.25 of the effect, more "
        "than all heads together; the largest steps of this rise are the additions of L1H0, L0H0 (+0.15) and L1H2 "
        "(+0.10)."
    ) in sentences


# ---- masking -------------------------------------------------------------------------------------------


def test_masking_is_told_at_the_k_where_top_and_random_differ_most(section):
    sentences = said(section("masking", small.masking()))
    for task in ("Recall", "Logic"):
        top, rest = small.MASKED[task, "top"], small.MASKED[task, "random"]
        k = max(top, key=lambda k: rest[k][0] - top[k][0])
        (sentence,) = [s for s in sentences if s.startswith(f"{task}, tiny:")]
        one = r"(\d+) % \(95 % CI (\d+)–(\d+) %\)"
        pattern = (
            rf"accuracy (\d+) % with all heads, {one} when its top {k} heads .*, {one} when {k} random heads"
        )
        shown = [int(number) / 100 for number in re.search(pattern, sentence).groups()]
        assert shown == pytest.approx([small.MASKED[task, "full"][0][0], *top[k], *rest[k]])
        assert ("the intervals overlap" in sentence) == (top[k][2] >= rest[k][1])
    found = {f.sentence[:6]: f.weight for f in section("masking", small.masking()).findings}
    assert found["Recall"] == pytest.approx(0.65)


def test_the_curves_of_masking_have_a_panel_per_metric_and_leave_single_draws_out(section):
    whole = section("masking", small.masking())
    for task in ("Recall", "Logic"):
        right = panel(whole, "Masking the heads", f"{task}, Accuracy")
        near = lines(panel(whole, "Masking the heads", f"{task}, chrF"))
        for series, word in (("top", "TopK"), ("random", "RandomK")):
            assert points(lines(right)[f"{word} Accuracy"]) == small.MASKED[task, series]
            assert lines(right)[f"{word} Accuracy"]["x"] == [2, 4]
            assert {k: y for k, (y, _, _) in points(near[f"{word} chrF"]).items()} == {
                k: pytest.approx(1 - y / 2) for k, (y, _, _) in small.MASKED[task, series].items()
            }
        assert right.y["title"] == "Accuracy"
        assert (right.x["tickvals"], right.x["ticktext"]) == ([2, 4], ["2", "4"])
        # A logarithmic axis has no 0: what is measured with every head is a line across, and says 0.
        assert points(lines(right)["Accuracy, none masked"]) == {0: small.MASKED[task, "full"][0]}
    matched = lines(panel(whole, "Masking the heads", "Recall, Accuracy"))["RandomK, same layers"]
    assert points(matched) == {4: (0.7, 0.5, 0.8)}


def test_heads_are_marked_in_the_order_in_which_they_were_masked(section):
    shown = panel(section("masking", small.masking()), "Masking the heads", "Recall, Accuracy")
    assert shown.orders["top"] == names(small.MASK_ORDER)


def test_the_cross_table_has_whose_heads_in_rows_and_what_was_measured_in_columns(section):
    (shown,) = chart(section("masking", small.masking()), "Accuracy on each ability").panels
    (trace,) = shown.traces
    assert shown.y["ticktext"] == ["Recall", "Logic"]
    assert shown.x["ticktext"] == ["Recall (0.80)", "Logic (0.80)"]
    assert trace["z"] == [[-0.6, -0.25], [-0.1, -0.25]]
    assert trace["text"] == [["<b>−0.60</b>", "<b>−0.25</b>"], ["−0.10", "<b>−0.25</b>"]]  # bold: 0 left out


# ---- prompts -------------------------------------------------------------------------------------------


def exact_p(only_first, only_second) -> float:
    """McNemar: how often a fair coin parts the differing problems at least as unevenly."""
    n = only_first + only_second
    ways = sum(math.comb(n, k) for k in range(n + 1) if abs(k - n / 2) >= abs(only_first - n / 2))
    return ways / 2**n


def test_prompts_are_told_with_the_paired_answers_counted_by_hand(section):
    head, *each = said(section("prompts", small.prompts()))
    base = small.RIGHT["none"]
    p = {}
    for name in ("meaningless", "meaningful"):
        pairs = list(zip(base, small.RIGHT[name], strict=True))
        lost, won = pairs.count((1, 0)), pairs.count((0, 1))
        p[name] = exact_p(lost, won)
        (sentence,) = [s for s in each if s.startswith(f"tiny on sums, {name} against none:")]
        points = 100 * (won - lost) / len(base)
        assert float(re.search(r": (−?[\d.]+) points", sentence)[1].replace("−", "-")) == pytest.approx(
            points, abs=0.051
        )
        assert f"McNemar p = {p[name]:.3g}," in sentence
        assert "n = 16" in sentence
    holm = 2 * min(p.values())  # the smaller of two
    (worse,) = [s for s in each if "meaningful against" in s]
    assert f"Holm {holm:.3g}" in worse
    assert ": significant;" in worse
    assert head.startswith("No gain is significant (Holm p ≥ 0.05); significantly worse: Mful −50.0 points")


def test_the_bars_of_prompts_are_the_shares_of_right_answers(section):
    shown = chart(section("prompts", small.prompts()), "Answers under").panels[0]
    assert shown.title.startswith("Results on sums<br>0 of 48 answers cut off")
    assert shown.x["ticktext"] == ["tiny"]
    (star,) = shown.marks  # only Mful differs significantly
    assert star["text"] == "*"
    for name, label in (("none", "w/o"), ("meaningless", "w/ Mless"), ("meaningful", "w/ Mful")):
        (bar,) = [trace for trace in shown.traces if trace["name"] == label]
        share = 100 * sum(small.RIGHT[name]) / 16
        assert bar["y"] == [pytest.approx(share, abs=1e-3)]
        assert (star["x"] == pytest.approx(bar["x"][0], abs=1e-4)) == (name == "meaningful")
        ((low, high),) = bar["customdata"]
        assert low < share < high
        assert share - bar["error_y"]["arrayminus"][0] == pytest.approx(low, abs=1e-2)
        assert share + bar["error_y"]["array"][0] == pytest.approx(high, abs=1e-2)


def test_profiles_share_the_original_tokens_and_shade_only_what_was_inserted(section):
    whole = section("prompts", small.prompts())
    _, above, below = chart(whole, "Answers under").panels
    for name, label in (("none", "None"), ("meaningless", "Mless"), ("meaningful", "Mful")):
        (trace,) = [t for t in above.traces if t["name"] == label]
        assert trace["text"] == small.ORIGINAL
        assert trace["x"] == list(range(len(small.ORIGINAL)))
        kept = [place for place in range(9) if place not in small.INSERTED[name]][: len(small.ORIGINAL)]
        assert trace["y"] == [pytest.approx(0.01 * (place + 1)) for place in kept]
    assert [t["name"] for t in below.traces] == ["Mless", "Mful"]
    shaded = [(mark["x0"], mark["x1"]) for mark in below.marks]
    assert shaded == [(1.5, 3.5), (5.5, 6.5)]  # not the tokens of the question between the two


def test_the_map_of_what_moved_has_every_head_of_each_condition(section):
    whole = section("prompts", small.prompts())
    for label in ("Mless", "Mful"):
        (trace,) = panel(whole, "Share of each head's attention", f"{label}<br>L1H2 0.60 [0.05, 0.70]").traces
        assert trace["z"] == [[0.1, 0.2, 0.3], [0.2, 0.4, 0.6]]
    assert set(whole.heads["measure"]) == {
        "attention moved by meaningless",
        "attention moved by meaningful",
    }
    assert len(whole.heads) == 2 * len(HEADS)


# ---- together ------------------------------------------------------------------------------------------


def test_every_finding_stands_on_the_page_as_it_was_worded(make_run, tmp_path):
    runs = [
        make_run("r", "roles", small.roles(), models=("big", "small")),
        make_run("c", "circuits", small.circuits(), models=("plain", "thin")),
        make_run("m", "masking", small.masking()),
        make_run("p", "prompts", small.prompts()),
    ]
    page = write_report(runs, tmp_path / "r.html").read_text()
    lists = re.findall(r'<ul class="findings">(.*?)</ul>', page)
    items = [item for found in lists for item in re.findall(r"<li>(.*?)</li>", found)]
    tables = {
        "roles": small.roles,
        "circuits": small.circuits,
        "masking": small.masking,
        "prompts": small.prompts,
    }
    worded = [f.sentence for study, make in tables.items() for f in SECTIONS.get(study).findings(make())]
    from html import unescape

    assert [unescape(re.sub(r"</?abbr[^>]*>", "", item)) for item in items] == worded
    assert json.dumps(data_of(page)).count('"map": true') == 6 + 2


def test_a_count_of_heads_counts_significant_ones_beside_those_before_the_elbow():
    from headwise.studies.functions.section import _abilities

    elbows = pd.DataFrame(
        [
            {"model": "m", "method": "attribution", "task": task, "heads": heads, "of": 40, "n": 8}
            for task, heads in (("Retrieval", 18), ("Inference", 30), ("Syntax", 25))
        ]
    )
    q = {"Retrieval": [0.01, 0.04, 0.2], "Inference": [0.5, 0.6, 0.7], "Syntax": [0.05, 0.049, 0.9]}
    scores = pd.DataFrame(
        [
            {"model": "m", "method": "attribution", "task": task, "q": one}
            for task, several in q.items()
            for one in several
        ]
    )
    overlap = pd.DataFrame(columns=["model", "method", "task", "other", "jaccard", "by_chance"])
    (finding,) = _abilities(elbows, overlap, scores)
    assert finding.sentence == (
        "m, attribution: an ability has 0 (Inference) to 2 (Retrieval) of 40 heads with q < .05, none in 1 of 3 "
        "abilities; 18 (Retrieval) to 30 (Inference) of 40 heads are before the elbow."
    )
    (finding,) = _abilities(elbows, overlap, scores.assign(q=float("nan")))
    assert finding.sentence == (
        "m, attribution: the method has no significance test; 18 (Retrieval) to 30 (Inference) of 40 heads are before "
        "the elbow."
    )


# ---- backups -------------------------------------------------------------------------------------------


def test_backups_are_told_with_their_effects_the_proof_and_the_curves(section):
    first, proof, group, removal = said(section("backups", small.backups()))
    assert first == (
        "On ioi, tiny: removing L0H1 costs 2.00 [1.50, 2.50] logit_diff on the testing half. 2 of 3 later heads are "
        "backups: they help more, or hinder less, once the set is gone (q < .05, n = 8); the largest 2: L1H0 +0.10 "
        "alone, +1.50 with the set removed; L1H2 −0.10 alone, +0.75 with the set removed."
    )
    assert (
        "costs 3.50 instead of 2.00 logit_diff on the finding half: 75 % (95 % CI 65 to 85 %) of their"
        in proof
    )
    assert "of their repair (+2.00" in proof
    assert "as many random heads of the same layers held: 5 % (95 % CI −5 to 15 %)." in proof
    assert "Removing all 2 costs 3.50 logit_diff, the sum of their single effects is 2.10" in group
    assert "takes logit_diff from 4.00 to 0.00 in greedy order, to 2.00 by single effects, to 3.80" in removal


def test_the_charts_of_backups_have_every_head_and_pair(section):
    whole = section("backups", small.backups())
    scatter = chart(whole, "Effect of each head alone").panels[0]
    drawn = {}
    for trace in scatter.traces:
        if trace.get("name") in ("backups", "other heads"):
            drawn[trace["name"]] = sorted(zip(trace["x"], trace["y"], strict=True))
    assert drawn["backups"] == [(-0.1, 0.75), (0.1, 1.5)]
    assert drawn["other heads"] == [(0.2, 0.25)]
    for title in ("By layer", "By cluster"):
        shown = next(
            p for p in chart(whole, "Interaction of every two heads").panels if p.title.startswith(title)
        )
        names = shown.y["ticktext"]
        values = {
            (a, b): shown.traces[0]["z"][i][j] for i, a in enumerate(names) for j, b in enumerate(names)
        }
        for row in small.backups()["interactions"].itertuples():
            assert values[row.a, row.b] == values[row.b, row.a] == pytest.approx(row.interaction)
    heads = whole.heads
    assert set(heads["measure"]) == {"ablation", "backup"}
