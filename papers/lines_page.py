"""A page of tables that are made of lines: which runs are behind it, and its sections in order."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from papers.lines import Lines
from papers.pages import ORIGIN, Page, Part, Table, assembled, command_of, origin, usable
from papers.plan import Paper, Scale
from papers.standing import rounds_text
from papers.store import Store

Size = TypeVar("Size", bound=Scale)
About = TypeVar("About", bound=Lines)


def page_of_lines(
    paper: Paper,
    scale: Size,
    store: Store,
    methods: Sequence[str],
    lines: Callable[[Size, Store, str, Sequence[str]], About],
    *,
    title: str,
    opening: Sequence[Callable[[About], list[Part]]],
    sections: Mapping[str, Callable[[About], list[Part]]],
) -> Page:
    """The page of a paper at one scale.

    `lines` makes what `opening` and `sections` need to know, of the scale, the results that were made as planned, the
    command and the methods: those of the paper and whatever else was run.
    """
    present = tuple(dict.fromkeys((*methods, *(result.method for result in store))))
    kept, notes = usable(paper, scale, store, present)
    about = lines(scale, kept, command_of(paper, scale), present)
    before = [part for make in opening for part in make(about)]
    return assembled(scale, title, about, before, sections, _runs(about), notes)


def _runs(about: Lines) -> Part:
    """Where the numbers come from."""
    places = sorted({(result.environment, result.method, result.variant) for result in about.store})
    if not places:
        return "None yet."
    rows = []
    for environment, method, variant in places:
        line = about.store.line(environment, method, variant)
        seeds, run = ", ".join(map(str, line)), rounds_text(line, about.planned(method))
        rows.append([environment, method, variant or "-", seeds, run, *origin(list(line.values()))])
    return Table(("environment", "method", "variant", "seeds", "rounds", *ORIGIN), rows)
