"""Figures 4, 8 and 9 of FedACS: rewards against skew, and the clients that the bandit invites."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from covey.arrays import FloatArray
from covey.environment.dominance import OBSERVED as OBSERVED_ALPHAS
from covey.job.comparison.statistics import Estimate
from papers.curves import Line, mean_by_window, numbers
from papers.fedacs.results import FedACSResults, pool_variant
from papers.fedacs.scales import BASELINE, ENVIRONMENTS, OBSERVED, OURS, POOL, TITLES
from papers.fedacs.text import PROSE
from papers.page import ROUND, Chart, Part, Series, Table
from papers.store import Result
from papers.wording import MISSING, spread


def figure_4(results: FedACSResults) -> list[Part]:
    """Rewards of all clients against their skew."""
    lines = {TITLES[name]: results.line(OBSERVED, name) for name in (BASELINE, OURS)}
    measured = {title: [run for run in line.values() if run.measurements] for title, line in lines.items()}
    text = PROSE("figure-4", scale=results.scale)
    if not any(measured.values()):
        return [text, results.missing("Figure 4", "figure-4")]
    rounds = sorted({one["round"] for runs in measured.values() for run in runs for one in run.measurements})
    rows = []
    for title, runs in measured.items():
        cells = []
        for at in rounds:
            values = [_rank_correlation(run, at) for run in runs]
            found = [value for value in values if value is not None]
            cells.append(spread(Estimate.of(found), "{:.2f}", 1.0) if found else "-")
        rows.append([title, *cells, str(len(runs))])
    columns = ("selection", *(f"round {at:,}" for at in rounds), "seeds")
    run = (measured[TITLES[BASELINE]] or measured[TITLES[OURS]])[0]
    return [
        text,
        PROSE("figure-4-correlation"),
        Table(columns, rows),
        PROSE("figure-4-pictures", method=TITLES[run.method], seed=run.seed),
        *_reward_charts(run, results.scale.rounds),
    ]


def _reward_charts(run: Result, rounds: int) -> list[Part]:
    """Charts of one run: rewards by observation group, and rewards against skew near the middle round."""
    series = []
    for place, alpha in enumerate(OBSERVED_ALPHAS):
        groups = [_observed(run, one["scores"])[place] for one in run.measurements]
        series.append(
            Series(
                f"α = {alpha:g}",
                [one["round"] for one in run.measurements],
                [float(np.nanmedian(group)) for group in groups],
                [float(np.nanmin(group)) for group in groups],
                [float(np.nanmax(group)) for group in groups],
            )
        )
    middle = min(run.measurements, key=lambda one: abs(one["round"] - rounds / 2))
    scores = numbers(middle["scores"])
    finite = np.isfinite(scores)
    points = Series("clients", np.array(run.skew)[finite].tolist(), scores[finite].tolist())
    title = f"Fig. 4 right: reward and skew of all clients after round {middle['round']}"
    return [
        Chart("figure-4a", "Fig. 4 left: reward by group, median and range", ROUND, "R", series, "lines"),
        Chart("figure-4b", title, "α", "R", [points], "points"),
    ]


def _observed(run: Result, scores: Sequence[float | None]) -> list[FloatArray]:
    """Return the scores of the six observation groups, which are the environment's last clients."""
    size = int(run.config["environment"]["group"])
    as_split = numbers(scores)[np.argsort(run.client_order)]
    return np.split(as_split[-len(OBSERVED_ALPHAS) * size :], len(OBSERVED_ALPHAS))


def _rank_correlation(run: Result, at: int) -> float | None:
    for one in run.measurements:
        if one["round"] == at:
            scores = numbers(one["scores"])
            return float(
                stats.spearmanr(np.array(run.skew)[np.isfinite(scores)], scores[np.isfinite(scores)]).statistic
            )
    return None


def figure_8(results: FedACSResults) -> list[Part]:
    """Skew of the invited clients over rounds, and the rewards of the next cohort."""
    rounds = results.scale.rounds
    lines = {results.title(m): results.line("uniform", m) for m in results.selecting(ENVIRONMENTS[0])}
    found = {title: line for title, line in lines.items() if line}
    if not found:
        return [PROSE("figure-8"), results.missing("Figure 8", "figure-8")]
    early, late = max(1, rounds // 20), max(1, rounds // 5)
    spans = ((0, early), (late - early, late), (rounds - early, rounds))
    rows, series = [], []
    for title, line in found.items():
        columns = [result.cohort_skew for result in line.values()]
        at, means = mean_by_window(columns)
        series.append(Series(title, at, means, place=results.places.get(title)))
        rows.append([title, *(_mean_skew(columns, *span) for span in spans), results.seeds(line)])
    runs = [run for line in found.values() for run in line.values()]
    lowest = np.mean([np.mean(np.sort(run.skew)[: round(POOL * len(run.skew))]) for run in runs])
    names = (
        f"rounds 1 to {early:,}",
        f"{late - early + 1:,} to {late:,}",
        f"{rounds - early + 1:,} to {rounds:,}",
    )
    parts: list[Part] = [
        PROSE("figure-8"),
        Table(("selection", *names, "seeds"), rows),
        PROSE("figure-8-lowest", share=100 * POOL, lowest=lowest),
        Chart("figure-8", "Fig. 8: mean α of the invited clients", ROUND, "mean α", series),
    ]
    rewards = [one for name in (BASELINE, OURS) if (one := _cohort_rewards(results, name))]
    if rewards:
        parts.append(Chart("figure-8b", "Fig. 8: mean R of the next cohort", ROUND, "mean R", rewards, "both"))
    else:
        parts.append(results.missing("The rewards of figure 8", "figure-4"))
    return parts


def _cohort_rewards(results: FedACSResults, method: str) -> Series | None:
    """Return the mean reward of the next cohort after every measurement, over seeds."""
    runs = [result for result in results.line(OBSERVED, method).values() if result.measurements]
    if not runs:
        return None
    at = [one["round"] for one in runs[0].measurements]
    values = [
        float(np.nanmean([np.nanmean(numbers(one["scores"])[one["cohort"]]) for one in measured]))
        for measured in zip(*(run.measurements for run in runs), strict=False)
    ]
    return Series(TITLES[method], at[: len(values)], values, place=results.places[TITLES[method]])


def _mean_skew(columns: Sequence[Sequence[float | None]], begin: int, end: int) -> str:
    """Cell: mean skew of the cohorts of some rounds, over the runs that have reached the last of them."""
    values = [value for column in columns if len(column) >= end for value in column[begin:end] if value is not None]
    return f"{np.mean(values):.2f}" if values else "-"


def figure_9(results: FedACSResults) -> list[Part]:
    """Invitations by rank of skew."""
    small = results.scale.small_pool
    lines: dict[str, tuple[Line, float]] = {
        f"FedACS, λ = {POOL:g}": (results.line("uniform", OURS), POOL),
        f"FedACS, λ = {small:g}": (results.line("uniform", OURS, pool_variant(small)), small),
        "random": (results.line("uniform", BASELINE), POOL),
    }
    rows, series = [], []
    for title, (line, pool) in lines.items():
        if not line:
            rows.append([title, f"{100 * pool:.0f} %", MISSING, "0", "0"])
            continue
        hits = np.mean([np.array(run.hits)[np.argsort(run.skew, kind="stable")] for run in line.values()], axis=0)
        series.append(Series(title, list(range(1, len(hits) + 1)), hits.tolist()))
        share = spread(Estimate.of([_share_of_lowest(result, pool) for result in line.values()])) + " %"
        rows.append([title, f"{100 * pool:.0f} %", share, results.seeds(line), results.rounds_run(line)])
    columns = ("selection", "least skewed clients", "share of the invitations", "seeds", "rounds")
    parts: list[Part] = [PROSE("figure-9"), Table(columns, rows)]
    if not series:
        return [*parts, results.missing("Figure 9", "figure-9")]
    title = "Fig. 9: invitations by rank of skew"
    return [*parts, Chart("figure-9", title, "clients by α, the least skewed first", "invitations", series)]


def _share_of_lowest(result: Result, pool: float) -> float:
    """Return the share of all invitations that went to the `pool` least skewed clients."""
    order = np.argsort(result.skew, kind="stable")[: round(pool * len(result.skew))]
    return float(np.array(result.hits)[order].sum() / max(1, sum(result.hits)))
