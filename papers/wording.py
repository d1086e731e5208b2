"""Numbers and lists as text: cells of tables and fields of sentences."""

from collections.abc import Sequence

from covey.job.comparison.statistics import Estimate

MISSING = "not run yet"


def cell(value: float | None, form: str) -> str:
    """Format a number as a cell, `-` if there is none."""
    return "-" if value is None else form.format(value)


def percent(value: float | None) -> str:
    """Format a fraction in percent, without the sign."""
    return cell(None if value is None else 100 * value, "{:.1f}")


def spread(estimate: Estimate, form: str = "{:.1f}", factor: float = 100.0) -> str:
    """Format mean ± half the 95 % interval; the mean alone if there is one seed."""
    text = form.format(factor * estimate.mean)
    if float(text) == 0:
        text = form.format(0.0)  # no minus sign before zero
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ± {form.replace('+', '').format(factor * (estimate.high - estimate.low) / 2)}"


def clearness(difference: Estimate) -> str:
    """Say in words if a difference is clear of zero."""
    words = {None: "one seed, no interval", True: "clear of zero", False: "within the noise of these seeds"}
    return words[difference.clear_of_zero]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 seed`, `5 seeds`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def every_text(rounds: int) -> str:
    """Return `every round` or `every 5 rounds`."""
    return "every round" if rounds == 1 else f"every {rounds} rounds"


def different(values: Sequence[str]) -> str:
    """List distinct values, separated by commas."""
    return ", ".join(dict.fromkeys(values))


def joined(words: Sequence[str]) -> str:
    """List words as in a sentence: `a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def not_yet(what: str, command: str) -> str:
    """Say that something was not run, and how to run it."""
    return f"{what}: {MISSING}. To run it: `{command}`"


def bullets(sentences: Sequence[str]) -> list[str]:
    """Return sentences as one Markdown list; nothing without sentences."""
    return ["\n".join(f"- {sentence}" for sentence in sentences)] if sentences else []
