"""Figures 2, 5, 6, 7 and 10 of FedACS: accuracy."""

import numpy as np

from papers.curves import Line, on_common_seeds
from papers.fedacs.results import FedACSResults, pool_variant
from papers.fedacs.scales import BASELINE, ENVIRONMENTS, OURS, OVERHEAD, POOL, REFERENCE, TITLES
from papers.fedacs.text import PROSE
from papers.grid import ANY
from papers.page import ACCURACY, Chart, Part, Table
from papers.wording import MISSING


def figure_2(results: FedACSResults) -> list[Part]:
    """Accuracy lost to skew, by environment."""
    lines = {"IID": results.line(ANY, REFERENCE, "section3")}
    drops = {one.title: one.drop for one in ENVIRONMENTS if one.drop is not None}
    lines |= {one.title: results.line(one.name, BASELINE, "section3") for one in ENVIRONMENTS if one.drop is not None}
    rows = []
    for title, line in lines.items():
        rows.append(
            [
                title,
                f"-{drops[title]:.1f}" if title in drops else "-",
                results.difference(line, lines["IID"]),
                results.terminal(line),
                results.seeds(line),
                results.rounds_run(line),
            ]
        )
    columns = ("environment", "points against IID, paper", "ours", "terminal accuracy", "seeds", "rounds")
    missing = results.missing("Figure 2", "figure-2")
    return [
        PROSE("figure-2", scale=results.scale),
        Table(columns, rows),
        *results.curves("figure-2", "Fig. 2: test accuracy by environment", lines, missing),
    ]


def figure_5(results: FedACSResults) -> list[Part]:
    """Accuracy by number of IID clients."""
    counts = results.scale.client_numbers
    lines = {f"{count} clients": results.line("iid", BASELINE, f"clients{count}") for count in counts}
    largest = max(counts)
    rows = [[title, *results.compared(line, lines[f"{largest} clients"])] for title, line in lines.items()]
    columns = ("clients", "terminal accuracy", f"points against {largest} clients", "seeds", "rounds")
    missing = results.missing("Figure 5", "figure-5")
    return [
        PROSE("figure-5", scale=results.scale),
        Table(columns, rows),
        *results.curves("figure-5", "Fig. 5: test accuracy by number of clients", lines, missing),
    ]


def figure_6(results: FedACSResults) -> list[Part]:
    """Learning curves of every environment."""
    parts: list[Part] = [PROSE("figure-6")]
    for environment in ENVIRONMENTS:
        own = {results.title(m): results.line(environment.name, m) for m in results.selecting(environment)}
        if not any(own.values()):
            group = f"table-2 --environments {environment.name}"
            parts.append(results.missing(f"Figure 6, {environment.title}", group))
            continue
        lines = {TITLES[REFERENCE]: results.line(ANY, REFERENCE), **own}
        name = f"figure-6-{environment.name}"
        parts += results.curves(name, f"Fig. 6: {environment.title}", lines, results.missing("Figure 6", "table-2"))
    return parts


def figure_7(results: FedACSResults) -> list[Part]:
    """Terminal accuracy by λ."""
    pools = sorted((*results.scale.pools, POOL))
    lines, base = results.over_values("uniform", OURS, {pool: pool_variant(pool) for pool in pools}, BASELINE)
    rows = [[f"{pool:g}", *results.compared(line, base)] for pool, line in lines.items()]
    columns = ("λ", "ours", "points against random", "seeds", "rounds")
    parts: list[Part] = [PROSE("figure-7"), Table(columns, rows)]
    series = results.by_value(lines, OURS, base, BASELINE)
    if not series:
        return [*parts, results.missing("Figure 7", "figure-7")]
    return [*parts, Chart("figure-7", "Fig. 7: terminal accuracy by λ", "λ", ACCURACY, series, "both")]


def figure_10(results: FedACSResults) -> list[Part]:
    """Accuracy and overhead with insights in all rounds or in the first ones only."""
    stop, rounds = results.scale.early_stop, results.scale.rounds
    early = f"FedACS, insights for {stop} rounds"
    variants = {TITLES[OURS]: "", early: f"early{stop}"}
    lines = on_common_seeds({title: results.line("uniform", OURS, variant) for title, variant in variants.items()})
    whole = lines[TITLES[OURS]]
    epochs = int(results.scale.authors["epochs"])
    printed = {TITLES[OURS]: OVERHEAD["whole"], early: OVERHEAD["early"]}
    rows = []
    for title, line in lines.items():
        share = 1.0 if line is whole else min(1.0, stop / rounds)
        rows.append(
            [
                title,
                results.terminal(line),
                results.difference(line, whole),
                printed[title]["bytes"],
                _overhead(line),
                printed[title]["work"],
                f"{100 * share / epochs:.1f}",
                results.seeds(line),
                results.rounds_run(line),
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
    missing = results.missing("Figure 10", "figure-10")
    return [
        PROSE("figure-10", epochs=epochs),
        Table(columns, rows),
        *results.curves("figure-10", "Fig. 10: early stop", lines, missing),
    ]


def _overhead(line: Line) -> str:
    """Cell: bytes of probes over all others, in percent."""
    shares = []
    for result in line.values():
        up, down, probes = (result.evaluated[name][-1] for name in ("bytes_up", "bytes_down", "probe_bytes"))
        shares.append(probes / max(1, up + down - probes))
    return f"{100 * np.mean(shares):.2f}" if shares else MISSING
