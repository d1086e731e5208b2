"""What FedDRL's page says before its tables: how it was made, and the result on the first environments."""

from covey.experiments.feddrl import BASELINE, CONTROL, DELTA, METHODS, OURS, SET, SPLITS, TITLES, environment_name
from covey.experiments.feddrl_lines import CLUSTERED, DRLLines, best, paired, usual
from covey.experiments.feddrl_printed import printed
from covey.experiments.openings import NO_INTERVALS, WHICH_SEEDS, made_by
from covey.experiments.pages import Part, bullets, clearness, counted, joined


def opening(about: DRLLines) -> list[Part]:
    scale, local = about.scale, about.scale.local
    numbers = (scale.few, scale.many)
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
        "federation of the same kind with another seed, and decide without learning further; what learning in the run "
        'itself does is under "Agents without a first stage". Their options are the defaults of `feddrl` (the reading '
        "of the paper that its authors' code has: means softmaxed, deviations at most a tenth, rewards negated) "
        'and of `feddrl-set`. "Loss softmax" is the control that an agent has to beat: impact factor = softmax of '
        "8 x l_b / Σ l_b.",
        "Accuracy is the best over all evaluations, in percent, as in the paper, where nothing else is said. ± is half "
        "of Student's 95 % interval over seeds; differences are taken seed by seed, up to the last round that both "
        f"have come to. {WHICH_SEEDS} {NO_INTERVALS}",
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
        for method, base in ((OURS, BASELINE), (SET, BASELINE), (SET, CONTROL)):
            pair, usually = (paired(lines[method], lines[base], figure) for figure in (best, usual))
            if pair is None or usually is None:
                continue
            sentence = (
                f"{data.title}, {clients} clients, {SPLITS[split]}: the best accuracy of {TITLES[method]} is "
                f"{about.points(pair)} points from that of {TITLES[base]} ({clearness(pair)}"
            )
            if base == BASELINE and paper:
                sentence += f"; in the paper FedDRL's is {paper[OURS] - paper[BASELINE]:+.2f}"
            said.append(
                f"{sentence}), the mean over the second half of the rounds {about.points(usually)} points "
                f"({clearness(usually)})."
            )
    return bullets(said)
