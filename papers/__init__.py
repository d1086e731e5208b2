"""Papers, reproduced: each says in a file of its own what to run, and what its tables and figures are made of.

plan        runs, groups and scales as data
playing     runs what is missing, over as many occasions as it takes
measuring   what is measured of clients on the way
branching   runs that begin with another one's model
schooling   agents that are trained before the runs in which they decide
store       a small file for each run; all that tables and figures are made from
statistics  what stored runs say
lines       the lines of a table, as cells; standing says how far their runs are
pages       tables and charts as a page, drawing its pictures; lines_page and openings are what several pages share
fedacs      the first of them; fedacs_page has its tables and figures, made of fedacs_lines, fedacs_words and
            fedacs_tables; so for the others, some with what the paper prints in a file of its own
"""

from covey.errors import require
from papers.fedacs import PAPER as FEDACS
from papers.feddrl import PAPER as FEDDRL
from papers.nccb import PAPER as NCCB
from papers.ondemand import PAPER as ONDEMAND
from papers.plan import Group, Paper, Planned, Scale, Wanted
from papers.playing import Outcome, machine_settings, reproduce
from papers.store import Result, Store

papers: dict[str, Paper] = {paper.name: paper for paper in (FEDACS, FEDDRL, ONDEMAND, NCCB)}
"""Papers that can be reproduced, by name."""


def paper_called(name: str) -> Paper:
    require(name in papers, f"There is no paper '{name}' to reproduce. Papers: {', '.join(papers)}.")
    return papers[name]


__all__ = [
    "Group",
    "Outcome",
    "Paper",
    "Planned",
    "Result",
    "Scale",
    "Store",
    "Wanted",
    "machine_settings",
    "paper_called",
    "papers",
    "reproduce",
]
