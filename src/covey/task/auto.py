"""The default: the task follows from the labels."""

from covey.registries import tasks


@tasks.add("auto")
class Auto:
    """Inferred from the labels: decimal numbers are regression, a 0/1 matrix is multilabel, all else classes."""
