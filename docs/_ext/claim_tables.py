"""The verdicts on the papers' claims, gathered from the results pages."""

import re
from collections.abc import Iterator
from functools import cache

from bar_figures import bars
from page_text import DOCS, cell, escaped, result_tables, table

PAPERS = {
    "fedacs": "FedACS",
    "feddrl": "FedDRL",
    "ondemand": "On-Demand FL",
    "nccb": "NCCB, on other data",
    "own": "covey, by goals of our own",
}
VERDICTS = ("holds", "holds in part", "open", "does not hold", "not tested")


@cache
def claims(page: str) -> list[tuple[str, str]]:
    """Return the claims of a results page with their verdicts."""
    text = (DOCS / "results" / f"{page}.md").read_text(encoding="utf-8")
    first = next((one for one in result_tables(DOCS / "results" / f"{page}.md") if one.head[1:2] == ["verdict"]), None)
    if first is not None:
        return [(row[0], row[1].strip("*")) for row in first.rows]
    return list(_listed(text))


def _listed(text: str) -> Iterator[tuple[str, str]]:
    """Yield claims that stand as bold sentences above a list: one for each setting that has been run, or one in all."""
    for claim, places in re.findall(r"^\*\*(.+?)\*\*\n\n((?:- .+\n)+)", text, re.MULTILINE):
        plain = claim.rstrip(".").rstrip()
        for place, verdict in re.findall(r"^- (.+?):? \*\*(.+?)\*\*", places, re.MULTILINE):
            yield f"{plain}: {place}", verdict


def overview() -> str:
    """Return how many claims of each paper hold: a line for each paper."""
    rows = []
    for page, title in PAPERS.items():
        found = [verdict for _, verdict in claims(page)]
        rows.append([f"[{title}](results/{page}.md)", *(str(found.count(one) or "") for one in VERDICTS)])
    return table(["", *VERDICTS], rows)


def verdicts(page: str) -> str:
    """Return the verdict on each claim of a page that has been tested, and how many have not."""
    tested = [[f"**{verdict}**", cell(escaped(claim))] for claim, verdict in claims(page) if verdict != "not tested"]
    left = len(claims(page)) - len(tested)
    text = table(["verdict", "claim"], tested) if tested else ""
    more = f"{'None' if not tested else f'Not tested yet: {left}'} of {len(claims(page))} claims"
    return text + (f"\n{more}{' has been tested yet' if not tested else ''}.\n" if left else "")


Bar = tuple[str, str, float, str]
"""Label, kind, length and text of a bar."""


def _rows(page: str, heading: str, place: int = 1) -> list[list[str]]:
    tables = [one for one in result_tables(DOCS / "results" / f"{page}.md") if one.heading == heading]
    return tables[place - 1].rows


def _measured(method: str, kind: str, points: str) -> Bar:
    return f"{method}, measured", kind, float(points.split("\u00a0")[0]), points


def _printed(method: str, points: float) -> Bar:
    return f"{method}, paper", "plain", points, f"{points:+.1f}"


def fedacs_figure() -> str:
    """Return FedACS's and Oort's points over random selection, as printed and as measured, as a chart."""
    rows = _rows("fedacs", "Table II: terminal accuracy")
    random = {row[0]: row[2] for row in rows if row[1] == "random"}
    groups: dict[str, list[Bar]] = {}
    for environment, method, paper, _, _, points, *_ in rows:
        if environment not in random or method not in ("FedACS", "Oort (as compared)"):
            continue
        lines = groups.setdefault(environment, [])
        if "-" not in (paper, random[environment]):
            lines.append(_printed(method, float(paper) - float(random[environment])))
        lines.append(_measured(method, "covey" if method == "FedACS" else "peer", points))
    return bars("Points of accuracy over random selection on CIFAR-10, by environment: printed and measured", groups)


def feddrl_figure() -> str:
    """Return FedDRL's points over FedAvg by the best round, as printed and as measured, and those of its control."""
    groups: dict[str, list[Bar]] = {}
    for split, method, against, paper, best, *_ in _rows("feddrl", "Claims", 2):
        if against != "FedAvg" or method not in ("FedDRL", "loss softmax"):
            continue
        lines = groups.setdefault(split, [])
        if paper != "-":
            lines.append(_printed(method, float(paper)))
        lines.append(_measured(method, "covey" if method == "FedDRL" else "peer", best))
    return bars("Points of accuracy over FedAvg on Fashion-MNIST, best rounds, by split: printed and measured", groups)


def ondemand_figure() -> str:
    """Return a model on demand's points over FedAvg on each target of CIFAR-10, as printed and as measured."""
    text = (DOCS / "results" / "ondemand.md").read_text(encoding="utf-8")
    points = _rows("ondemand", "Table 2: accuracy on the target", 4)
    row = next(one for one in points if one[:2] == ["CIFAR-10", "0.1"])
    # The claim with these figures has the printed ones behind it.
    first = re.escape(row[4].replace("\u00a0", " "))
    (printed,) = re.findall(rf"TD 1 {first}, .+ \(in the paper (.+?)\)\.$", text, re.MULTILINE)
    targets = zip(("TD 1", "TD 2", "TD 3", "Local"), printed.split(", "), row[4:], strict=True)
    groups = {
        name: [_printed("on demand", float(paper)), _measured("on demand", "covey", points)]
        for name, paper, points in targets
    }
    return bars(
        "Points of accuracy over FedAvg on CIFAR-10, α = 0.1, best rounds, by target: printed and measured", groups
    )


def nccb_figure() -> str:
    """Return NCCB's, k-LinUCB's and Oort's points over random selection, as printed and as measured on other data."""
    rows = _rows("nccb", "Table 1: terminal accuracy")
    random = {row[0]: float(row[2]) for row in rows if row[1] == "random"}
    groups: dict[str, list[Bar]] = {}
    for data, method, paper, _, _, points, *_ in rows:
        if method in ("NCCB", "Oort (as compared)", "k-LinUCB"):
            lines = groups.setdefault(data, [])
            lines.append(_printed(method, float(paper) - random[data]))
            lines.append(_measured(method, "covey" if method == "NCCB" else "peer", points))
    return bars("Points of accuracy over random selection: printed, and measured on other texts", groups)


FIGURES = {
    "fedacs-figure": fedacs_figure,
    "feddrl-figure": feddrl_figure,
    "ondemand-figure": ondemand_figure,
    "nccb-figure": nccb_figure,
}
