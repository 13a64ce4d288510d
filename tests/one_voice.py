"""docs/one-voice.md, made from the code: the words of every public call, study and command, and their defaults.

`PYTHONPATH=src python tests/one_voice.py` writes the page. What is found in the code must be what is listed here: a new
function, or a new `heads=` without a meaning, fails tests/test_one_voice.py.
"""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

import typer

import headwise as hw
from headwise.cli.app import app
from headwise.explorer.requests import Gated
from headwise.studies.base import studies
from helpers import REPOSITORY, word_model, word_task

PAGE = REPOSITORY / "docs" / "one-voice.md"
WORDS = {
    "heads": "only these heads are computed or shown",
    "ablate": "these heads are removed",
    "keep": "all other heads are removed",
    "method": "how heads (or edges) are scored; `methods` where several can be given",
    "by": "how a score is ordered: `signed`, `absolute` or `hinders`",
    "positions": "where gates act: `all`, from the `last` prompt token on, position numbers, or names of spans; `each` "
    "for a score of every position (`hw.score`, `headwise score`)",
}
HELPS = "the head helps"


class Row(NamedTuple):
    """The words that a call takes, and what a positive number means in its result."""

    words: str = ""
    positive: str = "–"


ROWS = {
    "hw.attention": Row("heads"),
    "hw.card": Row("positions", HELPS),
    "hw.certify": Row("heads", "the set helps"),
    "hw.compare": Row("", "two scores rank the heads alike; the second run has the larger number"),
    "hw.diff": Row("heads method positions", "the head helps the second model more"),
    "hw.edges": Row("method positions", "the edge helps"),
    "hw.explore": Row("", HELPS),
    "hw.export": Row("heads"),
    "hw.generate": Row("ablate keep positions"),
    "hw.interactions": Row("heads positions", "two heads back each other up: together they help more"),
    "hw.lens": Row("", "the answer is ahead of the foils after this layer"),
    "hw.lm_eval": Row(),
    "hw.load": Row(),
    "hw.measure": Row("ablate keep positions", "what was removed helps (`effects`)"),
    "hw.open_run": Row(),
    "hw.patch": Row("heads positions", "the patched heads help (`effect`)"),
    "hw.run": Row(),
    "hw.score": Row("heads method positions", HELPS),
    "hw.sweep": Row("heads ablate keep by positions", "the first heads explain the effect"),
    "hw.task": Row(),
    "Edges.top": Row("by"),
    "Model.check_heads": Row("heads"),
    "Model.gated": Row("ablate keep"),
    "Model.gates": Row("ablate keep"),
    "Model.logits": Row("positions"),
    "Model.outputs": Row("keep"),
    "Model.query_heads": Row("heads"),
    "Model.save_pattern": Row("heads"),
    "Model.streaming": Row("heads"),
    "Scores.order": Row("by"),
    "Scores.top": Row("by"),
    "study backups": Row("heads", "two heads back each other up: together they help more"),
    "study certify": Row("heads method", "the set helps"),
    "study circuits": Row("by", "the first heads explain the effect"),
    "study contrast": Row("", "the gate is open: the head is kept"),
    "study diff": Row("method positions", "the head helps the second model more"),
    "study functions": Row("method", HELPS),
    "study masking": Row("method positions", HELPS),
    "study prompts": Row("heads"),
    "study reach": Row("method", "the head needs to see far"),
    "study roles": Row("positions", "the gate is open: the head is kept"),
    "study score": Row("method positions", HELPS),
    "study wiring": Row("heads method", "the edge helps"),
    "headwise card": Row("", HELPS),
    "headwise certify": Row("heads", "the set helps"),
    "headwise check": Row(),
    "headwise compare": Row("", "the second run has the larger number"),
    "headwise demo": Row(),
    "headwise diff": Row("method positions", "the head helps the second model more"),
    "headwise edges": Row("heads method", "the edge helps"),
    "headwise explore": Row("", HELPS),
    "headwise export": Row("heads keep method by"),
    "headwise interactions": Row("heads", "two heads back each other up: together they help more"),
    "headwise list": Row(),
    "headwise mcp": Row(),
    "headwise push": Row(),
    "headwise report": Row(),
    "headwise run": Row("method"),
    "headwise score": Row("method positions", HELPS),
    "headwise sparsify": Row(),
    "headwise task": Row(),
    "headwise verify": Row(),
}

OTHER_MEANINGS = {
    ("hw.certify", "heads"): "the set that is tested",
    ("study certify", "heads"): "the set that is tested",
    ("headwise certify", "heads"): "the set that is tested",
    ("hw.export", "heads"): "the heads that are removed or amplified; with `share` a ranking",
    ("hw.generate", "positions"): "only `all` and `last`",
    ("hw.patch", "heads"): "the heads whose outputs are exchanged",
    ("Model.check_heads", "heads"): "the heads that the model must have",
    ("Model.logits", "positions"): "the token positions whose logits are returned",
    ("Model.outputs", "keep"): "a function from a layer's head outputs to what is stored",
    ("Model.query_heads", "heads"): "heads, key/value heads among them, as query heads",
    ("Model.save_pattern", "heads"): "the heads that see the whole context",
    ("Model.streaming", "heads"): "the heads that see the whole context",
    ("study wiring", "heads"): "how many top heads the circuit is made of",
    ("headwise edges", "heads"): "how many top heads the circuit is made of",
    ("headwise export", "heads"): "the heads, or the scores, by which heads are removed",
    ("headwise export", "keep"): "how many heads are kept",
    ("headwise export", "method"): "the method whose scores are taken from a run",
    ("headwise export", "by"): "also `least`",
}

EXCEPTIONS = {
    "hw.export": (
        "zero",
        "no examples; with `shrink` and `reference_prompts` `mean`, in families with a bias for it",
    ),
    "hw.generate": ("zero", "there are no examples; `mean` where `reference_prompts` are given"),
    "hw.lm_eval": ("zero", "there are no examples"),
    "hw.patch": ("patch", "the output on the other prompt is what is put in"),
    "Model.gated": ("zero", "there are no examples; `mean` where `reference_prompts` are given"),
    "study circuits": ("mean, patch", "both; `patch` only where all examples have counterfactuals"),
    "study contrast": ("zero", "as in its paper"),
    "study masking": ("zero", "as in its paper"),
    "study reach": ("window", "it asks which heads need to see far"),
    "study roles": ("zero", "as in its paper; `mean` where a norm follows the heads"),
    "headwise export": (
        "zero",
        "the heads are zeros in the weights; with `--shrink` `mean` where a bias can take it",
    ),
    "headwise run": ("–", "that of the study"),
}

SHORT_FORMS = {"edges": "wiring", "interactions": "backups"} | {
    name: name for name in ("score", "diff", "certify")
}
"""Commands that run one study, with its defaults."""

PASSED_ON = {
    "card": "reference positions",
    "certify": "reference",
    "diff": "reference heads positions",
    "edges": "",
    "lm_eval": "",
    "run": "",
    "score": "",
    "task": "",
    "Edges.plot": "",
    "Scores.plot": "",
}
"""What a function takes through `**options` or `**how` that its signature does not name."""


def functions():
    """The public functions by name, and the public methods of public classes."""
    for name in hw.__all__:
        found = getattr(hw, name)
        if inspect.isfunction(found):
            yield f"hw.{name}", found
        elif inspect.isclass(found):
            for method, function in inspect.getmembers(found, inspect.isfunction):
                if not method.startswith("_"):
                    yield f"{name}.{method}", function


def parameters(function):
    """The names of a function's parameters, those of its keyword arguments included."""
    names = set()
    for one in inspect.signature(function).parameters.values():
        if one.kind is not one.VAR_KEYWORD:
            names.add(one.name)
        elif options := re.fullmatch(r"Unpack\[(\w+)\]", str(one.annotation)):
            names |= set(inspect.unwrap(function).__globals__[options[1]].__annotations__)
        else:
            names |= set(PASSED_ON[function.__qualname__].split())
    return names


def in_code():
    """Every call, study and command with the names of what it takes."""
    taken = {name: parameters(function) for name, function in functions()}
    taken = {
        name: names
        for name, names in taken.items()
        if name.startswith("hw.") or names & {"reference", *WORDS}
    }
    taken |= {f"study {name}": set(study.settings.model_fields) for name, study in studies().items()}
    commands = typer.main.get_command(app).commands
    taken |= {f"headwise {name}": {one.name for one in command.params} for name, command in commands.items()}
    return taken


def words_in_code():
    """The words that each call, study and command takes."""
    named = {"methods": "method"}
    return {
        call: {word for word in (named.get(name, name) for name in names) if word in WORDS}
        for call, names in in_code().items()
    }


def references(model, tuned, task):
    """The default ablation type of all that ablates: of Python calls by running them, else from the declarations."""
    quiet = {"progress": False}
    scores = hw.score(model, task, "attribution", **quiet)
    prompts = [example.prompt for example in task]
    some = ["L0H0", "L1H1"]
    results = {
        "hw.card": hw.card(model, "L0H0", task, **quiet),
        "hw.certify": hw.certify(model, task, some, quick=True, draws=1, **quiet),
        "hw.diff": hw.diff(model, tuned, task, "attribution").base,
        "hw.edges": hw.edges(model, task, into="logits", **quiet),
        "hw.generate": hw.generate(model, prompts, ablate=some, max_new_tokens=1, **quiet),
        "hw.interactions": hw.interactions(model, task, some, **quiet),
        "hw.measure": hw.measure(model, task, ablate=some, **quiet),
        "hw.score": scores,
        "hw.sweep": hw.sweep(model, task, scores, k=[0, 1], controls=(), **quiet),
    }
    found = {call: result.reference for call, result in results.items()}
    found |= {call: EXCEPTIONS[call][0] for call in ("hw.export", "hw.lm_eval", "hw.patch", "Model.gated")}
    explorer = Gated.model_fields["reference"].default
    found |= {"hw.explore": explorer, "headwise explore": explorer, "headwise export": "zero"}
    for name, study in studies().items():
        if "reference" in study.settings.model_fields:
            found[f"study {name}"] = study.settings.model_fields["reference"].default or "zero"
    found |= {f"study {name}": EXCEPTIONS[f"study {name}"][0] for name in ("circuits", "masking", "reach")}
    for name, command in typer.main.get_command(app).commands.items():
        if given := [one.default for one in command.params if one.name == "reference"]:
            study = SHORT_FORMS.get(name)
            found[f"headwise {name}"] = given[0] or found.get(
                f"study {study}", found.get(f"headwise {name}", "–")
            )
    return found


def code(names):
    """Names as code, where there are any."""
    return names if names == "–" else ", ".join(f"`{name}`" for name in names.split(", "))


def page(found):
    """The text of the page, with the default ablation types that were found."""
    lines = [f"| `{word}` | {meaning} |" for word, meaning in WORDS.items()]
    calls = []
    for call, row in ROWS.items():
        taken = words_in_code()[call]
        words = ", ".join(f"`{word}`" for word in WORDS if word in taken) or "–"
        calls.append(f"| `{call}` | {code(found.get(call, '–'))} | {words} | {row.positive} |")
    other = [f"| `{call}` | `{word}` | {text} |" for (call, word), text in OTHER_MEANINGS.items()]
    exceptions = [f"| `{call}` | {code(name)} | {why} |" for call, (name, why) in EXCEPTIONS.items()]
    return "\n".join(
        [
            "# One voice: the words and defaults of every call",
            "",
            "This page answers the question: what does an argument mean in this call? The same word means the same in",
            "Python, in study files and on the command line. The tables are made from the code by",
            "`tests/one_voice.py`. Terms: [glossary](glossary.md).",
            "",
            "| word | meaning |",
            "|---|---|",
            "| `reference` | what replaces an ablated head; by default its mean output over the examples (`mean`) |",
            *lines,
            "",
            "## Every call, study and command",
            "",
            "| call | default `reference` | words | a positive number means |",
            "|---|---|---|---|",
            *calls,
            "",
            "The sign is that of signed methods; `headwise list methods` says what the numbers of the others mean.",
            "The score method `direct` removes nothing: it counts the head's whole output (`zero`), unless a",
            "`reference` other than `mean` is given; in Python also `mean` can be given.",
            "",
            "## Another default `reference`",
            "",
            "| call | default | why |",
            "|---|---|---|",
            *exceptions,
            "",
            "## Another meaning of a word",
            "",
            "| call | word | meaning |",
            "|---|---|---|",
            *other,
            "",
        ]
    )


def small():
    """Two tiny random models and a task."""
    models = [word_model("llama", name=name) for name in ("base", "tuned")]
    return *models, word_task(16)


if __name__ == "__main__":
    PAGE.write_text(page(references(*small())), encoding="utf-8")
