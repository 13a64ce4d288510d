"""Ready mappings, on small data of our own in the published formats."""

import json

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks.examples import Example
from headwise.tasks.files.load_task import load_task
from headwise.tasks.files.mappings.questions import ABILITIES, ability
from headwise.tasks.files.mappings.registry import registered


def save(path, value):
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def save_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# CogQA

PIES = {
    "question": "A pie costs 3 coins.\\nHow much are 4 pies?\\nOptions:\\n- 12\\n- 7",
    "answer": "12",
    "generated": [
        {"subquestion": "What does one pie cost?", "answer": "3 coins", "cognitive_skill": "Retrieval"},
        {"subquestion": "Does a pattern show?", "answer": "No.", "cognitive_skill": "Induction"},
        {"subquestion": "What is 3 times 4?", "answer": 12, "cognitive_skill": "math calculation"},
    ],
}


def test_cogqa_gives_each_sub_question_the_earlier_ones_as_context(tmp_path):
    task = load_task(save(tmp_path / "pies.json", [PIES]))
    opening = "A pie costs 3 coins.\nHow much are 4 pies?\nOptions:\n- 12\n- 7\n"
    first = "Q: What does one pie cost?\nA:"
    assert task.settings["mapping"] == "cogqa"
    assert task.examples == (
        Example(opening + first, " 3 coins", label="Retrieval"),
        Example(
            f"{opening}{first} 3 coins\nQ: Does a pattern show?\nA: No.\nQ: What is 3 times 4?\nA:",
            " 12",
            label="Math Calculation",
        ),
    )


def test_cogqa_reports_the_labels_it_leaves_out(tmp_path, caplog):
    other = {**PIES, "question": "Again?"}
    other["generated"] = [{**step, "cognitive_skill": "Planning"} for step in PIES["generated"]]
    task = load_task(save(tmp_path / "pies.json", [PIES, other]))
    notice = (
        "left out 4 sub-questions whose cognitive_skill is none of the eight abilities: "
        "Induction (1), Planning (3)"
    )
    assert task.settings["notices"] == [notice]
    assert notice in caplog.text
    with pytest.raises(HeadwiseError, match="gave no examples: left out 3 sub-questions"):
        load_task(save(tmp_path / "none.json", [other]))


def test_abilities_are_known_whatever_their_case_spaces_and_hyphens():
    assert len(set(ABILITIES)) == 8
    for name in ABILITIES:
        for written in (name, name.upper(), name.replace(" ", "-"), f" {name.replace('-', ' ').lower()} "):
            assert ability(written) == name
    assert ability("Lexical Knowledge") is None
    assert ability("") is None


def test_a_bad_sub_question_is_named_by_record_and_number(tmp_path):
    for step, said in (
        ({"subquestion": "Why?", "cognitive_skill": "Inference"}, "the field 'answer' is missing"),
        (
            {"subquestion": "Why?", "answer": " ", "cognitive_skill": "Inference"},
            "the field 'answer' is empty",
        ),
        ({"subquestion": "Why?", "answer": "x", "cognitive_skill": 3}, "'cognitive_skill' is a number"),
        ("Why?", "text ('Why?'), expected an object with subquestion"),
    ):
        broken = {**PIES, "generated": [PIES["generated"][0], step]}
        with pytest.raises(HeadwiseError) as caught:
            load_task(save(tmp_path / "pies.json", [{**PIES, "question": "Before?"}, broken]))
        assert f"record 2, sub-question 2: {said}" in str(caught.value)


def test_a_backslash_n_inside_a_formula_stays(tmp_path):
    row = {**PIES, "question": "Is $a \\neq b$?\\nOptions:"}
    assert (
        load_task(save(tmp_path / "a.json", [row]))
        .examples[0]
        .prompt.startswith("Is $a \\neq b$?\nOptions:\n")
    )


# CommonsenseQA

SKY = {"input": "What is above us?\na: the sky\nb: a mole\nc: the sea\nd: a mole\ne: mud", "output": "a"}


def test_commonsense_qa_answers_with_the_text_and_takes_the_other_options_as_foils(tmp_path):
    path = save(tmp_path / "csqa.json", [SKY])
    task = load_task(path)
    assert task.settings["mapping"] == "commonsense_qa"
    assert task.metric == "logit_diff"
    foils = (" a mole", " the sea", " mud")
    assert task.examples == (Example("Q: What is above us?\nA:", " the sky", foils),)
    options = "a: the sky\nb: a mole\nc: the sea\nd: a mole\ne: mud"
    assert load_task(path, listed=True).examples == (
        Example(f"Q: What is above us?\n{options}\nA:", " the sky", foils),
    )
    assert load_task(path, letters=True).examples == (
        Example(f"Q: What is above us?\n{options}\nA:", " a", (" b", " c", " d", " e")),
    )


def test_an_option_that_repeats_the_right_one_is_no_foil(tmp_path):
    path = save(tmp_path / "csqa.json", [{**SKY, "output": "b"}])
    task = load_task(path)
    assert task.examples[0].foils == (" the sky", " the sea", " mud")
    assert task.settings["notices"] == [
        "1 options repeat the right answer word for word; they are not used as foils"
    ]
    assert load_task(path, letters=True).examples[0].foils == (" a", " c", " e")


def test_the_published_forms_of_commonsense_qa_give_the_same_examples(tmp_path):
    labels, texts = list("ABCDE"), ["the sky", "a mole", "the sea", "a mole", "mud"]
    hub = {"question": "What is above us?", "choices": {"label": labels, "text": texts}, "answerKey": "A"}
    choices = [{"label": a, "text": b} for a, b in zip(labels, texts, strict=True)]
    original = {"question": {"stem": "What is above us?", "choices": choices}, "answerKey": "A"}
    wanted = load_task(save(tmp_path / "csqa.json", [SKY])).examples
    assert load_task(save_lines(tmp_path / "hub.jsonl", [hub])).examples == wanted
    assert load_task(save_lines(tmp_path / "original.jsonl", [original])).examples == wanted
    with pytest.raises(HeadwiseError, match="the published test split has no answers"):
        load_task(save_lines(tmp_path / "test.jsonl", [{**hub, "answerKey": ""}]))
    with pytest.raises(HeadwiseError, match=r"'choices' is an object .*, expected labels and as many texts"):
        load_task(
            save_lines(tmp_path / "bad.jsonl", [{**hub, "choices": {"label": labels, "text": texts[:2]}}])
        )


def test_a_letter_without_an_option_is_a_bad_record(tmp_path):
    path = save(tmp_path / "csqa.json", [SKY, {**SKY, "output": "f"}])
    with pytest.raises(HeadwiseError, match="record 2: the answer 'f' is none of the options 'a', 'b'"):
        load_task(path)
    path = save(tmp_path / "csqa.json", [SKY, {"input": "Why?\na: so", "output": "a"}])
    with pytest.raises(HeadwiseError, match="record 2: fewer than two options"):
        load_task(path)


# GSM8K and MATH-500

EGGS = {
    "question": "Ann has 1,200 boxes of 3 eggs. How many eggs?",
    "answer": "She has 1200*3=<<1200*3=3600>>3600 eggs.\nThat is <<3600=3600>>all.\n#### 3,600",
}


def test_gsm8k_is_the_worked_solution_without_marks_or_the_number(tmp_path):
    path = save_lines(tmp_path / "eggs.jsonl", [EGGS])
    prompt = "Question: Ann has 1,200 boxes of 3 eggs. How many eggs?\nAnswer:"
    assert load_task(path).examples == (
        Example(prompt, " She has 1200*3=3600 eggs.\nThat is all.\n#### 3,600"),
    )
    assert load_task(path, answers="final").examples == (Example(prompt, " 3600", also=(" 3,600",)),)
    assert load_task(path, wording="{question}").examples[0].prompt == EGGS["question"]
    assert load_task(path).metric == "logprob"


def test_gsm8k_without_a_final_number_is_a_bad_line(tmp_path):
    path = save_lines(tmp_path / "eggs.jsonl", [EGGS, {"question": "Why?", "answer": "Because.\n####"}])
    with pytest.raises(HeadwiseError, match=r"line 2: the answer .* does not end in '#### ' and a number"):
        load_task(path)


def test_math500_is_the_solution_or_the_answer_with_the_subject_as_label(tmp_path):
    row = {
        "problem": "What is $1+1$?",
        "solution": "It is $\\boxed{2}$.",
        "answer": "2",
        "subject": "Algebra",
    }
    path = save_lines(tmp_path / "math.jsonl", [{**row, "level": 1, "unique_id": "x"}])
    prompt = "Problem: What is $1+1$?\nSolution:"
    assert load_task(path).examples == (Example(prompt, " It is $\\boxed{2}$.", label="Algebra"),)
    assert load_task(path, answers="final").examples == (Example(prompt, " 2", label="Algebra"),)


# BLiMP

CATS = {
    "sentence_good": "Cats sleep on it.",
    "sentence_bad": "Cats sleeps on it.",
    "one_prefix_prefix": "Cats",
    "one_prefix_word_good": "sleep",
    "one_prefix_word_bad": "sleeps",
    "linguistics_term": "subject_verb_agreement",
    "UID": "cats",
}
ONLY = {
    "sentence_good": "Only cats ever sleep.",
    "sentence_bad": "Even cats ever sleep.",
    "two_prefix_prefix_good": "Only cats",
    "two_prefix_prefix_bad": "Even cats",
    "two_prefix_word": "ever",
    "linguistics_term": "npi_licensing",
}


def test_blimp_takes_prefix_and_words_where_it_has_them(tmp_path):
    path = save_lines(tmp_path / "cats.jsonl", [CATS])
    task = load_task(path)
    assert task.examples == (Example("Cats", " sleep", (" sleeps",), label="subject_verb_agreement"),)
    assert task.metric == "logit_diff"
    whole = load_task(path, method="sentence")
    assert whole.examples == (
        Example("", "Cats sleep on it.", ("Cats sleeps on it.",), label="subject_verb_agreement"),
    )
    assert whole.metric == "accuracy"


def test_blimp_compares_whole_sentences_elsewhere(tmp_path):
    path = save_lines(tmp_path / "only.jsonl", [ONLY])
    assert load_task(path).examples == (
        Example("", "Only cats ever sleep.", ("Even cats ever sleep.",), label="npi_licensing"),
    )
    assert load_task(path, method="two_prefix").examples == (
        Example("Only cats", " ever", (), "Even cats", "npi_licensing"),
    )
    with pytest.raises(HeadwiseError, match="line 1: no field 'two_prefix_word'"):
        load_task(save_lines(tmp_path / "cats.jsonl", [CATS]), method="two_prefix")


def test_blimp_pairs_that_differ_only_after_the_cut_count_once_and_that_is_said(tmp_path):
    later = {**CATS, "sentence_good": "Cats sleep here.", "sentence_bad": "Cats sleeps here."}
    path = save_lines(tmp_path / "cats.jsonl", [CATS, later])
    task = load_task(path)
    assert len(task) == 1
    assert task.settings["notices"] == [
        "columns not used: 'UID'",
        "left out 1 of 2 examples that repeat an earlier one exactly",
    ]
    assert len(load_task(path, method="sentence")) == 2


# {input, output}

OPPOSITES = [
    {"input": a, "output": b}
    for a, b in (
        ("hot", "cold"),
        ("up", "down"),
        ("big", "small"),
        ("wet", "dry"),
        ("big", "tiny"),
        ("old", "new"),
    )
]


def test_word_tasks_draw_foils_from_other_outputs_and_never_a_right_one(tmp_path):
    path = save(tmp_path / "opposites.json", OPPOSITES)
    task = load_task(path, foils=3)
    assert task.settings["mapping"] == "words"
    assert [example.prompt for example in task] == [f"Q: {row['input']}\nA:" for row in OPPOSITES]
    assert [example.target for example in task] == [f" {row['output']}" for row in OPPOSITES]
    outputs = {f" {row['output']}" for row in OPPOSITES}
    for row, example in zip(OPPOSITES, task, strict=True):
        assert len(set(example.foils)) == 3
        right = {f" {other['output']}" for other in OPPOSITES if other["input"] == row["input"]}
        assert set(example.foils) <= outputs - right
    assert load_task(path, foils=3).fingerprint == task.fingerprint
    assert load_task(path, foils=3, seed=1).fingerprint != task.fingerprint
    assert load_task(path, foils=0).metric == "logprob"


def test_word_tasks_say_where_there_are_too_few_other_outputs(tmp_path):
    task = load_task(save(tmp_path / "few.json", OPPOSITES[:3]), foils=4)
    assert all(len(example.foils) == 2 for example in task)
    assert task.settings["notices"] == [
        "3 examples have fewer than 4 foils; the file has too few other outputs"
    ]


def test_word_tasks_take_several_right_outputs_and_numbers(tmp_path):
    rows = [{"input": 1, "output": [2, "two"]}, {"input": 5, "output": 6}]
    task = load_task(save(tmp_path / "next.json", rows), foils=1, wording="{input} then")
    assert task.examples[0] == Example("1 then", " 2", (" 6",), also=(" two",))
    assert task.examples[1].foils[0] in (" 2", " two")


def test_word_tasks_refuse_empty_sides(tmp_path):
    for bad, said in (
        ({"input": " ", "output": "x"}, "the field 'input' is empty"),
        ({"input": "x", "output": ""}, "the target is empty"),
        ({"input": "x", "output": []}, "'output' is an empty list"),
        ({"input": "x"}, "the field 'output' is missing"),
    ):
        with pytest.raises(HeadwiseError, match=f"record 7: {said}"):
            load_task(save(tmp_path / "opposites.json", [*OPPOSITES, bad]))


# BIG-bench

RIDDLE = {
    "name": "riddles",
    "task_prefix": "Answer the riddle.\n",
    "examples": [
        {"input": "What has keys? ", "target_scores": {"a piano": 1, "a fish": 0, "a sea": 0.5}},
        {"input": "What barks?", "target_scores": {"a dog": 1, "a tree": 1, "a pen": 0}},
    ],
}


def test_bigbench_takes_the_best_scored_choice_and_the_worse_ones_as_foils(tmp_path):
    task = load_task(save(tmp_path / "task.json", RIDDLE), choices="hidden")
    assert task.name == "riddles"
    assert task.examples == (
        Example("Answer the riddle.\n\nQ: What has keys?\nA:", " a piano", (" a fish", " a sea")),
        Example("Answer the riddle.\n\nQ: What barks?\nA:", " a dog", (" a pen",), also=(" a tree",)),
    )


def test_bigbench_shows_the_choices_as_the_task_says_in_a_seeded_order(tmp_path):
    path = save(tmp_path / "task.json", RIDDLE)
    head, *choices = load_task(path).examples[0].prompt.removesuffix("\nA:").split("\n  choice: ")
    assert head == "Answer the riddle.\n\nQ: What has keys?"
    assert sorted(choices) == ["a fish", "a piano", "a sea"]
    orders = {load_task(path, seed=seed).examples[0].prompt for seed in range(40)}
    assert len(orders) == 6
    quiet = {**RIDDLE, "append_choices_to_input": False}
    assert "choice:" not in load_task(save(tmp_path / "quiet.json", quiet)).examples[0].prompt
    assert "choice:" in load_task(tmp_path / "quiet.json", choices="listed").examples[0].prompt


def test_bigbench_takes_targets_own_prefixes_and_lists(tmp_path):
    value = {
        "task_prefix": "Do.\n",
        "example_input_prefix": "\nIn: ",
        "example_output_prefix": "\nOut: ",
        "examples": [
            {"input": "a: ", "target": ["b", "c", "b"]},
            {"input": "d", "target": "e", "task_prefix": "TWICE"},
        ],
    }
    task = load_task(save(tmp_path / "task.json", value))
    assert task.examples == (
        Example("Do.\n\nIn: a:\nOut:", " b", also=(" c",)),
        Example("Do.\nTWICE\nIn: d\nOut:", " e"),
    )
    assert task.settings["notices"] == [
        "1 examples have their own task_prefix; it comes after that of the task"
    ]


def test_bigbench_scores_must_be_numbers_with_a_best_one(tmp_path):
    for scores, said in (
        ({"a": "1"}, "'target_scores' is an object"),
        ({}, "'target_scores' is an object"),
        ({"a": 1, "b": 1}, "all 2 choices have the score 1, expected a best one"),
    ):
        value = {
            "examples": [
                {"input": "x", "target_scores": {"a": 1, "b": 0}},
                {"input": "y", "target_scores": scores},
            ]
        }
        with pytest.raises(HeadwiseError, match=f"record 2: {said}"):
            load_task(save(tmp_path / "task.json", value))


# Pairs: CausalGym, RAVEL, sparse feature circuits, EAP-IG, MIB

CHOICES = {"label": ["K", "M"], "text": ["red", "blue"]}
PAIRED = {
    "causalgym": (
        {
            "base": ["<|endoftext|>", "The ", "cook", " near"],
            "src": ["<|endoftext|>", "The ", "cooks", " near"],
            "base_type": "singular",
            "src_type": "plural",
            "base_label": " is",
            "src_label": " are",
            "task": "number",
        },
        Example(
            *("The cook near", " is", (" are",), "The cooks near", "number"),
            family={"type": "singular"},
        ),
    ),
    "ravel": (
        {"input": "Oslo is in", "label": " Norway", "source_input": "Rome is in", "source_label": " Italy"},
        Example("Oslo is in", " Norway", (" Italy",), "Rome is in"),
    ),
    "feature circuits": (
        {
            "clean_prefix": "The cook",
            "patch_prefix": "The cooks",
            "clean_answer": " has",
            "patch_answer": " have",
            "case": "singular",
        },
        Example("The cook", " has", (" have",), "The cooks", family={"case": "singular"}),
    ),
    "facts": (
        {
            "clean": "Oslo, the capital of",
            "country": "Norway",
            "corrupted": "Rome, the capital of",
            "corrupted_country": "Italy",
        },
        Example("Oslo, the capital of", " Norway", (" Italy",), "Rome, the capital of"),
    ),
    "hypernymy": (
        {
            "clean": "cups and other",
            "answers": "['dishes', 'crockery']",
            "corrupted": "oaks and other",
            "corrupted_answers": "['trees', \"dishes\"]",
        },
        Example("cups and other", " dishes", (" trees",), "oaks and other", also=(" crockery",)),
    ),
    "arithmetic": (
        {
            "prompt": "12 + 5 =",
            "label": 17,
            "ones_counterfactual": {"prompt": "12 + 6 =", "label": 18},
            "random_counterfactual": {"prompt": "40 + 1 =", "label": 41},
        },
        Example("12 + 5 =", " 17", (" 18",), "12 + 6 ="),
    ),
    "mcqa": (
        {
            "prompt": "The mug is blue. K. red M. blue\nAnswer:",
            "choices": CHOICES,
            "answerKey": 1,
            "answerPosition_counterfactual": {
                "prompt": "The mug is blue. K. blue M. red\nAnswer:",
                "choices": CHOICES,
                "answerKey": 0,
            },
        },
        Example(
            *("The mug is blue. K. red M. blue\nAnswer:", " M", (" K",)),
            "The mug is blue. K. blue M. red\nAnswer:",
        ),
    ),
    "mib ioi": (
        {
            "prompt": "Ana and Bob met. Bob told",
            "metadata": {"indirect_object": "Ana", "subject": "Bob"},
            "s2_io_flip_counterfactual": {"prompt": "Ana and Bob met. Ana told"},
        },
        Example("Ana and Bob met. Bob told", " Ana", (" Bob",), "Ana and Bob met. Ana told"),
    ),
}


@pytest.mark.parametrize("kind", PAIRED)
def test_a_pair_is_a_prompt_and_the_other_prompt_as_its_counterfactual(kind, tmp_path):
    row, expected = PAIRED[kind]
    task = load_task(save(tmp_path / "pairs.json", [row]))
    assert (task.settings["mapping"], task.metric) == ("pairs", "logit_diff")
    assert task.examples == (expected,)


def test_the_counterfactual_of_mib_can_be_chosen(tmp_path):
    path = save(tmp_path / "sums.json", [PAIRED["arithmetic"][0]])
    (example,) = load_task(path, counterfactual="random_counterfactual")
    assert (example.counterfactual, example.foils) == ("40 + 1 =", (" 41",))
    with pytest.raises(HeadwiseError, match="expected one of 'ones_counterfactual', 'random_counterfactual'"):
        load_task(path, counterfactual="tens_counterfactual")


class Words:
    """A tokenizer of one token per word."""

    prefix, has_chat = (), False

    def encode(self, text):
        return text.split()

    def decode(self, ids):
        return " ".join(ids)

    def chat(self, messages, add_generation_prompt=True):
        raise NotImplementedError


def test_pairs_of_unequal_length_are_left_out_or_lose_the_counterfactual(tmp_path):
    row, expected = PAIRED["ravel"]
    longer = {**row, "input": "New York is in", "label": " America"}
    task = load_task(save(tmp_path / "a.json", [row, longer]), tokens=Words())
    assert task.examples == (expected,)
    assert task.settings["notices"] == [
        "left out 1 of 2 pairs, whose prompts have different numbers of tokens"
    ]
    task = load_task(save(tmp_path / "b.json", [longer]), tokens=Words())
    assert task.examples == (Example("New York is in", " America", (" Italy",)),)
    assert "kept without counterfactual" in task.settings["notices"][0]


def test_gender_is_read_from_the_counterfactual_and_not_from_ids(tmp_path):
    path = tmp_path / "gender.csv"
    head = "clean,corrupted,clean_answer_idx,corrupted_answer_idx,label\n"
    path.write_text(head + "The cook ran as,The man ran as,7,8,0\nThe vet ran as,The woman ran as,8,7,1\n")
    assert load_task(path).examples == (
        Example("The cook ran as", " she", (" he",), "The man ran as", family={"answer": "she"}),
        Example("The vet ran as", " he", (" she",), "The woman ran as", family={"answer": "he"}),
    )


def test_agreement_asks_for_the_verbs_of_the_number(tmp_path):
    path = tmp_path / "verbs.csv"
    path.write_text("clean,corrupted,group,plural\nThe cooks,The cook,simple,1\nThe vet,The vets,simple,0\n")
    many, one = task = load_task(path)
    assert (task.metric, many.target, one.target) == ("prob_diff", " are", " is")
    assert {many.target, *many.also} == set(one.foils)
    assert {one.target, *one.also} == set(many.foils)
    assert (many.group, many.family) == (None, {"number": "plural", "construction": "simple"})
    path.write_text("sentence,label,group,source\nThe cooks,1,ML,simple\n")
    (raw,) = load_task(path)
    assert (raw.target, raw.foils, raw.counterfactual) == (many.target, many.foils, None)
    path.write_text("clean,corrupted,group,plural\nThe cooks,The cook,simple,2\n")
    with pytest.raises(HeadwiseError, match=r"line 2: the number is a number \(2\), expected 0"):
        load_task(path)


def test_greater_than_reads_prices_and_sequences(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text(
        'clean,corrupted,correct_idx\n"1208, 1256, 12","1208, 1301, 13",56\nFrom $ 1477 to $ 14,x,77\n'
    )
    assert [(e.target, len(e.foils)) for e in load_task(path)] == [("57", 57), ("78", 78)]


def test_an_object_of_objects_is_one_row_for_each_name(tmp_path):
    path = save(tmp_path / "cities.json", {"Oslo": {"Country": "Norway"}, "Rome": {"Country": "Italy"}})
    task = load_task(path, columns={"prompt": "{name} is in", "target": " {Country}"})
    assert [(e.prompt, e.target) for e in task] == [("Oslo is in", " Norway"), ("Rome is in", " Italy")]


# Plain text

PASSAGES = " = Heading = \n \n one two three four five six seven eight nine ten .\n\nshort line\n"


def test_plain_text_gives_its_passages_from_an_empty_prompt(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(PASSAGES)
    task = load_task(path)
    assert task.examples == (Example("", "one two three four five six seven eight nine ten ."),)
    assert task.metric == "mean_logprob"
    assert task.settings["notices"] == ["left out 2 of 3 lines of fewer than 10 words"]
    assert [example.target for example in load_task(path, least_words=0)] == [
        "= Heading =",
        "one two three four five six seven eight nine ten .",
        "short line",
    ]


# Options


def test_options_of_a_mapping_are_checked(tmp_path):
    path = save(tmp_path / "opposites.json", OPPOSITES)
    for options, said in (
        ({"foil": 3}, "unknown option of mapping 'words' 'foil'; did you mean 'foils'"),
        ({"foils": "3"}, "mapping 'words': setting 'foils' is '3'; expected a whole number"),
        ({"foils": True}, "mapping 'words': setting 'foils' is True; expected a whole number"),
        ({"foils": -1}, "mapping 'words': foils is -1; expected at least 0"),
        ({"wording": "Q: {word}"}, r"mapping 'words': wording 'Q: {word}' must have {input} in it once"),
    ):
        with pytest.raises(HeadwiseError, match=said):
            load_task(path, **options)
    with pytest.raises(
        HeadwiseError, match="mapping 'gsm8k': unknown value of answers 'number'; Valid: final, worked"
    ):
        load_task(save_lines(tmp_path / "eggs.jsonl", [EGGS]), answers="number")
    with pytest.raises(
        HeadwiseError, match="mapping 'commonsense_qa': setting 'letters' is 1; expected true or false"
    ):
        load_task(save(tmp_path / "csqa.json", [SKY]), letters=1)


def test_every_mapping_can_be_named_and_says_what_it_reads():
    known = registered()
    public = {"cogqa", "commonsense_qa", "gsm8k", "math500", "blimp", "words", "bigbench", "text"}
    files = {"greater_than_csv", "ioi_csv", "gender_csv", "agreement_csv", "pairs", "chat", "questions"}
    assert set(known) == public | files
    for mapping in known.values():
        assert mapping.fields
        assert all(name in mapping.about for name in mapping.fields[:1])


def test_a_mapping_named_for_the_wrong_file_says_what_is_missing(tmp_path):
    path = save_lines(tmp_path / "eggs.jsonl", [EGGS])
    for name in set(registered()) - {"gsm8k", "questions"}:
        with pytest.raises(HeadwiseError, match=r"line 1: .*(missing|expected)"):
            load_task(path, mapping=name)
