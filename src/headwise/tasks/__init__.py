"""Behaviours to ask a model about: built-in tasks, one file per family, the user's own files, the registry."""

from headwise.tasks.examples import Example, Task
from headwise.tasks.files.load_task import load_task
from headwise.tasks.opening import task
from headwise.tasks.registry import families, register, register_list
from headwise.tasks.shots import few_shot

__all__ = ["Example", "Task", "families", "few_shot", "load_task", "register", "register_list", "task"]
