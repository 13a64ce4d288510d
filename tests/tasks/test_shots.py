"""Few-shot prompts: what they look like, and that no shot gives away a scored answer."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.tasks import task as built_in
from headwise.tasks.examples import Example, Task
from headwise.tasks.files.load_task import load_task
from headwise.tasks.shots import few_shot

WORDS = ["hot", "cold", "up", "down", "big", "small", "wet", "dry", "old", "new", "in", "out", "day", "night"]
PAIRS = Task(
    "opposites",
    tuple(
        Example(f"Q: {a}\nA:", f" {b}", (" x",), f"Q: {a}!\nA:", label=a, also=(f" {b}er",))
        for a, b in zip(WORDS[::2], WORDS[1::2], strict=True)
    ),
    "logit_diff",
    {"seed": 9},
)


def taken_apart(prompt: str, separator: str = "\n\n") -> tuple[list[str], str]:
    *shots, question = prompt.split(separator)
    return shots, question


def test_a_prompt_is_shots_and_then_the_question_cut_before_the_target():
    made = few_shot(PAIRS, 2)
    solved = {example.prompt + example.target for example in PAIRS}
    by_prompt = {example.prompt: example for example in PAIRS}
    assert len(made) == len(PAIRS) - 2
    for example in made:
        shots, question = taken_apart(example.prompt)
        assert len(shots) == 2
        assert set(shots) < solved
        old = by_prompt[question]
        assert (example.target, example.foils, example.label, example.also) == (
            old.target,
            old.foils,
            old.label,
            old.also,
        )
        other_shots, other = taken_apart(example.counterfactual)
        assert other_shots == shots
        assert other == old.counterfactual
    assert made.metric == PAIRS.metric
    assert made.name == PAIRS.name


def test_the_same_shots_come_before_all_examples():
    assert len({tuple(taken_apart(example.prompt)[0]) for example in few_shot(PAIRS, 2)}) == 1


def test_template_and_separator_are_used_as_they_are():
    made = few_shot(PAIRS, 1, template="<{prompt}|{target}>{{ok}}", separator=" ## ")
    shots, question = taken_apart(made.examples[0].prompt, " ## ")
    assert shots[0].startswith("<Q: ")
    assert shots[0].endswith(">{ok}")
    assert question.startswith("<Q: ")
    assert question.endswith("A:|")


def test_braces_in_the_data_are_left_alone():
    odd = Task("odd", (Example("{target} {x}", " {prompt}"), Example("{{", " }")))
    made = few_shot(odd, 1)
    assert made.examples[0].prompt in ("{target} {x} {prompt}\n\n{{", "{{ }\n\n{target} {x}")


def test_seeds_choose_the_shots():
    def prints(seed):
        return few_shot(PAIRS, 3, seed=seed).fingerprint

    assert prints(0) == prints(0)
    assert len({prints(seed) for seed in range(10)}) > 5


def test_no_shots_leaves_only_the_template():
    made = few_shot(PAIRS, 0, template="[{prompt}{target}]")
    assert [example.prompt for example in made] == [f"[{example.prompt}" for example in PAIRS]


def test_settings_record_how_the_prompts_were_made():
    made = few_shot(PAIRS, 2, seed=3)
    assert made.settings == {
        "seed": 9,
        "shots": {
            "k": 2,
            "template": "{prompt}{target}",
            "separator": "\n\n",
            "seed": 3,
            "pool": None,
            "pool_size": 2,
            "not_scored": 2,
        },
    }
    assert json.loads(json.dumps(made.settings)) == made.settings
    assert PAIRS.settings == {"seed": 9}


def test_a_pool_gives_the_shots_without_what_the_task_asks():
    pool = Task("pool", (*PAIRS.examples, Example("Q: far\nA:", " near"), Example("Q: on\nA:", " off")))
    made = few_shot(PAIRS, 2, pool=pool)
    assert len(made) == len(PAIRS)
    for example in made:
        assert set(taken_apart(example.prompt)[0]) == {"Q: far\nA: near", "Q: on\nA: off"}
    assert made.settings["shots"]["pool"] == "pool"
    with pytest.raises(
        HeadwiseError, match=r"the pool 'pool' has 2 different examples .* \(7 it does\), expected 3"
    ):
        few_shot(PAIRS, 3, pool=pool)


def test_a_shot_may_not_ask_the_counterfactual_of_a_scored_example():
    pool = Task("pool", (Example("Q: hot!\nA:", " cold"), Example("Q: far\nA:", " near")))
    for seed in range(8):
        made = few_shot(PAIRS, 1, pool=pool, seed=seed)
        assert taken_apart(made.examples[0].prompt)[0] == ["Q: far\nA: near"]


def test_a_shot_whose_prompt_holds_another_answer_takes_that_example_out_of_the_scored():
    chain = []
    context = "Start."
    for step in range(6):
        prompt = f"{context}\nQ: step {step}?\nA:"
        chain.append(Example(prompt, f" done {step}"))
        context = f"{prompt} done {step}"
    whole = Task("chain", tuple(chain))
    left = set()
    for seed in range(20):
        try:
            made = few_shot(whole, 1, seed=seed)
        except HeadwiseError:  # the last step was drawn: it tells all the others
            left.add(0)
            continue
        left.add(len(made))
        shown = made.examples[0].prompt.split("\n\n")[0]
        assert [e.target for e in made] == [e.target for e in chain if e.target not in shown]
    assert left == {0, 1, 2, 3, 4, 5}
    with pytest.raises(HeadwiseError, match="the 5 shots show every example of task 'chain'"):
        few_shot(whole, 5)


def test_prompts_that_bring_shots_of_their_own_are_not_scored_after_being_shown():
    pairs = [(f"Q: w{i}\nA:", f" v{i}") for i in range(8)]
    rows = [Example(f"{pairs[i - 1][0]}{pairs[i - 1][1]}\n\n{pairs[i][0]}", pairs[i][1]) for i in range(1, 8)]
    rows.append(Example(*pairs[3]))  # shown, solved, by the prompt of the fourth
    whole = Task("chain", tuple(rows))
    dropped = 0
    for seed in range(20):
        made = few_shot(whole, 1, seed=seed, separator="##")
        shown = made.examples[0].prompt.split("##")[0]
        scored = [example.prompt.split("##")[1] for example in made]
        assert not any(shown.startswith(prompt) for prompt in scored)
        assert not ("w3\nA: v3" in shown and pairs[3][0] in scored)
        dropped += len(made) < len(whole) - 1
    assert dropped


def test_an_answer_that_only_begins_alike_is_not_an_overlap():
    pool = Task("pool", (Example("Add 10 and 1: 1", "1"),))
    cut = Task("cut", (Example("Add 10 and 1:", " 1"),))
    assert few_shot(cut, 1, pool=pool).examples[0].prompt == "Add 10 and 1: 11\n\nAdd 10 and 1:"
    whole = Task("whole", (Example("Add 10 and 1:", " 11"),))
    with pytest.raises(HeadwiseError, match=r"has 0 different examples .* \(1 it does\)"):
        few_shot(whole, 1, pool=pool)


def test_whole_sentences_can_be_shots():
    rows = tuple(Example("", f"Cat {i} sleeps.", (f"Cat {i} sleep.",)) for i in range(5))
    made = few_shot(Task("cats", rows), 2)
    assert len(made) == 3
    for example in made:
        assert example.target not in example.prompt
        assert example.prompt.count("sleeps.\n\n") == 2


def test_built_in_tasks_keep_counterfactuals_as_long_as_their_prompts():
    made = few_shot(built_in("ioi", 40), 4)
    for example in made:
        assert len(example.prompt.split()) == len(example.counterfactual.split())
        assert example.prompt.split("\n\n")[:-1] == example.counterfactual.split("\n\n")[:-1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"template": "{prompt}"}, "template '{prompt}' does not fit; expected {prompt} and then {target}"),
        ({"template": "{target}{prompt}"}, "does not fit"),
        ({"template": "{prompt}{prompt}{target}"}, "does not fit"),
        ({"template": "{prompt}{taget}"}, "'taget'; did you mean 'target'"),
        (
            {"template": "{prompt} {target}"},
            "puts a space before {target}, but the targets of task 'opposites' begin with",
        ),
        ({"template": None}, "template=None is not text"),
        ({"separator": 3}, "separator=3 is not text"),
        ({"k": -1}, "-1 is not a number of shots"),
        ({"k": 1.5}, "1.5 is not a number of shots"),
        ({"k": 7}, "task 'opposites' has 7 different prompts, expected more than 7: 7 shots are held out"),
    ],
)
def test_mistakes_are_explained(options, said):
    with pytest.raises(HeadwiseError) as caught:
        few_shot(PAIRS, **{"k": 2, **options})
    assert said in str(caught.value)


texts = st.text("ab {}\n", max_size=4)
random_tasks = st.lists(
    st.builds(Example, texts, texts.filter(str.strip), counterfactual=st.none() | texts),
    min_size=1,
    max_size=12,
)


@given(rows=random_tasks, k=st.integers(0, 4), seed=st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_no_scored_example_is_ever_shown_solved(rows, k, seed):
    task = Task("random", tuple(rows))
    try:
        made = few_shot(task, k, seed=seed, template="{prompt}>{target}", separator="~")
    except HeadwiseError:
        return
    for example in made:
        *shots, question = example.prompt.split("~")
        assert len(shots) == k
        asked = question.removesuffix(">")
        for shot in shots:
            prompt, target = shot.split(">")
            assert (prompt.strip() or target.strip()) != (asked.strip() or example.target.strip())
            solved = re.escape((asked + example.target).strip())
            assert not re.search(rf"^\s*{solved}(?!\w)", prompt + target, re.MULTILINE)


def test_a_loaded_file_takes_shots_like_any_task(tmp_path):
    path = tmp_path / "words.json"
    path.write_text(json.dumps([{"input": a, "output": a.upper()} for a in WORDS]))
    made = few_shot(load_task(path), 3)
    assert made.examples[0].prompt.count("\nA: ") == 3
    assert made.examples[0].prompt.endswith("\nA:")
    assert len(made) == len(WORDS) - 3


def test_the_template_is_used_without_shots_too():
    plain = built_in("ioi", 2, seed=3)
    asked = built_in("ioi", 2, seed=3, template="Q: {prompt}\nA:{target}")
    assert [e.prompt for e in asked] == [f"Q: {e.prompt}\nA:" for e in plain]
    assert built_in("ioi", 2, seed=3, template="{prompt}{target}").examples == plain.examples
