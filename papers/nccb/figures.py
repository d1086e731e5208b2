"""Figures 3 to 5 of NCCB: terminal accuracy over values of a setting."""

from collections.abc import Mapping

from papers.nccb.results import NCCBResults
from papers.nccb.scales import BASELINE, BITS, OURS
from papers.nccb.text import PROSE
from papers.page import ACCURACY, Chart, Part, Table


def figure_3(results: NCCBResults) -> list[Part]:
    """Terminal accuracy by exploring threshold."""
    scale = results.scale
    thresholds = sorted((*scale.thresholds, scale.threshold))
    variants = {float(k): "" if k == scale.threshold else f"threshold{k}" for k in thresholds}
    return [PROSE("figure-3", scale=scale), *_sweep(results, "figure-3", "exploring threshold k", variants)]


def figure_4(results: NCCBResults) -> list[Part]:
    """Terminal accuracy by number of clients."""
    counts = sorted({count for corpus in results.scale.corpora for count in corpus.fewer_clients})
    variants = {float(count): f"clients{count}" for count in counts}
    return [PROSE("figure-4"), *_sweep(results, "figure-4", "clients", variants, whole=True)]


def figure_5(results: NCCBResults) -> list[Part]:
    """Terminal accuracy by length of a context."""
    lengths = sorted((*results.scale.bits, BITS))
    variants = {float(bits): "" if bits == BITS else f"bits{bits}" for bits in lengths}
    return [PROSE("figure-5"), *_sweep(results, "figure-5", "bits", variants)]


def _sweep(
    results: NCCBResults, name: str, setting: str, variants: Mapping[float, str], *, whole: bool = False
) -> list[Part]:
    """Return tables and charts over values of a setting, one of each per corpus, over common seeds.

    `whole` adds the run of the tables at the corpus's own number of clients.
    """
    parts: list[Part] = []
    missing = False
    for corpus in results.scale.corpora:
        values = {**variants, **({float(corpus.clients): ""} if whole else {})}
        lines, base = results.over_values(corpus.name, OURS, dict(sorted(values.items())), BASELINE)
        rows = [[corpus.title, f"{value:g}", *results.compared(line, base)] for value, line in lines.items()]
        parts.append(Table(("data", setting, "ours", "points against random", "seeds", "rounds"), rows))
        series = results.by_value(lines, OURS, base, BASELINE)
        if not series:
            missing = True
            continue
        title = f"Fig. {name[-1]}: {corpus.title}, terminal accuracy by {setting}"
        parts.append(Chart(f"{name}-{corpus.name}", title, setting, ACCURACY, series, "both"))
    return [*parts, results.missing(f"Figure {name[-1]}", name)] if missing else parts
