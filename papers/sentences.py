"""Sentences that several pages share: sources of numbers, terminal accuracy, and distance from random selection."""

from collections.abc import Mapping

from covey.job.comparison.statistics import Estimate, common_seeds, last_round
from papers.curves import Line
from papers.grid import Scale
from papers.prose import SHARED
from papers.results import Results
from papers.store import Store
from papers.wording import clearness, counted, joined


def made_by(command: str, scale: Scale, store: Store) -> str:
    """Say which runs a page is made from, which command writes it, and how many replies were lost in the runs."""
    lost = [f"{run.dropped:,} in {run.name}" for run in store if run.dropped]
    sentence = SHARED("made-by", runs=len(store), store=scale.store, command=command)
    return f"{sentence} {SHARED('dropped', lost=', '.join(lost))}" if lost else sentence


def terminal_means(window: int) -> str:
    """Define terminal accuracy, ± and differences."""
    return SHARED("terminal", window=counted(window, "round"))


def ends(rounds: int, planned: int) -> str:
    """Return the verb of a method after some rounds: it ends, or stands somewhere before the end."""
    return SHARED("ends") if rounds >= planned else SHARED("stands", rounds=rounds, planned=planned)


def common_rounds(line: Line, base: Line) -> int:
    """Return the last round that all runs of both lines have evaluated, over common seeds."""
    return min(last_round(one[seed]) for one in (line, base) for seed in common_seeds(line, base))


def from_random(results: Results, gain: Estimate, seeds: int, paper: str = "") -> str:
    """Say how far a method is from random selection and how sure that is; `paper` is the paper's figure."""
    note = f"; in the paper {paper}" if paper else ""
    return f"{results.points(gain)} points from random selection ({clearness(gain)}; {counted(seeds, 'seed')}{note})"


def gains_by_place(results: Results, method: str, base: str, places: Mapping[str, str]) -> dict[str, Estimate | None]:
    """Return place → gain of a method over another, for `verdict`; places of unfinished runs are marked "(so far)".

    `places` maps an environment's name in sentences to its name in the store.
    """
    gains = {}
    for title, environment in places.items():
        line, other = (results.line(environment, one) for one in (method, base))
        unfinished = results.so_far(line) or results.so_far(other)
        gains[f"{title} (so far)" if unfinished else title] = results.gain(line, other)
    return gains


def verdict(method: str, other: str, gains: Mapping[str, Estimate | None], where: str) -> str:
    """Say where a method is ahead of another and where the difference is noise; empty without a result.

    `gains` maps a place (environment, data set) to the difference in accuracy; `where` has a field for the places.
    """
    found: dict[str, list[str]] = {"ahead": [], "behind": [], "noise": [], "open": []}
    for place, gain in gains.items():
        if gain is not None:
            clear = gain.clear_of_zero
            found["open" if clear is None else "noise" if not clear else "ahead" if gain.mean > 0 else "behind"] += [
                place
            ]
    clauses = [
        SHARED(f"verdict-{name}", method=method, other=other, where=where.format(joined(places)))
        for name, places in found.items()
        if places
    ]
    return " ".join(clauses)
