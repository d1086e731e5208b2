"""FedDRL's page: its sections in order."""

from papers.assembly import Sections, page_of_results
from papers.feddrl.claims import claims
from papers.feddrl.figures import figure_5, figure_6, figure_7, figure_8
from papers.feddrl.results import FedDRLResults
from papers.feddrl.scales import METHODS, FedDRLScale
from papers.feddrl.tables import any_time, figure_9, figure_10, impact_factors, online, rule, table_3, table_4
from papers.feddrl.text import deviations, opening
from papers.grid import Paper, Scale
from papers.page import Page
from papers.store import Store

_SECTIONS: Sections[FedDRLResults] = {
    "Table 3: best accuracy": table_3,
    "Accuracy at any time": any_time,
    "Figure 5: accuracy over rounds": figure_5,
    "Figure 6: fairness to clients": figure_6,
    "Impact factors": impact_factors,
    "FedDRL for sets without learning": rule,
    "Agents without a first stage": online,
    "Figure 7: clients in a round": figure_7,
    "Figure 8: size of the main group": figure_8,
    "Figure 9: time on the server": figure_9,
    "Figure 10: rounds to the lowest of the best": figure_10,
    "Table 4: shards": table_4,
    "Deviations": deviations,
}


def make_page(paper: Paper, scale: Scale, store: Store) -> Page:
    """Return the page of one scale."""
    assert isinstance(scale, FedDRLScale)
    title = "FedDRL, a trial run" if scale.local_only else "FedDRL, reproduced"
    return page_of_results(
        paper, scale, store, METHODS, FedDRLResults, title=title, opening=(claims, opening), sections=_SECTIONS
    )
