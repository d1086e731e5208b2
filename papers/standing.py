"""How far the runs of a line have come, as cells of a table."""

from papers.statistics import Line, reached, scored


def seeds_text(line: Line, everything: Line, planned: int) -> str:
    """How many seeds a figure is over: `5`, or `2 (3 under way)` where the others of the line are not at their end."""
    others = [run for seed, run in everything.items() if seed not in line and reached(run) < planned]
    return str(len(scored(line))) + (f" ({len(others)} under way)" if others else "")


def rounds_text(line: Line, planned: int) -> str:
    """How far the runs of a line have come: `1,000`, `300 of 1,000` or `300 to 450 of 1,000`."""
    runs = scored(line).values()
    if not runs:
        return "0"
    low, high = min(map(reached, runs)), max(map(reached, runs))
    if low >= planned:
        return f"{low:,}"
    return f"{low:,} of {planned:,}" if low == high else f"{low:,} to {high:,} of {planned:,}"


def so_far(line: Line, planned: int) -> str:
    """What to add to a figure of runs that are not at their end."""
    runs = scored(line).values()
    return "" if runs and min(map(reached, runs)) >= planned else " so far"
