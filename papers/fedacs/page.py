"""FedACS's page: its sections in order."""

from papers.assembly import Sections, page_of_results
from papers.fedacs.claims import claims
from papers.fedacs.figures import figure_2, figure_5, figure_6, figure_7, figure_10
from papers.fedacs.results import FedACSResults
from papers.fedacs.scales import METHODS, FedACSScale
from papers.fedacs.skew_figures import figure_4, figure_8, figure_9
from papers.fedacs.tables import poisoners, recipes, table_2, table_3, when_not
from papers.fedacs.text import opening
from papers.grid import Paper, Scale
from papers.page import Page
from papers.store import Store

_SECTIONS: Sections[FedACSResults] = {
    "Table II: terminal accuracy": table_2,
    "Table III: rounds to a target": table_3,
    "When not to use FedACS": when_not,
    "Clients with wrong labels": poisoners,
    "Local training: authors' code and text": recipes,
    "Figure 2: cost of skew": figure_2,
    "Figure 4: scores and skew": figure_4,
    "Figure 5: cost of fewer data": figure_5,
    "Figure 6: learning curves": figure_6,
    "Figure 7: size of the pool": figure_7,
    "Figure 8: skew of the invited clients": figure_8,
    "Figure 9: invitations by skew": figure_9,
    "Figure 10: early stop and overhead": figure_10,
}


def make_page(paper: Paper, scale: Scale, store: Store) -> Page:
    """Return the page of one scale."""
    assert isinstance(scale, FedACSScale)
    title = "FedACS, a trial run" if scale.local_only else "FedACS, reproduced"
    return page_of_results(
        paper, scale, store, METHODS, FedACSResults, title=title, opening=(claims, opening), sections=_SECTIONS
    )
