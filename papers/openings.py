"""Sentences of pages' openings: where their numbers come from, what these mean, and how far methods are apart."""

from papers.lines import Lines
from papers.pages import clearness, counted
from papers.plan import Scale
from papers.statistics import Paired
from papers.store import Store

WHICH_SEEDS = (
    "Where two or more seeds are at their end, figures are over these alone, and others are counted as under way; a "
    'figure of runs that are still under way is marked "so far".'
)

NO_INTERVALS = "The paper gives neither seeds nor intervals."


def made_by(command: str, scale: Scale, store: Store) -> str:
    """What makes a page, and of what; also whether clients' replies were lost on the way."""
    lost = [f"{run.dropped:,} in {run.name}" for run in store if run.dropped]
    return (
        f"Made by `{command} --only tables` from the {len(store)} runs in `{scale.store}` of the results folder, and "
        "from nothing else." + (f" Replies were dropped: {', '.join(lost)}." if lost else "")
    )


def terminal_means(window: int) -> str:
    """What terminal accuracy is, over so many rounds, and what ± and differences of it are."""
    return (
        f"Terminal accuracy is the mean over the last {counted(window, 'round')}. ± is half of Student's 95 % interval "
        "over seeds; differences are taken seed by seed, at the last round that both runs have come to."
    )


def ends(rounds: int, planned: int) -> str:
    """What a method does after so many rounds: it ends, or stands somewhere on the way."""
    return "ends" if rounds >= planned else f"stands, after {rounds:,} of {planned:,} rounds,"


def from_random(lines: Lines, pair: Paired, paper: str = "") -> str:
    """How far a method is from random selection, and what that is worth; `paper` is what the paper says."""
    told = f"; in the paper {paper}" if paper else ""
    return (
        f"{lines.points(pair.difference)} points from random selection ({clearness(pair.difference)}; "
        f"{counted(len(pair.seeds), 'seed')}{told})"
    )
