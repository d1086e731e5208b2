"""NCCB's page: its sections in order."""

from papers.assembly import Sections, page_of_results
from papers.grid import Paper, Scale
from papers.nccb.claims import claims
from papers.nccb.cohorts import coverage, regret, something_to_win
from papers.nccb.figures import figure_3, figure_4, figure_5
from papers.nccb.results import NCCBResults
from papers.nccb.scales import METHODS, NCCBScale
from papers.nccb.tables import adam, rates, stop_words, table_1, table_2
from papers.nccb.text import deviations, opening
from papers.page import Page
from papers.store import Store

_SECTIONS: Sections[NCCBResults] = {
    "Table 1: terminal accuracy": table_1,
    "Table 2: rounds to random selection's best": table_2,
    "Invited clients": coverage,
    "Regret": regret,
    "Something to win": something_to_win,
    "Figure 3: exploring threshold": figure_3,
    "Figure 4: number of clients": figure_4,
    "Figure 5: bits of a context": figure_5,
    "Learning rate": rates,
    "Adam": adam,
    "Stop words": stop_words,
    "Deviations from the paper": deviations,
}


def make_page(paper: Paper, scale: Scale, store: Store) -> Page:
    """Return the page of one scale."""
    assert isinstance(scale, NCCBScale)
    title = "NCCB, a trial run" if scale.local_only else "NCCB, reproduced on other data"
    return page_of_results(
        paper, scale, store, METHODS, NCCBResults, title=title, opening=(claims, opening), sections=_SECTIONS
    )
