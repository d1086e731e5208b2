"""Figures 4, 8 and 9 of FedACS: what rewards tell of clients' skew, and whom the bandit invites."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from covey.arrays import FloatArray
from covey.environment.dominance import OBSERVED as OBSERVED_ALPHAS
from covey.job.comparison.statistics import Estimate
from papers.fedacs import BASELINE, ENVIRONMENTS, OBSERVED, OURS, POOL, TITLES
from papers.fedacs_lines import ACSLines, pool_variant
from papers.lines import ROUND
from papers.pages import MISSING, Chart, Part, Series, Table, spread
from papers.statistics import mean_by_window, numbers
from papers.store import Result


def figure_4(about: ACSLines) -> list[Part]:
    lines = {TITLES[name]: about.line(OBSERVED, name) for name in (BASELINE, OURS)}
    measured = {title: [r for r in line.values() if r.measurements] for title, line in lines.items()}
    words = (
        "The reward R of eq. 16 of every client, as if it took part in the next round, measured on the model after a "
        f"round; {about.scale.group} clients in each of six observation groups at α = 0, 0.2, … 1 among others with α "
        "uniform in [0, 1]. The paper shows that rewards drift but order the groups in any round, with some overlap; "
        "it gives no numbers."
    )
    if not any(measured.values()):
        return [words, about.missing("Figure 4", "figure-4")]
    rounds = sorted({one["round"] for runs in measured.values() for run in runs for one in run.measurements})
    rows = []
    for title, runs in measured.items():
        cells = []
        for at in rounds:
            values = [_rank_correlation(run, at) for run in runs]
            there = [value for value in values if value is not None]
            cells.append(spread(Estimate.of(there), "{:.2f}", 1.0) if there else "-")
        rows.append([title, *cells, str(len(runs))])
    columns = ("selection", *(f"round {at:,}" for at in rounds), "seeds")
    parts: list[Part] = [words, "Rank correlation (Spearman) of R with α over all clients:", Table(columns, rows)]
    runs = measured[TITLES[BASELINE]] or measured[TITLES[OURS]]
    run = runs[0]
    parts.append(f"The pictures are of {TITLES[run.method]}, seed {run.seed}.")
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
    parts.append(Chart("figure-4a", "Fig. 4 left: reward by group, median and range", ROUND, "R", series, "lines"))
    middle = min(run.measurements, key=lambda one: abs(one["round"] - about.scale.rounds / 2))
    scores = numbers(middle["scores"])
    sound = np.isfinite(scores)
    points = Series("clients", np.array(run.skew)[sound].tolist(), scores[sound].tolist())
    title = f"Fig. 4 right: reward and skew of all clients after round {middle['round']}"
    parts.append(Chart("figure-4b", title, "α", "R", [points], "points"))
    return parts


def _observed(run: Result, scores: Sequence[float | None]) -> list[FloatArray]:
    """The scores of the six observation groups, which are the last clients."""
    size = int(run.config["environment"]["group"])
    return np.split(numbers(scores)[-len(OBSERVED_ALPHAS) * size :], len(OBSERVED_ALPHAS))


def _rank_correlation(run: Result, at: int) -> float | None:
    for one in run.measurements:
        if one["round"] == at:
            scores = numbers(one["scores"])
            return float(
                stats.spearmanr(np.array(run.skew)[np.isfinite(scores)], scores[np.isfinite(scores)]).statistic
            )
    return None


def figure_8(about: ACSLines) -> list[Part]:
    lines = {about.title(m): about.line("uniform", m) for m in about.selecting(ENVIRONMENTS[0])}
    there = {title: line for title, line in lines.items() if line}
    words = (
        "Mean α of the invited clients, uniform environment. In the paper that of FedACS falls quickly and settles by "
        "round 200, and its mean R rises above that of random selection; only the curves are given. A client "
        "with few classes is easy to fit, so a high loss and little skew go together: selection by loss alone (Oort as "
        "compared) finds clients with little skew too, while the model is young."
    )
    if not there:
        return [words, about.missing("Figure 8", "figure-8")]
    early, late = max(1, about.scale.rounds // 20), max(1, about.scale.rounds // 5)
    rows, series = [], []
    for title, line in there.items():
        columns = [result.cohort_skew for result in line.values()]
        rounds, means = mean_by_window(columns)
        series.append(Series(title, rounds, means, place=about.places.get(title)))
        spans = ((0, early), (late - early, late), (about.scale.rounds - early, about.scale.rounds))
        rows.append([title, *(_mean_skew(columns, *span) for span in spans), about.seeds(line)])
    lowest = np.mean([np.mean(np.sort(r.skew)[: round(POOL * len(r.skew))]) for r in _all_runs(there)])
    names = (
        f"rounds 1 to {early:,}",
        f"{late - early + 1:,} to {late:,}",
        f"{about.scale.rounds - early + 1:,} to {about.scale.rounds:,}",
    )
    parts: list[Part] = [
        words,
        Table(("selection", *names, "seeds"), rows),
        f"The least skewed {100 * POOL:.0f} % of the clients have a mean α of {lowest:.2f}.",
        Chart("figure-8", "Fig. 8: mean α of the invited clients", ROUND, "mean α", series),
    ]
    rewards = []
    for name in (BASELINE, OURS):
        runs = [result for result in about.line(OBSERVED, name).values() if result.measurements]
        if runs:
            at = [one["round"] for one in runs[0].measurements]
            values = [
                float(np.nanmean([np.nanmean(numbers(one["scores"])[one["cohort"]]) for one in measured]))
                for measured in zip(*(run.measurements for run in runs), strict=False)
            ]
            rewards.append(Series(TITLES[name], at[: len(values)], values, place=about.places[TITLES[name]]))
    if rewards:
        parts.append(Chart("figure-8b", "Fig. 8: mean R of the next cohort", ROUND, "mean R", rewards, "both"))
    else:
        parts.append(about.missing("The rewards of figure 8", "figure-4"))
    return parts


def _all_runs(lines: dict[str, dict[int, Result]]) -> list[Result]:
    return [result for line in lines.values() for result in line.values()]


def _mean_skew(columns: Sequence[Sequence[float | None]], begin: int, end: int) -> str:
    values = [value for column in columns if len(column) >= end for value in column[begin:end] if value is not None]
    return f"{np.mean(values):.2f}" if values else "-"


def figure_9(about: ACSLines) -> list[Part]:
    small = about.scale.small_pool
    lines = {
        f"FedACS, λ = {POOL:g}": (about.line("uniform", OURS), POOL),
        f"FedACS, λ = {small:g}": (about.line("uniform", OURS, pool_variant(small)), small),
        "random": (about.line("uniform", BASELINE), POOL),
    }
    words = (
        "How often each client was invited, clients in order of their α, uniform environment, mean over seeds. In the "
        "paper the first λN clients are invited far more often than the rest; only the bars are given."
    )
    rows, series = [], []
    for title, (line, pool) in lines.items():
        if not line:
            rows.append([title, f"{100 * pool:.0f} %", MISSING, "0", "0"])
            continue
        hits = np.mean([np.array(r.hits)[np.argsort(r.skew, kind="stable")] for r in line.values()], axis=0)
        series.append(Series(title, list(range(1, len(hits) + 1)), hits.tolist()))
        shares = [_share_of_lowest(result, pool) for result in line.values()]
        share = spread(Estimate.of(shares)) + " %"
        rows.append([title, f"{100 * pool:.0f} %", share, about.seeds(line), about.rounds_run(line)])
    columns = ("selection", "least skewed clients", "invitations that went to them", "seeds", "rounds")
    parts: list[Part] = [words, Table(columns, rows)]
    if not series:
        return [*parts, about.missing("Figure 9", "figure-9")]
    title = "Fig. 9: invitations by rank of skew"
    return [*parts, Chart("figure-9", title, "clients by α, the least skewed first", "invitations", series)]


def _share_of_lowest(result: Result, pool: float) -> float:
    """Share of all invitations that went to the `pool` least skewed clients."""
    order = np.argsort(result.skew, kind="stable")[: round(pool * len(result.skew))]
    return float(np.array(result.hits)[order].sum() / max(1, sum(result.hits)))
