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


def fedacs_figure() -> str:
    """Return FedACS's and Oort's points over random selection, as printed and as measured, as a chart."""
    rows = next(
        one.rows
        for one in result_tables(DOCS / "results" / "fedacs.md")
        if one.heading == "Table II: terminal accuracy"
    )
    random = {row[0]: row[2] for row in rows if row[1] == "random"}
    groups: dict[str, list[tuple[str, str, float, str]]] = {}
    for environment, method, paper, _, _, points, *_ in rows:
        if environment not in random or method not in ("FedACS", "Oort (as compared)"):
            continue
        lines = groups.setdefault(environment, [])
        if "-" not in (paper, random[environment]):
            printed = float(paper) - float(random[environment])
            lines.append((f"{method}, paper", "plain", printed, f"{printed:+.1f}"))
        kind = "covey" if method == "FedACS" else "peer"
        lines.append((f"{method}, measured", kind, float(points.split("\u00a0")[0]), points))
    return bars("Points of accuracy over random selection on CIFAR-10, by environment: printed and measured", groups)
