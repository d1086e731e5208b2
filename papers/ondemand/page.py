"""On-Demand FL's page: its sections in order, and the table of its runs."""

from papers.assembly import ORIGIN, Sections, assembled, origin, page_command, usable_results
from papers.grid import Paper, Scale
from papers.ondemand.claims import claims
from papers.ondemand.figures import figure_4, figure_5
from papers.ondemand.results import OnDemandResults
from papers.ondemand.scales import OnDemandScale
from papers.ondemand.tables import all_local, table_2, table_3, table_4, table_5
from papers.ondemand.text import deviations, introduction, setup
from papers.page import Page, Part, Table
from papers.store import Store

_SECTIONS: Sections[OnDemandResults] = {
    "Table 2: accuracy on the target": table_2,
    "Local, over all clients": all_local,
    "Table 3: estimated class shares": table_3,
    "Table 4: rounds of fine-tuning": table_4,
    "Table 5: composed mixes and number of clients": table_5,
    "Figure 4: learning curves": figure_4,
    "Figure 5: errors by client": figure_5,
    "Differences from the paper": deviations,
    "Setup": setup,
}


def make_page(paper: Paper, scale: Scale, store: Store) -> Page:
    """Return the page of one scale."""
    assert isinstance(scale, OnDemandScale)
    usable, notes = usable_results(paper, scale, store)
    results = OnDemandResults(scale, usable, page_command(paper, scale))
    title = "On-Demand FL, a trial run" if scale.local_only else "On-Demand FL, reproduced"
    opening = [*claims(results), *introduction(results)]
    return assembled(paper, scale, title, results, opening, _SECTIONS, usable, _runs(results), notes)


def _runs(results: OnDemandResults) -> Part:
    """Return the table of all runs that the page uses, with the runs of all targets in one row."""
    places = sorted({(result.environment, result.method) for result in results.store})
    if not places:
        return "None yet."
    rows = []
    for environment, method in places:
        runs = [result for result in results.store if (result.environment, result.method) == (environment, method)]
        rows.append(
            [
                environment,
                method,
                str(len({result.variant for result in runs})) if runs[0].branch else "-",
                ", ".join(map(str, sorted({result.seed for result in runs}))),
                f"{sum(result.finished for result in runs)} of {len(runs)}",
                *origin(runs),
            ]
        )
    return Table(("environment", "method", "targets", "seeds", "complete runs", *ORIGIN), rows)
