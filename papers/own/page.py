"""The page of the comparison: its sections in order."""

from papers.assembly import Sections, page_of_results
from papers.grid import Paper, Scale
from papers.own.claims import goals
from papers.own.results import OwnResults
from papers.own.scales import TITLES, OwnScale
from papers.own.tables import ablation, clustered, on_demand, robustness, skewed, texts
from papers.own.text import commands, opening, when_not
from papers.page import Page
from papers.store import Store

_SECTIONS: Sections[OwnResults] = {
    "FedACS's environments": skewed,
    "FedDRL's federations": clustered,
    "Which parts earn their place": ablation,
    "Robustness": robustness,
    "Models on demand": on_demand,
    "Texts": texts,
    "When not to use it": when_not,
    "Commands and what they cost": commands,
}


def make_page(paper: Paper, scale: Scale, store: Store) -> Page:
    """Return the page of one scale."""
    assert isinstance(scale, OwnScale)
    title = "covey, a trial run" if scale.local_only else "covey, Covey's own method, against all others"
    return page_of_results(
        paper, scale, store, tuple(TITLES), OwnResults, title=title, opening=(opening, goals), sections=_SECTIONS
    )
