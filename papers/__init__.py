"""Reproductions of papers: the runs that a paper needs, and the page of tables and figures made from their results.

grid          planned runs, groups, scales and papers, as data
campaign      makes the runs that are missing, over as many sessions as it takes
measurements  measurements of all clients during a run
branches      runs that start from another run's model
agents        agents that are trained before the runs in which they decide
store         one small file per run, from which tables and figures are made; `export` fills it from run folders
curves        which runs of a line are shown, and mean curves; statistics are Covey's own
results       stored results as cells of tables
page          tables and charts as Markdown, `pictures` as SVG; `assembly` puts a paper's page together
prose         templates of the pages' text; `wording` formats their fields
command       `covey reproduce`

Each paper has a folder: `scales` and `experiments` (what is run), `printed.toml` (the numbers in the paper),
`results`, `tables` and `figures`, and the text in `prose.md`, filled in by `text`.
"""

from covey.errors import require
from papers.campaign import Outcome, machine_settings, reproduce
from papers.fedacs import PAPER as FEDACS
from papers.feddrl import PAPER as FEDDRL
from papers.grid import Group, Paper, PlannedRun, Request, Scale
from papers.nccb import PAPER as NCCB
from papers.ondemand import PAPER as ONDEMAND
from papers.own import PAPER as OWN
from papers.store import Result, Store

papers: dict[str, Paper] = {paper.name: paper for paper in (FEDACS, FEDDRL, ONDEMAND, NCCB, OWN)}
"""Papers that can be reproduced, by name, and Covey's own comparison."""


def find_paper(name: str) -> Paper:
    require(name in papers, f"There is no paper '{name}' to reproduce. Papers: {', '.join(papers)}.")
    return papers[name]


__all__ = [
    "Group",
    "Outcome",
    "Paper",
    "PlannedRun",
    "Request",
    "Result",
    "Scale",
    "Store",
    "find_paper",
    "machine_settings",
    "papers",
    "reproduce",
]
