"""The way from a job's result to the page about it."""

from importlib import import_module
from pathlib import Path


def write_page_about(result: object, page: str, path: Path) -> Path:
    """Write the page about a result with the function `page`, named as module:function of `covey.page`.

    Pages are built on jobs. So that jobs do not import pages in turn, the page is looked up when it is asked for.
    """
    module, _, function = page.partition(":")
    written: Path = getattr(import_module(f"covey.page.{module}"), function)(result, path)
    return written
