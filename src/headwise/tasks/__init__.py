"""Behaviours to ask a model about: begin with `examples.py` (`Example`, `Task`), then `registry.py`.

`builtin/` has the tasks that come with headwise, `files/` a user's own data; `opening.py` turns a name or a path
into a task, `shots.py` makes few-shot prompts, `conditions.py` the inserted tokens of the study `prompts`. May
import: errors, registry, hub, settings.
"""

from headwise.tasks.examples import Example, Task
from headwise.tasks.files.load_task import load_task
from headwise.tasks.opening import task
from headwise.tasks.registry import families, register, register_list
from headwise.tasks.shots import few_shot
