"""EleutherAI's evaluation harness with heads masked: `hw.lm_eval(model, gates, tasks)`.

Behind the extra `lm-eval`. The harness drives the model itself; while it does, every forward pass goes under the gates.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.settings import several

if TYPE_CHECKING:
    from headwise.model.model import Model


def lm_eval(
    model: Model,
    gates: np.ndarray | None = None,
    tasks: str | Path | Sequence[str | Path] = (),
    *,
    batch_size: int = 8,
    **options: Any,
) -> dict[str, Any]:
    """Run the harness on the model under one set of gates `[L, H]`; by default all 1.

    tasks: names of the harness's tasks, or task files of your own (.yaml). options: those of
    `lm_eval.simple_evaluate`, such as limit=100 or num_fewshot=5. Returns its report: `["results"][task]` holds
    the metrics.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise HeadwiseError("hw.lm_eval needs the harness; install it with: pip install 'headwise[lm-eval]'")
    chosen = several(tasks)
    if not chosen:
        raise HeadwiseError('no task is given; name one or more, such as tasks=["lambada_openai"]')
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    under = model.gated(gates)
    files = [Path(task) for task in chosen if str(task).endswith((".yaml", ".yml"))]
    for file in files:
        if not file.is_file():
            raise HeadwiseError(f"there is no task file {file}")
    names = [_name(Path(task)) if Path(task) in files else str(task) for task in chosen]
    manager = TaskManager(include_path=sorted({str(file.resolve().parent) for file in files}) or None)
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown:
        raise HeadwiseError(f"the harness has no task {unknown[0]!r}; `lm_eval ls tasks` lists those it has")

    with torch.no_grad(), under:
        driven = HFLM(pretrained=model.hf, tokenizer=model.text.tokenizer, batch_size=batch_size)
        report = simple_evaluate(model=driven, tasks=names, task_manager=manager, **options)
    assert report is not None, "only one process runs, so it is the one that reports"
    return dict(report)


def _name(file: Path) -> str:
    """What a task file calls its task."""
    import yaml

    # Task files may carry tags of the harness's own (!function), which are not needed for the name.
    class Plain(yaml.SafeLoader):
        pass

    Plain.add_multi_constructor("!", lambda loader, suffix, node: None)
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), Loader=Plain)  # noqa: S506 a safe loader without tags
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise HeadwiseError(f"the task file {file} cannot be read: {' '.join(str(error).split())}") from None
    name = values.get("task") if isinstance(values, dict) else None
    if not isinstance(name, str):
        raise HeadwiseError(f"{file} names no task; a task file has a line such as 'task: my_task'")
    return name
