"""FedACS's page, from stored runs: its sections in order, and figures 2, 5, 6, 7 and 10, which are of accuracy."""

from collections.abc import Callable

import numpy as np

from papers.fedacs import BASELINE, ENVIRONMENTS, METHODS, OURS, POOL, REFERENCE, TITLES, FedACSScale
from papers.fedacs_lines import ACSLines, pool_variant
from papers.fedacs_skew import figure_4, figure_8, figure_9
from papers.fedacs_tables import recipes, table_2, table_3
from papers.fedacs_words import in_words, opening
from papers.lines import ACCURACY
from papers.lines_page import page_of_lines
from papers.pages import MISSING, Chart, Page, Part, Table, not_yet
from papers.plan import ANY, Paper
from papers.statistics import Line, on_common_seeds
from papers.store import Store


def page_of(paper: Paper, scale: FedACSScale, store: Store) -> Page:
    """The page of one scale."""
    title = "FedACS, a trial of the machinery" if scale.local_only else "FedACS, reproduced"
    before = (opening, in_words)
    return page_of_lines(paper, scale, store, METHODS, ACSLines, title=title, opening=before, sections=_SECTIONS)


def _figure_2(about: ACSLines) -> list[Part]:
    lines = {"IID": about.line(ANY, REFERENCE, "section3")}
    drops = {one.title: one.drop for one in ENVIRONMENTS if one.drop is not None}
    lines |= {one.title: about.line(one.name, BASELINE, "section3") for one in ENVIRONMENTS if one.drop is not None}
    words = (
        f"Section III: random selection, {about.scale.own_samples} samples a client, none shared, batches of "
        f"{about.scale.own_batch}."
    )
    rows = []
    for title, line in lines.items():
        rows.append(
            [
                title,
                f"-{drops[title]:.1f}" if title in drops else "-",
                about.difference(line, lines["IID"]),
                about.terminal(line),
                about.seeds(line),
                about.rounds_run(line),
            ]
        )
    columns = ("environment", "points against IID, paper", "ours", "terminal accuracy", "seeds", "rounds")
    return [
        words,
        Table(columns, rows),
        *about.curves("figure-2", "Fig. 2: test accuracy by environment", lines, about.missing("Figure 2", "figure-2")),
    ]


def _figure_5(about: ACSLines) -> list[Part]:
    largest = max(about.scale.client_numbers)
    lines = {f"{count} clients": about.line("iid", BASELINE, f"clients{count}") for count in about.scale.client_numbers}
    words = (
        f"IID clients of {about.scale.own_samples} samples, {about.scale.cohort} a round, and fewer and fewer of them. "
        "The paper shows that fewer data end lower and begin as fast; it gives no numbers."
    )
    whole = lines[f"{largest} clients"]
    rows = [[title, *about.compared(line, whole)] for title, line in lines.items()]
    columns = ("clients", "terminal accuracy", f"points against {largest} clients", "seeds", "rounds")
    return [
        words,
        Table(columns, rows),
        *about.curves(
            "figure-5", "Fig. 5: test accuracy by number of clients", lines, about.missing("Figure 5", "figure-5")
        ),
    ]


def _figure_6(about: ACSLines) -> list[Part]:
    parts: list[Part] = ["Test accuracy over rounds, mean and 95 % interval over seeds."]
    for environment in ENVIRONMENTS:
        lines = {TITLES[REFERENCE]: about.line(ANY, REFERENCE)}
        lines |= {about.title(m): about.line(environment.name, m) for m in about.selecting(environment)}
        own = {title: line for title, line in lines.items() if title != TITLES[REFERENCE]}
        if not any(own.values()):
            parts.append(
                not_yet(
                    f"Figure 6, {environment.title}",
                    f"{about.command} --only table-2 --environments {environment.name}",
                )
            )
            continue
        name = f"figure-6-{environment.name}"
        parts += about.curves(name, f"Fig. 6: {environment.title}", lines, about.missing("Figure 6", "table-2"))
    return parts


def _figure_7(about: ACSLines) -> list[Part]:
    pools = sorted((*about.scale.pools, POOL))
    lines, base = about.over_values("uniform", OURS, {pool: pool_variant(pool) for pool in pools}, BASELINE)
    words = (
        "Terminal accuracy by λ, the share of the clients that the pool holds; uniform environment. In the paper it "
        "rises from λ = 0.05, which ends below random selection, to 0.4 and falls again to 1, which is random "
        "selection; only the curves are given. Ours "
        "are over the seeds that all values have."
    )
    rows = [[f"{pool:g}", *about.compared(line, base)] for pool, line in lines.items()]
    parts: list[Part] = [words, Table(("λ", "ours", "points against random", "seeds", "rounds"), rows)]
    series = about.by_value(lines, OURS, base, BASELINE)
    if not series:
        return [*parts, about.missing("Figure 7", "figure-7")]
    return [*parts, Chart("figure-7", "Fig. 7: terminal accuracy by λ", "λ", ACCURACY, series, "both")]


def _figure_10(about: ACSLines) -> list[Part]:
    stop, rounds = about.scale.early_stop, about.scale.rounds
    variants = {TITLES[OURS]: "", f"FedACS, insights for {stop} rounds": f"early{stop}"}
    lines = on_common_seeds({title: about.line("uniform", OURS, variant) for title, variant in variants.items()})
    whole = lines[TITLES[OURS]]
    epochs = int(about.scale.authors["epochs"])
    papers = {TITLES[OURS]: ("0.69", "< 20"), f"FedACS, insights for {stop} rounds": ("0.14", "< 4")}
    rows = []
    for title, line in lines.items():
        share = 1.0 if line is whole else min(1.0, stop / rounds)
        rows.append(
            [
                title,
                about.terminal(line),
                about.difference(line, whole),
                papers[title][0],
                _overhead(line),
                papers[title][1],
                f"{100 * share / epochs:.1f}",
                about.seeds(line),
                about.rounds_run(line),
            ]
        )
    columns = (
        "insights",
        "terminal accuracy",
        "points against FedACS",
        "bytes added, paper (%)",
        "ours (%)",
        "client work added, paper (%)",
        "passes over samples added (%)",
        "seeds",
        "rounds",
    )
    parts: list[Part] = [
        "Uniform environment. In the paper the two curves almost overlap. Bytes added are those of the insights over "
        "all other bytes, up and down, as counted from the messages; passes over samples count an insight as one more "
        f"beside the {epochs} of training, although the last layer's gradient takes only its forward half. Both lines "
        "are over the seeds that both have.",
        Table(columns, rows),
    ]
    return [*parts, *about.curves("figure-10", "Fig. 10: early stop", lines, about.missing("Figure 10", "figure-10"))]


def _overhead(line: Line) -> str:
    """Bytes of measurements over all others, in percent."""
    shares = []
    for result in line.values():
        up, down, probes = (result.evaluated[name][-1] for name in ("bytes_up", "bytes_down", "probe_bytes"))
        shares.append(probes / max(1, up + down - probes))
    return f"{100 * np.mean(shares):.2f}" if shares else MISSING


_SECTIONS: dict[str, Callable[[ACSLines], list[Part]]] = {
    "Table II: terminal accuracy": table_2,
    "Table III: rounds to a target": table_3,
    "Local training, authors' code and as printed": recipes,
    "Figure 2: what skew costs": _figure_2,
    "Figure 4: do scores tell skew?": figure_4,
    "Figure 5: what few data cost": _figure_5,
    "Figure 6: learning curves": _figure_6,
    "Figure 7: size of the pool": _figure_7,
    "Figure 8: whom the bandit invites": figure_8,
    "Figure 9: invitations by skew": figure_9,
    "Figure 10: early stop and overhead": _figure_10,
}
