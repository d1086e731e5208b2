"""What NCCB's page says before its tables: how it was made, on which data, and what holds of the paper's claims."""

from papers.nccb import BASELINE, BITS, OURS, TITLES, Corpus, Printed
from papers.nccb_lines import NCCBLines, rounds_saved, rounds_to_best
from papers.openings import NO_INTERVALS, WHICH_SEEDS, ends, from_random, made_by, terminal_means
from papers.pages import MISSING, Part, Table, bullets, counted, every_text, joined
from papers.statistics import apart, paired_terminal, reached


def opening(about: NCCBLines) -> list[Part]:
    scale, local = about.scale, about.scale.local
    standing = [f"{one.about} for {one.printed.name}" for one in scale.corpora if one.printed]
    clients = joined([f"{one.clients} clients ({one.title})" for one in scale.corpora])
    first = scale.corpora[0].dataset
    return [
        'Cao, Pan, Zhu and Liu, "Birds of a Feather Help: Context-aware Client Selection for Efficient Federated '
        'Learning", AAAI workshop 2022: its tables and figures beside what Covey measures.',
        "**These are not the paper's data.** "
        + (
            f"Super User and Yelp were not at hand, and others stand in for them: {joined(standing)}. "
            if standing
            else ""
        )
        + "These are of the same kind, texts by their users, and not of the same size, vocabulary or difficulty. So "
        "accuracies and rounds are not comparable with the paper's; whether selection helps, and which kind, is.",
        f"{made_by(about.command, scale, about.store)} Settings: {clients} of {first['samples']} samples, others held "
        f"back for testing; an LSTM of {scale.model['layers']} x {scale.model['hidden']} units that predicts the next "
        f"word; {scale.cohort} clients a round, {counted(int(local['epochs']), 'epoch')} in batches of "
        f"{local['batch']}, SGD at a rate of {local['rate']:g} that falls by {local['decay']:g} with every local "
        f"epoch, {scale.rounds:,} rounds, an evaluation {every_text(scale.evaluate_every)}. NCCB has {BITS} bits, "
        f"{scale.clusters} clusters and a threshold of {scale.threshold}. Stop words are kept; the paper removes them "
        "(see Stop words below).",
        "Accuracy is top-1, in percent, words outside the vocabulary counted as wrong. "
        f"{terminal_means(about.window)} {WHICH_SEEDS} {NO_INTERVALS}",
    ]


def in_words(about: NCCBLines) -> list[Part]:
    """The result on each corpus in a sentence."""
    said = []
    for corpus in about.scale.corpora:
        ours, base = (about.line(corpus.name, method) for method in (OURS, BASELINE))
        pair = paired_terminal(ours, base, about.window)
        if pair is not None:
            rounds = min(reached(line[seed]) for line in (ours, base) for seed in pair.seeds)
            paper = "" if corpus.printed is None else f"{_above(corpus.printed, BASELINE)} on {corpus.printed.name}"
            said.append(f"{corpus.title}: NCCB {ends(rounds, about.scale.rounds)} {from_random(about, pair, paper)}.")
    return bullets(said)


def _above(printed: Printed, method: str) -> str:
    """Points that NCCB is above another method in the paper."""
    return f"{printed.accuracy[OURS] - printed.accuracy[method]:+.2f}"


def what_holds(about: NCCBLines) -> list[Part]:
    """The paper's claims, each beside what it comes to on our texts."""
    rows = []
    for method in (BASELINE, "k-linucb", "oort-simple"):
        paper = [f"{_above(one.printed, method)} ({one.printed.name})" for one in about.scale.corpora if one.printed]
        ours = [_verdict(about, corpus, method) for corpus in about.scale.corpora]
        rows.append([f"NCCB ends above {TITLES[method]}, in points", ", ".join(paper) or "-", *ours])
    paper = [f"{one.printed.saved[OURS]:.0f} % ({one.printed.name})" for one in about.scale.corpora if one.printed]
    saved = [_rounds_verdict(about, corpus) for corpus in about.scale.corpora]
    rows.append(["rounds that NCCB saves to random's best", ", ".join(paper) or "-", *saved])
    columns = ("claim", "paper, other data", *(corpus.title for corpus in about.scale.corpora))
    return ["What holds of the paper's claims on these texts:", Table(columns, rows)]


def _verdict(about: NCCBLines, corpus: Corpus, method: str) -> str:
    """NCCB's difference to another method, and whether it bears the claim out."""
    pair = paired_terminal(about.line(corpus.name, OURS), about.line(corpus.name, method), about.window)
    if pair is None:
        return MISSING
    difference = pair.difference
    clear = apart(difference)
    said = "one seed" if clear is None else "within the noise" if not clear else "holds"
    if clear and difference.mean < 0:
        said = "does not hold"
    return f"{about.points(difference)}: {said}"


def _rounds_verdict(about: NCCBLines, corpus: Corpus) -> str:
    pairs = rounds_to_best(about.line(corpus.name, OURS), about.line(corpus.name, BASELINE))
    if not pairs:
        return MISSING
    fewer = sum(own is not None and own < before for own, before in pairs)
    saved = rounds_saved(pairs)
    share = "" if saved is None else f"{saved:.0f} %, "
    return f"{share}fewer with {fewer} of {counted(len(pairs), 'seed')}"
