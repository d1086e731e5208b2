"""Tables of the comparison: each setting, the ablation, robustness, on demand and texts."""

from covey.job.comparison.statistics import Estimate, best_accuracy
from papers.curves import Line
from papers.own.lines import PREFIXES, TUNED, TUNED_FROM_OURS
from papers.own.results import OwnResults, label
from papers.own.scales import (
    AVERAGED,
    BASELINE,
    CLIENT_PART,
    CORRECTED,
    FACTORS,
    FEW,
    OTHERS,
    OURS,
    PLUS,
    PRINTED,
    REFERENCE,
    SELECTING,
    SKEWED,
)
from papers.own.text import PROSE
from papers.page import Part, Table
from papers.wording import MISSING, spread

LINES = (
    (OURS, ""),
    *((name, PLUS) for name in (*SELECTING, *OTHERS, REFERENCE)),
    *((name, AVERAGED) for name in (*PRINTED, "feddrl", *CLIENT_PART, REFERENCE)),
    (OURS, CORRECTED),
)
"""Lines of the tables, as far as they are run."""


def skewed(results: OwnResults) -> list[Part]:
    """FedACS's environments."""
    rows = []
    for environment, title in SKEWED.items():
        for method, variant in LINES:
            line = results.line(environment, method, variant)
            if not line and (method, variant) not in ((OURS, ""), *((name, PLUS) for name in SELECTING)):
                continue
            own = (method, variant) == (OURS, "")
            rows.append(
                [
                    title,
                    label(method, variant),
                    results.terminal(line),
                    _raw(results, line),
                    "-" if own else _points(results, results.against(environment, method, variant)),
                    _share(results.rounds_against_random(environment, method, variant)),
                    results.seeds(line),
                    results.rounds_run(line),
                ]
            )
    columns = (
        "environment",
        "method",
        "accuracy",
        "before averaging",
        "covey against it",
        "rounds to random's accuracy (%)",
        "seeds",
        "rounds",
    )
    return [PROSE("skewed", scale=results.scale), Table(columns, rows), *_curves(results, SKEWED)]


def clustered(results: OwnResults) -> list[Part]:
    """FedDRL's federations."""
    rows = []
    for environment in results.scale.clustered_environments:
        for method, variant in LINES:
            line = results.line(environment, method, variant)
            if not line and (method, variant) not in ((OURS, ""), (BASELINE, PLUS), ("feddrl", AVERAGED)):
                continue
            late = Estimate.of([results.late(run) for run in line.values()]) if line else None
            raw = Estimate.of([results.raw_late(run) for run in line.values()]) if line else None
            best = Estimate.of([best_accuracy(run) for run in line.values()]) if line else None
            own = (method, variant) == (OURS, "")
            rows.append(
                [
                    environment,
                    label(method, variant),
                    results.spread(late) if late else MISSING,
                    results.spread(raw) if raw else "-",
                    results.spread(best) if best else "-",
                    "-" if own else _points(results, results.against(environment, method, variant, late=True)),
                    results.seeds(line),
                    results.rounds_run(line),
                ]
            )
    columns = (
        "federation",
        "method",
        "second half",
        "before averaging",
        "best",
        "covey against it, second half",
        "seeds",
        "rounds",
    )
    environments = {name: name for name in results.scale.clustered_environments}
    return [PROSE("clustered", scale=results.scale), Table(columns, rows), *_curves(results, environments)]


def ablation(results: OwnResults) -> list[Part]:
    """Selection x momentum x averaging x client correction, in few-class."""
    rows = []
    for method in FACTORS:
        for correction in ("", f"-{CORRECTED}"):
            cells = []
            for variant in (AVERAGED, PLUS):
                line = results.line(FEW, method, variant + correction)
                cells += [_raw(results, line), results.terminal(line)]
            seeds = results.seeds(results.line(FEW, method, AVERAGED + correction))
            rows.append([label(method, ""), "FedCM" if correction else "-", *cells, seeds])
    columns = ("selection", "clients", "neither", "averaged", "momentum", "momentum, averaged", "seeds")
    parts: list[Part] = [PROSE("ablation"), Table(columns, rows)]
    if not any(results.line(FEW, method, AVERAGED) for method in FACTORS):
        parts.append(results.missing("The ablation", "ablation"))
    return parts


def robustness(results: OwnResults) -> list[Part]:
    """The method in few-class where something is harder, and random selection with the same server."""
    scale, rows = results.scale, []
    variants = [
        "updates",
        "sampled",
        *(f"epsilon{epsilon:g}" for epsilon in scale.noise),
        *(f"availability{value:g}" for value in scale.availabilities),
        "flippers",
        "flippers-unguarded",
        *(f"cohort{cohort}" for cohort in scale.cohorts),
        *(f"rate{factor:.2g}" for factor in scale.rates),
    ]
    plain = results.line(FEW, OURS)
    for variant in ("", *variants):
        line = results.line(FEW, OURS, variant)
        other = results.line(FEW, BASELINE, f"{PLUS}-{variant}" if variant else PLUS)
        rows.append(
            [
                variant or "as it is",
                results.terminal(line),
                "-" if not variant else results.difference(line, plain),
                results.difference(line, other),
                str(sum(len(run.halved) for run in line.values())) if line else "-",
                results.seeds(line),
            ]
        )
    columns = ("few-class", "covey", "against as it is", "against random + momentum, averaged", "rate halved", "seeds")
    parts: list[Part] = [PROSE("robustness"), Table(columns, rows)]
    if not any(results.line(FEW, OURS, variant) for variant in variants):
        parts.append(results.missing("Robustness", "robustness"))
    return parts


def on_demand(results: OwnResults) -> list[Part]:
    """Models on demand from a base run of FedAvg, and from one of the method of half the rounds."""
    rows = []
    for target in PREFIXES:
        theirs, ours = (results.line("ondemand", method, target) for method in (TUNED, TUNED_FROM_OURS))
        best = [_best_on(line, target) for line in (theirs, ours)]
        common = sorted(set(best[0]) & set(best[1]))
        gain = Estimate.of([best[1][seed] - best[0][seed] for seed in common]) if common else None
        cells = [results.spread(Estimate.of(list(one.values()))) if one else MISSING for one in best]
        rows.append([target.upper(), *cells, _points(results, gain), str(len(common))])
    columns = ("target", "FedAvg's base run", "covey's, half of the rounds", "difference", "seeds")
    parts: list[Part] = [PROSE("on-demand", task=results.scale.task), Table(columns, rows)]
    if not any(results.line("ondemand", TUNED_FROM_OURS, target) for target in PREFIXES):
        parts.append(results.missing("On demand", "on-demand"))
    return parts


def _best_on(line: Line, target: str) -> dict[int, float]:
    """Return the best accuracy of each seed's run on its target."""
    found = {}
    for seed, run in line.items():
        accuracy = run.accuracy_on(target)
        if accuracy is not None and len(accuracy):
            found[seed] = float(accuracy.max())
    return found


def texts(results: OwnResults) -> list[Part]:
    """Next words."""
    rows = []
    for corpus in results.scale.texts:
        base = results.line(corpus.name, BASELINE, PLUS)
        for method, variant in ((OURS, ""), (BASELINE, PLUS), ("nccb", PLUS), ("oort", PLUS)):
            line = results.line(corpus.name, method, variant)
            rows.append([corpus.title, results.title(method), *results.compared(line, base)])
    columns = ("corpus", "method", "accuracy", "against random", "seeds", "rounds")
    parts: list[Part] = [PROSE("texts"), Table(columns, rows)]
    if not any(results.line(corpus.name, OURS) for corpus in results.scale.texts):
        parts.append(results.missing("Texts", "texts"))
    return parts


def _curves(results: OwnResults, environments: dict[str, str]) -> list[Part]:
    """Return a chart for each environment that has runs of the method."""
    parts: list[Part] = []
    lines = ((OURS, ""), *((name, PLUS) for name in SELECTING), (REFERENCE, PLUS))
    for name, title in environments.items():
        if not results.line(name, OURS):
            continue
        found = {label(*line): results.line(name, *line) for line in lines if results.line(name, *line)}
        parts += results.curves(f"curves-{name}", f"Test accuracy, {title}", found, "")
    return parts


def _raw(results: OwnResults, line: Line) -> str:
    return results.spread(Estimate.of([results.raw(run) for run in line.values()])) if line else "-"


def _points(results: OwnResults, gain: Estimate | None) -> str:
    return "-" if gain is None else results.points(gain)


def _share(share: Estimate | None) -> str:
    return "-" if share is None else spread(share, "{:.0f}")
