"""The demo's sentences, read back and compared with numbers that are computed without the demo's code.

Flipped labels come from the samples themselves, accuracies from the lines of `metrics.jsonl`, and intervals from SciPy.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import covey
from covey import Config
from covey.core.build import build_federation

FEDERATIONS = 10
DIGITS = {3: 0.4, 8: 0.4, 9: 0.2}

ODD = re.compile(
    r"Without any training, (\d+) of 60 clients stand out: ([\d, and]+), exactly those whose labels were flipped\."
)
COST = re.compile(
    r"Over rounds 31 to 60, skew costs FedAvg ([\d.]+) ± ([\d.]+) points of accuracy; "
    r"our method covey wins back ([\d.]+) ± ([\d.]+) of them, and FedACS loses another ([\d.]+) ± ([\d.]+)"
    r": (\d+) % of its invitations go to the (\d+) % of clients with the same digits\."
)
SITE = re.compile(
    r"For a site that sees only the digits 3, 8 and 9, a model on demand raises accuracy from ([\d.]+) to ([\d.]+) % "
    r"\(± ([\d.]+) points\), ([\d.]+) ± ([\d.]+) points above the same model trained on with everyone\."
)
"""The sentences when each difference is claimed: anything else, such as "within the noise", does not match."""


def claims(answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every sentence of a demo with what it claims and whether that is true; an unmade claim is None."""
    sentences = [answer["sentence"] for answer in answers["answers"]]
    folder, seeds = Path(answers["folder"]), answers["answers"][1]["seeds"]
    checked = (_odd(sentences[0], seeds[0]), _cost(sentences[1], folder, seeds), _site(sentences[2], folder, seeds))
    return [{"sentence": sentence, "true": true} for sentence, true in zip(sentences, checked, strict=True)]


def _odd(sentence: str, seed: int) -> bool | None:
    said = ODD.fullmatch(sentence)
    if said is None:
        return None
    config = Config.of(environment="uniform", clients=60, altered={"poison": 0.1}, seed=seed)
    federation = build_federation(config)
    labels = federation.dataset.y
    flipped = [
        client for client in range(60) if bool((federation.labels(client) != labels[federation.parts[client]]).all())
    ]
    named = [int(number) for number in re.findall(r"\d+", said[2])]
    return named == flipped and len(flipped) == 6 == int(said[1])


def _cost(sentence: str, folder: Path, seeds: Sequence[int]) -> bool | None:
    said = COST.fullmatch(sentence)
    if said is None:
        return None
    late = {
        method: np.array([late_accuracy(folder / "skew" / method / f"seed-{seed}") for seed in seeds])
        for method in ("fedavg", "covey", "fedacs", "iid")
    }
    cost, won, lost = (
        late["iid"] - late["fedavg"],
        late["covey"] - late["fedavg"],
        late["fedavg"] - late["fedacs"],
    )
    return all(
        _says(said[place], said[place + 1], values) for place, values in ((1, cost), (3, won), (5, lost))
    ) and bool(won.mean() <= cost.mean() and [said[7], said[8]] == _majority(folder, seeds))


def _majority(folder: Path, seeds: Sequence[int]) -> list[str]:
    """Return FedACS's invitations of the clients with digits 0 and 1 alone, and these clients, in percent of all."""
    invited, clients = [], []
    for seed in seeds:
        run = folder / "skew" / "fedacs" / f"seed-{seed}"
        federation = build_federation(covey.Run.open(run).config)
        inside = np.array([bool((federation.labels(client) < 2).all()) for client in range(40)])
        clients.append(inside.mean())
        invited.append(np.mean([inside[row["clients"]].mean() for row in _rows(run)]))
    return [f"{100 * np.mean(share):.0f}" for share in (invited, clients)]


def _site(sentence: str, folder: Path, seeds: Sequence[int]) -> bool | None:
    said = SITE.fullmatch(sentence)
    if said is None:
        return None
    jobs = [folder / "on-demand" / f"federation-{number}" for number in range(1, len(seeds) + 1)]
    before = np.array([on_mix(folder / "skew" / "covey" / f"seed-{seed}") for seed in seeds])
    after, longer = (np.array([on_mix(job / name) for job in jobs]) for name in ("target-1", "continued"))
    return (
        said[1] == f"{100 * before.mean():.1f}"
        and said[2] == f"{100 * after.mean():.1f}"
        and _says(f"{100 * (after - before).mean():.1f}", said[3], after - before)
        and _says(said[4], said[5], after - longer)
    )


def _says(mean: str, half: str, values: np.ndarray) -> bool:
    """True if "mean ± half" are those of `values`, in points, and the interval excludes zero."""
    points = 100 * values
    low, high = stats.t.interval(0.95, len(points) - 1, loc=points.mean(), scale=stats.sem(points))
    assert len(points) == FEDERATIONS
    near = abs(float(mean) - points.mean()) < 0.051 and abs(float(half) - (high - low) / 2) < 0.051
    return near and bool(low > 0)


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def late_accuracy(folder: Path) -> float:
    """Return the mean accuracy over the second half of a run of 60 rounds."""
    rows = _rows(folder)
    assert len(rows) == 60
    return float(np.mean([row["accuracy"] for row in rows[30:]]))


def on_mix(folder: Path) -> float:
    """Return the accuracy on the mix after a run's last round."""
    by_class = _rows(folder)[-1]["class_accuracy"]
    return float(sum(share * by_class[digit] for digit, share in DIGITS.items()))
