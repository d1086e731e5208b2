"""A task that is given as a class or an instance, beside its name."""

import inspect
from typing import Any

from covey.core.given_parts import importable
from covey.errors import Refusal
from covey.registries import tasks
from covey.task.learning_task import Task


def name_and_options(given: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a task, such as `Regression` or `Regression(bins=5)`."""
    is_class = inspect.isclass(given)
    kind = given if is_class else type(given)
    name = tasks.name_of(kind)
    if name is None or not issubclass(kind, Task):
        raise Refusal(
            f"task must be a name, a section with a name and options, or a task of Covey's as a class or an instance, "
            f"not {kind.__name__ if is_class else f'a {kind.__name__}'}; a loss of your own is "
            "task={'name': 'custom', 'loss': 'package.module:name'}."
        )
    if is_class:
        return name, {}
    return name, {option: value for option, value in given.as_mapping().items() if option != "name"}


def with_places(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a task with functions by the places where they are found, package.module:name."""
    found = {}
    for option, value in options.items():
        place = importable(value) if callable(value) else value
        if place is None:
            raise Refusal(
                f"task.{option} is a function that other processes cannot import, as a lambda, or one of a notebook or "
                "of the script that runs: put it into a module of its own, and give it, or package.module:name."
            )
        found[option] = place
    return found
