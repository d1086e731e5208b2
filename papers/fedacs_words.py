"""What FedACS's page says before its tables: how it was made, and the result of each environment in a sentence."""

from papers.fedacs import BASELINE, ENVIRONMENTS, OURS, PAPER_IID, REFERENCE, Environment
from papers.fedacs_lines import ACSLines
from papers.openings import WHICH_SEEDS, ends, from_random, made_by, terminal_means
from papers.pages import Part, bullets, clearness, every_text
from papers.plan import ANY
from papers.statistics import paired_terminal, reached


def opening(about: ACSLines) -> list[Part]:
    scale = about.scale
    local = scale.authors
    extra = f"momentum {local['momentum']:g} and weight decay {local['weight_decay']:g}"
    extra += f", random crops after padding by {local['crop']}, random flips" if local.get("crop") else ""
    return [
        'Wang, Zhu, Wang and Han, "Federated Analytics Informed Distributed Industrial IoT Learning with Non-IID '
        'Data", IEEE TNSE 2022: its tables and figures beside what Covey measures.',
        f"{made_by(about.command, scale, about.store)} Settings: {scale.dataset}, {scale.clients} clients of "
        f"{scale.samples:,} samples, {scale.cohort} a round, {local['epochs']} epochs in batches of {local['batch']}, "
        f"rate {local['rate']:g} that falls by {local['decay']:g} with every local epoch, {scale.rounds:,} rounds, an "
        f"evaluation {every_text(scale.evaluate_every)}. Unless a section says otherwise, local training also has what "
        f"the authors' code has and the text leaves out ({extra}).",
        f"Accuracies are in percent. {terminal_means(about.window)} The paper reports medians of five trials, without "
        f"intervals. {WHICH_SEEDS}",
    ]


def in_words(about: ACSLines) -> list[Part]:
    """The result of each environment in a sentence."""
    said = []
    for environment in ENVIRONMENTS:
        base = about.line(environment.name, BASELINE)
        pair = paired_terminal(about.line(environment.name, OURS), base, about.window)
        if pair is None:
            continue
        ours = about.line(environment.name, OURS)
        rounds = min(reached(line[seed]) for line in (ours, base) for seed in pair.seeds)
        printed = environment.accuracy
        paper = f"{printed[OURS] - printed[BASELINE]:+.1f}" if printed else ""
        sentence = f"{environment.title}: FedACS {ends(rounds, about.scale.rounds)} {from_random(about, pair, paper)}"
        gap = paired_terminal(about.line(ANY, REFERENCE), base, about.window)
        if gap is not None:
            sentence += f", IID {about.points(gap.difference)}"
            sentence += f" (in the paper {PAPER_IID - printed[BASELINE]:+.1f})" if printed else ""
        said.append(f"{sentence}.{_against_rival(about, environment)}")
    return bullets(said)


def _against_rival(about: ACSLines, environment: Environment) -> str:
    """How FedACS does against the method that comes closest to it in the paper, as the authors compared it."""
    pair = paired_terminal(
        about.line(environment.name, OURS), about.line(environment.name, "oort-simple"), about.window
    )
    if pair is None:
        return ""
    sentence = f" Against Oort as compared {about.points(pair.difference)} ({clearness(pair.difference)}"
    if environment.accuracy:
        sentence += f"; in the paper {environment.accuracy[OURS] - environment.accuracy['oort-simple']:+.1f}"
    return sentence + ")."
