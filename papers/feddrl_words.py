"""What FedDRL's page says before its tables: how it was made, and the result on the first environments."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from covey.job.comparison.statistics import Estimate
from papers.feddrl import (
    BASELINE,
    CONTROL,
    DELTA,
    METHODS,
    OURS,
    SET,
    TITLES,
    Data,
    environment_name,
)
from papers.feddrl_lines import CLUSTERED, DRLLines, best, called, paired, pairs, uneven, usual
from papers.feddrl_printed import printed
from papers.openings import NO_INTERVALS, WHICH_SEEDS, made_by
from papers.pages import Part, bullets, clearness, counted, every_text, joined
from papers.statistics import Line, apart

_FIGURES = {"the best accuracy": best, "the mean over the second half": usual}
_PAPERS = "the paper's gain over FedAvg"


def opening(about: DRLLines) -> list[Part]:
    scale, local = about.scale, about.scale.local
    numbers = (scale.few, scale.many)
    evaluations = joined([f"{data.title} {every_text(data.evaluate_every)}" for data in scale.data])
    sizes = joined([f"{scale.first.each('ce', clients):,} with {clients} clients" for clients in numbers])
    return [
        'Nguyen et al., "FedDRL: Deep Reinforcement Learning-based Adaptive Aggregation for Non-IID Data in Federated '
        'Learning", ICPP 2022: its tables and figures beside what Covey measures.',
        f"{made_by(about.command, scale, about.store)} Settings: {scale.few} clients, all in every round, or "
        f"{scale.many}, of which {scale.cohort} a round; {counted(int(local['epochs']), 'epoch')} in batches of "
        f"{local['batch']} at a rate of {local['rate']:g}; {scale.rounds:,} rounds. CE: {DELTA:.0%} of the clients "
        "hold the same labels, the others different ones, sizes equal; CN: the same, sizes ±20 %; PA: sizes by a power "
        f"law. No two clients hold the same sample, which leaves a client of {scale.first.title} {sizes} in CE (the "
        "authors' lists have about 300 for 100 clients, which takes sharing). SingleSet is plain SGD on the data of "
        f"all clients, {scale.single_rounds * int(local['epochs'])} passes over them.",
        f"Agents are trained in two stages, by {scale.workers} workers over {scale.worker_rounds} rounds each on a "
        "federation of the same kind with another seed, and decide without learning further. That of FedDRL for sets "
        'begins as a rule of ours, not as a random network; what of its results is learned is under "FedDRL for sets '
        'without learning", and what learning in the run itself does under "Agents without a first stage". Their '
        "options are the defaults of `feddrl` (the reading of the paper that its authors' code has: means softmaxed, "
        "deviations at most a tenth, rewards negated) "
        'and of `feddrl-set`. "Loss softmax" is the control that an agent has to beat: impact factor = softmax of '
        "8 x l_b / Σ l_b.",
        f"Accuracy is the best over all evaluations ({evaluations}), in percent, as in the paper, where nothing else "
        "is said; of more evaluations the best is higher. ± is half of Student's 95 % interval over seeds; differences "
        f"are taken seed by seed, up to the last round that both have come to. {WHICH_SEEDS} {NO_INTERVALS}",
        "**CIFAR-100.** The paper's figures under this name are no target. The authors' runs loaded CIFAR-10 while "
        "their lists of samples were made for CIFAR-100, as their public logs say, and maxima in those logs are the "
        "printed figures; laid over CIFAR-10 these lists make clients that are close to IID. Here it is CIFAR-100.",
    ]


def in_words(about: DRLLines) -> list[Part]:
    """The result on the first environments in a sentence each."""
    said = []
    data, clients = about.scale.first, about.scale.many
    for split in CLUSTERED:
        name = environment_name(data, split, clients)
        lines = {method: about.line(name, method) for method in METHODS}
        paper = printed(data.name, clients, split)
        for method, base in ((OURS, BASELINE), (SET, BASELINE), (CONTROL, BASELINE), (OURS, CONTROL), (SET, CONTROL)):
            pair, usually = (paired(lines[method], lines[base], figure) for figure in (best, usual))
            if pair is None or usually is None:
                continue
            sentence = (
                f"{called(data, clients, split)}: the best accuracy of {TITLES[method]} is "
                f"{about.points(pair)} points from that of {TITLES[base]} ({clearness(pair)}"
            )
            if base == BASELINE and method != CONTROL and paper:
                sentence += f"; in the paper FedDRL's is {paper[OURS] - paper[BASELINE]:+.2f}"
            said.append(
                f"{sentence}), the mean over the second half of the rounds {about.points(usually)} points "
                f"({clearness(usually)})."
            )
        said += _gain_of_the_paper(about, called(data, clients, split), lines, paper)
    return bullets(said)


def _gain_of_the_paper(
    about: DRLLines, where: str, lines: Mapping[str, Line], paper: Mapping[str, float]
) -> Iterator[str]:
    """Whether what the paper says that FedDRL gains over FedAvg is gained by it, or by our form of it."""
    if not paper:
        return
    gain = paper[OURS] - paper[BASELINE]
    for method in (OURS, SET):
        gains = {name: paired(lines[method], lines[BASELINE], figure) for name, figure in _FIGURES.items()}
        there = {name: pair for name, pair in gains.items() if pair is not None}
        if there:
            reached = [name for name, pair in there.items() if 100 * pair.mean >= gain]
            alone = " alone" if len(reached) < len(there) else ""
            found = f"comes on average to {_PAPERS}" if reached else f"does not come to {_PAPERS}"
            by = f" by {joined(reached)}{alone}" if reached else ""
            yield f"{where}: {TITLES[method]} {found} ({gain:+.2f} points){by}."


def moved_in_words(about: DRLLines, where: str, what: str, line: Line, base: Line) -> list[str]:
    """What a way to train the agent does to both figures, as a sentence if both lines have runs."""
    moved = {name: paired(line, base, figure) for name, figure in _FIGURES.items()} if line and base else {}
    found = [f"{name} by {about.points(pair)} points ({clearness(pair)})" for name, pair in moved.items() if pair]
    waiting = about.so_far(line) or about.so_far(base)
    return [f"{where}: {what} moves {joined(found)}{waiting}."] if found else []


def evenness_in_words(about: DRLLines, places: Sequence[tuple[Data, str, int]]) -> list[Part]:
    """How much more or less evenly than FedAvg's the models of other methods serve the clients."""
    said = []
    for data, split, clients in places:
        name = environment_name(data, split, clients)
        base = _measured(about.line(name, BASELINE))
        found = []
        for method in (OURS, SET, CONTROL):
            line = _measured(about.line(name, method))
            pair = paired(line, base, uneven)
            if pair is not None:
                own, others = np.mean(pairs(line, base, uneven), axis=0)
                worth = clearness(pair) if apart(pair) is None else f"a difference {clearness(pair)}"
                found.append(f"{own / others:.2f} times FedAvg's with {TITLES[method]} ({worth})")
        if found:
            where = called(data, clients, split)
            said.append(
                f"{where}: the variance of clients' losses, over the second half of the rounds, is {joined(found)}."
            )
    return bullets(said)


def _measured(line: Line) -> Line:
    return {seed: run for seed, run in line.items() if np.isfinite(uneven(run))}


def fastest_in_words(where: str, taken: Mapping[str, Estimate]) -> str:
    """Who comes to an accuracy first, and how much longer FedAvg and FedDRL take."""
    first = min(taken, key=lambda method: taken[method].mean)
    others = [
        f"{TITLES[method]} takes {taken[method].mean / taken[first].mean:.1f} times as many"
        for method in (BASELINE, OURS)
        if method in taken and method != first
    ]
    rest = f"; {joined(others)}" if others else ""
    return f"{where}: the fastest on average is {TITLES[first]} ({taken[first].mean:.0f} rounds){rest}."
