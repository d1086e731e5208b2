"""The sentences of a report."""

from collections.abc import Mapping, Sequence
from typing import Any

from covey.job.comparison.row_figures import terminal_of
from covey.job.comparison.row_text import CLEAR, certainty
from covey.job.comparison.statistics import REFERENCE
from covey.job.result_text import level, verdicts
from covey.page.run_data import FederationGroup, ReportData


def headline(report: ReportData) -> str:
    """Return the main result in a sentence."""
    if len(report.groups) == 1:
        return answer(report.groups[0])
    best = [_joined([row["name"] for row in _leaders(group)]) for group in report.groups]
    ends = {name: "end" if " and " in name else "ends" for name in best}
    words = {_superlative(group) for group in report.groups}
    most = words.pop() if len(words) == 1 else "best"
    count = len(report.groups)
    if len(set(best)) == 1:
        return f"{best[0]} {ends[best[0]]} {most} in {'both' if count == 2 else f'all {count}'} federations."
    tally = sorted({name: best.count(name) for name in best}.items(), key=lambda item: -item[1])
    each = _joined([f"{name} {ends[name]} {most} in {n} of {count}" for name, n in tally])
    return f"It depends on the federation: {each}."


def sentences(group: FederationGroup) -> list[str]:
    """Return the results of a federation in words, a sentence per line."""
    texts = verdicts(group.comparison)
    unpaired = [line.label for line in group.lines if line.label not in group.comparison.runs]
    if unpaired:
        texts.append(
            f"{_joined(unpaired)} has other seeds than {group.lines[0].label}, so differences cannot be paired."
        )
    return texts


def lead(report: ReportData) -> str:
    """Say what was run, in one line."""
    noun = "method" if report.bare else "variant"
    parts = [_count(len(report.legend), noun) if len(report.legend) > 1 else report.lines[0].label]
    seeds = sorted({len(line.runs) for line in report.lines})
    parts.append(_count(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds")
    if len(report.groups) > 1:
        parts.append(_count(len(report.groups), "federation"))
    for noun, values in (
        ("round", [line.config.rounds for line in report.lines]),
        ("client", [line.config.clients for line in report.lines]),
    ):
        low, high = min(values), max(values)
        parts.append(_count(low, noun) if low == high else f"{low:,} to {high:,} {noun}s")
    for noun, names in (
        ("data set", [line.config.dataset.name for line in report.lines]),
        ("environment", [line.config.environment.name for line in report.lines]),
        ("model", [line.config.model.name for line in report.lines]),
    ):
        different = list(dict.fromkeys(names))
        parts.append(f"{noun}{'s' if len(different) > 1 else ''} {', '.join(different)}")
    return "; ".join(parts) + "."


def title(report: ReportData) -> str:
    names = [line.label for line in report.legend]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"Covey report: {shown} on {report.lines[0].config.dataset.name}"


def answer(group: FederationGroup) -> str:
    """Return the result on one federation in a sentence."""
    rows = group.rows
    own = [row for row in rows if not _is_reference(group, row)] or rows
    first = rows[0]
    if len(rows) == 1:
        interval = "" if first["terminal_low"] is None else f" ({_interval(group, first)})"
        rounds = len(group.lines[0].runs[0].metrics)
        ends = f"{first['name']} ends at {_reached(group, first)}"
        return f"{ends}{interval} after {_count(rounds, 'round')}."
    references = [row for row in rows if row["method"] == REFERENCE]
    reference = references[0] if len(references) == 1 else None
    if len(own) == 1 and own[0] is first and reference is not None and reference["difference"] is not None:
        return _cost_of_skew(group, first, reference)
    leaders = _leaders(group)
    best = leaders[0]
    sentence = f"{best['name']} ends {_superlative(group)}, at {_reached(group, best)}"
    if len(leaders) > 1:
        names = _joined([row["name"] for row in leaders])
        rest = len(leaders) < len(own)
        sentence = f"{names} end level, {f'{_superlative(group)} ' if rest else ''}at {_reached(group, best)}"
    if all(row is not first for row in leaders):
        sentence += _against(group, best)
    elif len(own) == 1:
        sentence = f"{first['name']} ends at {_reached(group, first)}"
    elif len(leaders) == 1:
        sentence += _ahead_of(group, first, [row for row in own if row is not first])
    if reference is not None and all(row is not reference for row in leaders):
        sentence += f"; without skew it would be {group.comparison.metric.text(terminal_of(reference))}"
    return sentence + "."


def _cost_of_skew(group: FederationGroup, first: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    metric = group.comparison.metric
    cost = metric.sign * reference["difference"]
    ends = (
        f"{first['name']} ends at {_reached(group, first)}, and at {metric.text(terminal_of(reference))} without skew"
    )
    if cost <= 0:
        return f"Skew costs {first['name']} nothing here: it {ends.split(' ', 1)[1]}{_sure(reference)}."
    unit = "" if metric.share else f" in {metric.label}"
    return f"Skew costs {first['name']} {metric.gap(cost)}{unit}{_sure(reference)}: it {ends.split(' ', 1)[1]}."


def _leaders(group: FederationGroup) -> list[dict[str, Any]]:
    """Return the row that ends best, and those level with it."""
    metric = group.comparison.metric
    own = [row for row in group.rows if not _is_reference(group, row)] or group.rows
    best = max(own, key=lambda row: metric.sign * terminal_of(row))
    most = terminal_of(best)
    return [row for row in own if row is best or level(terminal_of(row) - most, most, metric)]


def _reached(group: FederationGroup, row: Mapping[str, Any]) -> str:
    metric = group.comparison.metric
    return f"{metric.text(terminal_of(row))} {metric.test_label}"


def _superlative(group: FederationGroup) -> str:
    return "highest" if group.comparison.metric.higher else "lowest"


def _is_reference(group: FederationGroup, row: Mapping[str, Any]) -> bool:
    return next(line for line in group.lines if line.label == row["name"]).reshapes


def _against(group: FederationGroup, row: Mapping[str, Any]) -> str:
    metric = group.comparison.metric
    if row["difference"] is None:
        return ""
    gap = metric.gap(row["difference"])
    return f", {gap} {'above' if metric.higher else 'below'} {row['against']}{_sure(row)}"


def _ahead_of(group: FederationGroup, first: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Say how far the first method is ahead of the next one."""
    metric = group.comparison.metric
    following = max(others, key=lambda row: metric.sign * terminal_of(row))
    if following["against"] != first["name"]:
        return ""
    side = "above" if metric.higher else "below"
    return f", {metric.gap(following['difference'])} {side} {following['name']}{_sure(following)}"


def _sure(row: Mapping[str, Any]) -> str:
    sure = certainty(row)
    return "" if sure == CLEAR else f" ({sure})"


def _interval(group: FederationGroup, row: Mapping[str, Any]) -> str:
    metric = group.comparison.metric
    return f"95 % interval {metric.text(row['terminal_low'])} to {metric.text(row['terminal_high'])}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
