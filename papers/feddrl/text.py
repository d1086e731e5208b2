"""Text of FedDRL's page: the answer, how the page was made, and results in sentences."""

from collections.abc import Iterator, Mapping, Sequence

from covey.job.comparison.statistics import Estimate, Figure, best_accuracy, paired_difference, paired_values
from papers.curves import Line
from papers.feddrl.printed import printed_accuracy
from papers.feddrl.results import (
    CLUSTERED,
    FedDRLResults,
    environment_title,
    loss_mean,
    loss_variance,
    usual_accuracy,
    with_losses,
)
from papers.feddrl.scales import BASELINE, CONTROL, DELTA, METHODS, OURS, SET, SPLITS, TITLES, Data, environment_name
from papers.page import Part, Table
from papers.prose import SHARED, Prose
from papers.sentences import made_by, verdict
from papers.store import Result
from papers.wording import bullets, clearness, counted, every_text, joined

PROSE = Prose.beside(__file__)

FIGURES: Mapping[str, Figure[Result]] = {
    "the best accuracy": best_accuracy,
    "the mean over the second half": usual_accuracy,
}

_PAIRS = ((OURS, BASELINE), (SET, BASELINE), (CONTROL, BASELINE), (OURS, CONTROL), (SET, CONTROL))
"""Comparisons that the page leads with."""


def opening(results: FedDRLResults) -> list[Part]:
    """Return the answer on the first environments, and the setup."""
    data, clients = results.scale.first, results.scale.many
    gains: dict[str, dict[str, Estimate | None]] = {name: {} for name in FIGURES}
    sentences: list[str] = []
    rows: list[list[str]] = []
    for split in CLUSTERED:
        name = environment_name(data, split, clients)
        lines = {method: results.line(name, method) for method in METHODS}
        paper = printed_accuracy(data.name, clients, split)
        title = environment_title(data, clients, split)
        for figure in FIGURES:
            gains[figure][SPLITS[split]] = paired_difference(FIGURES[figure], lines[OURS], lines[BASELINE])
        sentences += _printed_gain(title, lines, paper)
        rows += _gain_rows(results, split, lines, paper)
    place = f"on {data.title}, {clients} clients, {{}}"
    verdicts = (verdict("FedDRL", "FedAvg", gains[name], f"{place}, by {name}") for name in FIGURES)
    better = " ".join(filter(None, verdicts))
    columns = (
        "split",
        "method",
        "against",
        "paper",
        "best",
        "best, clear of zero",
        "second half",
        "second half, clear of zero",
    )
    table: list[Part] = (
        [*PROSE.parts("gains", title=f"{data.title}, {clients} clients"), Table(columns, rows)] if rows else []
    )
    return [
        *([PROSE("answer", better=better)] if better else []),
        *bullets(sentences),
        *table,
        *PROSE.parts("paper"),
        *_setup(results),
    ]


def _gain_rows(
    results: FedDRLResults, split: str, lines: Mapping[str, Line], paper: Mapping[str, float]
) -> Iterator[list[str]]:
    """Rows: points of a method above another on one split, by both figures."""
    answers = {None: "one seed", True: "yes", False: "no"}
    for method, base in _PAIRS:
        gains = [paired_difference(figure, lines[method], lines[base]) for figure in FIGURES.values()]
        if any(gain is None for gain in gains):
            continue
        theirs = f"{paper[OURS] - paper[BASELINE]:+.2f}" if paper and (method, base) == (OURS, BASELINE) else "-"
        cells = [text for gain in gains if gain for text in (results.points(gain), answers[gain.clear_of_zero])]
        yield [SPLITS[split], TITLES[method], TITLES[base], theirs, *cells]


def _printed_gain(title: str, lines: Mapping[str, Line], paper: Mapping[str, float]) -> Iterator[str]:
    """Say if the paper's gain of FedDRL over FedAvg is reached, by FedDRL and by our form of it."""
    if not paper:
        return
    gain = paper[OURS] - paper[BASELINE]
    for method in (OURS, SET):
        gains = {name: paired_difference(figure, lines[method], lines[BASELINE]) for name, figure in FIGURES.items()}
        found = {name: one for name, one in gains.items() if one is not None}
        reached = [name for name, one in found.items() if 100 * one.mean >= gain]
        if reached:
            alone = " alone" if len(reached) < len(found) else ""
            fields = {"figures": joined(reached), "alone": alone}
            yield PROSE("gain-reached", environment=title, method=TITLES[method], gain=gain, **fields)
        elif found:
            yield PROSE("gain-not-reached", environment=title, method=TITLES[method], gain=gain)


def _setup(results: FedDRLResults) -> list[Part]:
    scale = results.scale
    numbers = (scale.few, scale.many)
    epochs = int(scale.local["epochs"])
    return [
        "## Setup",
        *PROSE.parts(
            "setup",
            made_by=made_by(results.command, scale, results.store),
            scale=scale,
            local=scale.local,
            epochs=counted(epochs, "epoch"),
            delta=DELTA,
            first=scale.first.title,
            sizes=joined([f"{scale.first.samples_each('ce', count):,} with {count} clients" for count in numbers]),
            evaluations=joined([f"{data.title} {every_text(data.evaluate_every)}" for data in scale.data]),
            which_seeds=SHARED("which-seeds"),
            no_intervals=SHARED("no-intervals"),
        ),
    ]


def deviations(results: FedDRLResults) -> list[Part]:
    """Return how the runs differ from the paper."""
    scale = results.scale
    return [*PROSE.parts("deviations", passes=scale.single_rounds * int(scale.local["epochs"]))]


def moved_sentence(results: FedDRLResults, where: str, change: str, line: Line, base: Line) -> list[str]:
    """Say how a way to train the agent changes both figures; nothing unless both lines have runs."""
    moved = {name: paired_difference(figure, line, base) for name, figure in FIGURES.items()} if line and base else {}
    found = [f"{name} by {results.points(gain)} points ({clearness(gain)})" for name, gain in moved.items() if gain]
    so_far = results.so_far(line) or results.so_far(base)
    return [PROSE("moved", where=where, change=change, figures=joined(found), so_far=so_far)] if found else []


def evenness_sentences(results: FedDRLResults, places: Sequence[tuple[Data, str, int]]) -> list[str]:
    """Say how evenly and how well models serve the clients, compared with FedAvg's."""
    sentences = []
    for data, split, clients in places:
        name = environment_name(data, split, clients)
        base = with_losses(results.line(name, BASELINE))
        for what, figure in (("variance", loss_variance), ("mean", loss_mean)):
            found = []
            for method in (OURS, SET, CONTROL):
                line = with_losses(results.line(name, method))
                gain = paired_difference(figure, line, base)
                if gain is not None:
                    own, others = paired_values(figure, line, base).mean(axis=1)
                    worth = clearness(gain) if gain.clear_of_zero is None else f"a difference {clearness(gain)}"
                    found.append(f"{own / others:.2f} times FedAvg's with {TITLES[method]} ({worth})")
            if found:
                place = environment_title(data, clients, split)
                sentences.append(PROSE("evenness", environment=place, what=what, ratios=joined(found)))
    return bullets(sentences)


def fastest_sentence(title: str, taken: Mapping[str, Estimate]) -> str:
    """Say which method reaches an accuracy first, and how much longer FedAvg and FedDRL take."""
    first = min(taken, key=lambda method: taken[method].mean)
    others = [
        f"{TITLES[method]} takes {taken[method].mean / taken[first].mean:.1f} times as many"
        for method in (BASELINE, OURS)
        if method in taken and method != first
    ]
    rest = f"; {joined(others)}" if others else ""
    return PROSE("fastest", environment=title, method=TITLES[first], rounds=taken[first].mean, others=rest)
