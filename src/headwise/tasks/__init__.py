"""Behaviours to ask a model about: built-in tasks, one file per family, and the registry."""

from headwise.tasks.examples import Example, Task
from headwise.tasks.registry import families, register, register_list, task

__all__ = ["Example", "Task", "families", "register", "register_list", "task"]
