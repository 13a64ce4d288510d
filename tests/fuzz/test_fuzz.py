"""Whatever a file, a folder, an array or a command line holds: it works, or one sentence says what is wrong.

A few hundred cases with the other tests; `make fuzz` makes 10,000 (HEADWISE_FUZZ=10000) and prints what came of them.
"""

from __future__ import annotations

import pytest

from fuzz import folders, inputs
from fuzz.harness import Case, asked, run, wanted

KINDS: dict[str, tuple[Case, int]] = {
    "tasks": (inputs.task_files, 80),
    "studies": (inputs.study_files, 36),
    "heads": (inputs.heads, 36),
    "gates": (inputs.gates, 16),
    "orders": (inputs.orders, 4),
    "models": (folders.model_folders, 8),
    "runs": (folders.run_folders, 6),
    "settings": (folders.settings, 1),
    "commands": (folders.command_line, 8),
}
"""Each kind of case and its share."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_case_works_or_is_refused_in_a_sentence(kind, tmp_path, capsys):
    total, seed, only = asked()
    numbers = range(wanted({name: share for name, (_, share) in KINDS.items()}, total)[kind])
    if only:
        if only[0] != kind:
            pytest.skip("another case is asked for")
        seed, numbers = only[1], range(only[2], only[2] + 1)
    tally = run(kind, KINDS[kind][0], numbers, seed, tmp_path)
    with capsys.disabled():
        print(f"\n{tally.line()}", end="")
    assert not tally.findings, f"{len(tally.findings)} findings\n" + "\n".join(tally.findings[:20])
