"""How skewed each client is, without its data and without training: FedACS's federated analytics as a job of its own.

Clients receive a model and send what one full-batch step would change in its last layer (Wang et al. 2022, sections IV
and V). Nobody trains. Four things are read from these insights:

- `skew`: how far a client's class mix is from everyone's, 0 to 1. With a freshly initialised model the change of the
  last layer's bias is γ·(mean softmax - class shares), and the softmax hardly differs between clients, so half the
  summed distance from the mean bias is nearly the total variation distance of the class shares.
- `score`: the paper's Q_i = √M_i·‖Δw_i - mean Δw‖ (eq. 13). It is evidence rather than a degree of skew: among clients
  of different sizes, √M_i ranks the large before the skewed. One model's scores are comparable.
- `odd`: the class mix provably differs, by Hoeffding's inequality where its range is known (`Confidence`).
- `outlier`: the insight differs in a way that the client's class mix does not explain, so labels or inputs differ from
  the others' (`unexplained`). Flipped labels leave a class mix as plausible as any, and hardly move Q_i.

A model that was trained (`model_of`) answers another question. Where it is right, softmax and labels agree whatever
the class mix, and the bias says nothing about it any more; what it is wrong about, such as flipped labels, dominates
Q_i. So there `skew` is the distance ‖Δw_i - mean Δw‖, outliers are those of Q_i, and there is no bound: a trained model
depends on the samples that it is measured on.

What this reveals: whoever sees an insight of an untrained model can compute the client's class shares nearly exactly.
No sample leaves a client, but where class shares are secret, this analysis is not for you.
"""

import csv
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from covey.config import Config, overlay
from covey.data.dataset import Dataset
from covey.environments import FloatArray, IntArray
from covey.errors import Refusal, require
from covey.experiment import Run, as_config, as_configured, describing, expand, holdings_known
from covey.federations import GIVEN, Federation, build_federation
from covey.insight import Insight, vectors
from covey.layout import Layout, Slot
from covey.messages import Fault, Order, Replies, checked
from covey.models import build_model
from covey.randomness import key
from covey.records import replace_file
from covey.runtimes import runtimes
from covey.runtimes.devices import OnDevices
from covey.selection.fedacs import skewness_scores

BoolArray = NDArray[np.bool_]

ROUNDS = 3
"""Insight rounds by default, each from a model of its own; more hardly change the ranking."""

STANDS_OUT = 3.5
"""Median absolute deviations (scaled to a normal law's σ) above the median that make an outlier."""

_FEW = 5
"""Fewer clients than this have no usual spread to stand out from."""

_RANGE = 2.0
"""b - a of eq. 9: a sample's gradient for a bias of the last layer lies between -1 and 1."""

_NAMED = 20
"""Outliers that a sentence names at most."""

_COLUMNS = 1 << 18
_REWEIGHTINGS = 10
_RIDGE = 1e-3


@dataclass(frozen=True, eq=False)
class Confidence:
    """How sure one can be that a client's class mix differs from everyone's. All arrays are `[clients]`.

    Where a model adds the bias of its last layer to its logits, a sample's gradient for the bias of class c is
    softmax_c - 1[y = c], between -1 and 1 whatever the sample and the model: the range b - a of eq. 9 is 2 by
    construction (times γ, which is divided out here). Suppose that the M samples of a client are drawn like everyone's
    N, its own among them. Then d_c = (Δb_i - mean Δb)_c/γ (eq. 12) is how far a mean of M numbers lies from that of the
    pool they are drawn from, and by Hoeffding's inequality for draws without replacement (Serfling 1974)

        E exp(λ·d_c) ≤ exp(λ²·v/8),   v = (b - a)²·(1 - (M - 1)/N)/M.

    So that the mean is estimated from the very same clients (eq. 27) is no loss. Nor does it matter how the others
    differ among themselves: with independent samples and the client's expectation equal to the others' together,
    d_c = (1 - M/N)·(own mean - the others' mean), and Hoeffding's lemma has v = (b - a)²·(1/M - 1/N), smaller still.
    Because exp is convex, a mean of d_c over rounds has the same bound, however the rounds depend on each other, with
    N the samples of all clients that answered in any of them. Hence

        P(|d_c| ≥ t) ≤ 2·exp(-2t²/v),

    times the number of classes for the largest of them (Bonferroni), and times the number of clients for all of them.
    The models must not depend on the samples, which those that are freshly initialised do not.
    """

    deviation: FloatArray
    """max_c |d_c|: of the class in which the client differs most, about the difference of its share."""
    limit: FloatArray
    """What `deviation` would exceed, in any of the clients, with at most the probability `level` if all were alike."""
    p_values: FloatArray
    """Bound on the probability of such a deviation in a client like the others; not yet corrected over clients."""
    log_product: FloatArray
    """ln P_i of eqs. 30-32 over the K classes, the logarithm that eq. 33 forgets put in: K·ln 2 - 2M·Σd²/(b - a)²."""

    @classmethod
    def of(cls, deviations: FloatArray, samples: IntArray, level: float) -> "Confidence":
        """From d `[clients, classes]`, numbers of samples `[clients]`, and the probability of any false alarm."""
        clients, classes = deviations.shape
        largest = np.abs(deviations).max(axis=1)
        spread = _RANGE**2 * (1 - (samples - 1) / samples.sum()) / samples
        chances = 2 * classes * np.exp(-2 * largest**2 / spread)
        return cls(
            deviation=largest,
            limit=np.sqrt(spread * np.log(2 * classes * clients / level) / 2),
            p_values=np.minimum(1.0, chances),
            log_product=classes * np.log(2) - 2 * samples * np.square(deviations).sum(axis=1) / _RANGE**2,
        )

    @property
    def sureness(self) -> FloatArray:
        """1 - the bound corrected over all clients: the confidence at which a client would just be called odd."""
        sure: FloatArray = 1 - np.minimum(1.0, len(self.p_values) * self.p_values)
        return sure

    @property
    def product(self) -> FloatArray:
        """P_i, cut off at 1.

        A product of bounds, one for each class, that may be as large as 2 each: from 0 to 2^K, and no probability, for
        the classes are not independent. It orders clients of a size, the lowest being the most skewed, and above 1 it
        says nothing at all. `p_values` are what may be read as probabilities.
        """
        product: FloatArray = np.exp(np.minimum(0.0, self.log_product))
        return product


@dataclass(frozen=True, eq=False)
class Analysis:
    """What an analysis found. Arrays are over the clients that answered, ascending."""

    config: Config
    insight: str
    rounds: int
    level: float
    """Probability that any client is called odd if all were alike."""
    model_of: str | None
    """The run whose model was used; None for freshly initialised ones."""
    measure: Literal["class mix", "distance"]
    """What `skew` is: a distance of class mixes from 0 to 1, or the distance between insights, without a unit."""
    clients: IntArray
    samples: IntArray
    skew: FloatArray
    score: FloatArray
    """Q_i, mean over rounds."""
    score_rank: IntArray
    """1 is the highest Q_i, by the mean over rounds of the rank within a round."""
    confidence: Confidence | None
    strangeness: FloatArray | None
    """How far above the median a client is in what its class mix does not explain (or in Q_i), in deviations."""
    agreement: float | None
    """Mean rank correlation of two rounds' estimates of skew."""
    truth: FloatArray | None
    """True skew, where it is known; no part of the analysis."""
    names: tuple[str, ...] = ()
    """What the data calls its clients, where it does: of all clients of the federation."""
    missing: tuple[int, ...] = ()
    """Clients that were asked and never gave a usable answer."""
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be said, and why."""
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    """What it took here."""
    clock: float = 0.0
    """What it would have taken on the devices, in simulated seconds."""

    @cached_property
    def order(self) -> IntArray:
        """Positions, the most skewed first."""
        return np.argsort(-self.skew, kind="stable")

    @cached_property
    def rank(self) -> IntArray:
        """1 is the most skewed."""
        return _places(-self.skew)

    @cached_property
    def odd(self) -> BoolArray:
        """Whose class mix differs, with at most the probability `level` of a false alarm among all clients."""
        if self.confidence is None:
            return np.zeros(len(self.clients), dtype=np.bool_)
        return np.asarray(self.confidence.p_values * len(self.clients) <= self.level)

    @cached_property
    def outlier(self) -> BoolArray:
        """Whose insight differs in a way that the class mix does not explain. A rule of thumb, without a guarantee."""
        if self.strangeness is None:
            return np.zeros(len(self.clients), dtype=np.bool_)
        return np.asarray(self.strangeness > STANDS_OUT)

    @property
    def spearman(self) -> float | None:
        """Rank correlation of `skew` with the truth."""
        return None if self.truth is None else rank_correlation(self.skew, self.truth)

    @property
    def spearman_score(self) -> float | None:
        """Rank correlation of Q_i with the truth."""
        return None if self.truth is None else rank_correlation(-self.score_rank, self.truth)

    def name(self, position: int) -> str:
        """What the data calls the client, or else its number."""
        client = int(self.clients[position])
        return self.names[client] if self.names else str(client)

    @property
    def verdict(self) -> str:
        """Who is odd and who stands out, in a sentence or two."""
        count, said = len(self.clients), []
        if self.confidence is not None:
            number = int(self.odd.sum())
            said.append(
                f"{number} of {count} clients {'has an odd class mix' if number == 1 else 'have an odd class mix'} "
                f"(chance of any false alarm at most {self.level:.2g})."
            )
        if self.strangeness is not None:
            apart = [at for at in np.argsort(-self.strangeness, kind="stable").tolist() if self.outlier[at]]
            names = ", ".join(self.name(at) for at in apart[:_NAMED])
            more = f" and {len(apart) - _NAMED} more" if len(apart) > _NAMED else ""
            why = "in what class mixes do not explain" if self.confidence is not None else "in the score"
            said.append(f"Outliers {why}: {names}{more}." if apart else f"There are no outliers {why}.")
        return " ".join(said) or "The clients are ranked, and nothing more can be said of them."

    def each(self) -> list[dict[str, Any]]:
        """The figures of each client, the most skewed first; None for what could not be said."""
        sure, strange, truth = self.confidence, self.strangeness, self.truth
        return [
            {
                "client": int(self.clients[at]),
                "name": self.name(at),
                "samples": int(self.samples[at]),
                "rank": int(self.rank[at]),
                "skew": float(self.skew[at]),
                "score_rank": int(self.score_rank[at]),
                "score": float(self.score[at]),
                "odd": None if sure is None else bool(self.odd[at]),
                "confidence": None if sure is None else float(sure.sureness[at]),
                "p_value": None if sure is None else float(sure.p_values[at]),
                "deviation": None if sure is None else float(sure.deviation[at]),
                "limit": None if sure is None else float(sure.limit[at]),
                "product": None if sure is None else float(sure.product[at]),
                "log_product": None if sure is None else float(sure.log_product[at]),
                "outlier": None if strange is None else bool(self.outlier[at]),
                "strangeness": None if strange is None else float(strange[at]),
                "true_skew": None if truth is None else float(truth[at]),
            }
            for at in self.order.tolist()
        ]

    def as_mapping(self) -> dict[str, Any]:
        """The findings for JSON."""
        return {
            "dataset": self.config.dataset.as_mapping(),
            "environment": self.config.environment.as_mapping(),
            "model": self.config.model.as_mapping(),
            "seed": self.config.seed,
            "insight": self.insight,
            "rounds": self.rounds,
            "level": self.level,
            "model_of": self.model_of,
            "measure": self.measure,
            "clients": len(self.clients),
            "samples": int(self.samples.sum()),
            "odd": None if self.confidence is None else self.clients[self.odd].tolist(),
            "outliers": None if self.strangeness is None else self.clients[self.outlier].tolist(),
            "spearman": self.spearman,
            "spearman_score": self.spearman_score,
            "agreement": self.agreement,
            "missing": list(self.missing),
            "faults": [{"client": fault.client, "reason": fault.reason} for fault in self.faults],
            "notes": list(self.notes),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "clock": self.clock,
            "each": self.each(),
        }

    def write_csv(self, path: Path) -> Path:
        """Write a line for each client, the most skewed first."""
        rows = self.each()
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.getvalue().encode())
        except OSError as error:
            raise Refusal(f"The file {path} cannot be written: {error.strerror or error}.") from error
        return path

    def draw(self, path: Path) -> Path:
        """Write the findings as a page that opens in a browser, offline."""
        from covey.report.analysis import analysis_page

        return analysis_page(self, path)


def analyze(
    given: Mapping[str, Any] | Config | None = None,
    /,
    *,
    federation: Federation | None = None,
    model_of: Run | Path | str | None = None,
    among: Sequence[int] | None = None,
    rounds: int | None = None,
    level: float = 0.05,
    insight: str = "head",
    on_round: Callable[[dict[str, object]], None] | None = None,
    **settings: Any,
) -> Analysis:
    """Find out how skewed each client is, and which ones are odd, from a few rounds of insights; nobody trains.

    federation: your own data (see `covey.federation`), instead of a data set and an environment by name.
    model_of: a run (or its folder) whose model is used, on its federation unless settings say otherwise. It finds
        clients whose labels or inputs the model does not understand; freshly initialised models rank skew better.
    among: clients to ask, instead of all.
    rounds: insight rounds, each from a model initialised in its own way; 3, or 1 with a run's model.
    level: probability of calling any client odd if all were alike.
    insight: head (last layer), full (all parameters), or package.module:function.

    Other settings are those of `Config`: `covey.analyze(environment="dirichlet", clients=100)`.
    """
    begin = time.perf_counter()
    run = _opened(model_of, federation)
    config, held = _configured(given, settings, federation or (run.given if run else None), run)
    count = (1 if run else ROUNDS) if rounds is None else rounds
    require(count >= 1, f"rounds must be at least 1, not {count}.")
    require(run is None or count == 1, f"A run has one model, so its analysis has one round, not {count}.")
    require(0 < level < 1, f"level is a probability between 0 and 1, not {level:g}.")
    probe = Insight(rate=config.local.rate, kind=insight)
    asked = _asked(among, held.clients)
    require(len(asked) >= 2, "Clients are compared with each other, so an analysis needs at least two.")
    dataset = held.dataset
    module = build_model(config.model.name, dict(config.model.options), dataset.shape, dataset.classes, config.seed)
    layout = Layout.of(module)
    bias = bias_slot(module, layout, dataset)
    states = list(_states(config, dataset, layout, run, count))
    runtime = OnDevices(runtimes[config.runtime].part(held, module, config), config.devices, held.sizes, config.seed)
    heard: list[_Answers] = []
    faults: list[Fault] = []
    up, down, clock = 0, 0, 0.0
    try:
        for number, state in enumerate(states, start=1):
            reachable = np.intersect1d(asked, runtime.available(number))
            order = Order(number, reachable, state, config.local, (probe,), train=False)
            replies = checked(runtime.execute(order))
            heard.append(_Answers.of(replies, probe, bias))
            faults.extend(replies.faults)
            up, down, clock = up + replies.bytes_up, down + order.bytes_down(), clock + replies.round_seconds
            if on_round is not None:
                on_round({"round": number})
    finally:
        runtime.close()
    usable = [answers for answers in heard if len(answers.clients) >= 2]
    require(
        bool(usable),
        f"Clients are compared with each other, and fewer than two of {len(asked)} gave a usable answer in any round"
        + (f"; client {faults[0].client}: {faults[0].reason}." if faults else "."),
    )
    findings = _found(usable, run is None, level)
    return Analysis(
        config=config,
        insight=insight,
        rounds=count,
        level=level,
        model_of=None if run is None else str(run.folder),
        truth=held.truth.skew[findings["clients"]] if held.known and holdings_known(runtime) else None,
        names=held.names,
        missing=tuple(np.setdiff1d(asked, findings["clients"]).tolist()),
        faults=tuple(faults),
        notes=tuple(_notes(insight, run, bias, findings, dataset.classes)),
        bytes_up=up,
        bytes_down=down,
        seconds=time.perf_counter() - begin,
        clock=clock,
        **findings,
    )


def rank_correlation(one: FloatArray | IntArray, other: FloatArray | IntArray) -> float | None:
    """Spearman's; None where there are fewer than three values, or all are the same."""
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(stats.spearmanr(one, other).statistic)


def deviations_above(values: FloatArray) -> FloatArray:
    """How far above the median values `[clients]` are, in median absolute deviations scaled to a normal law's σ."""
    middle = np.median(values)
    spread = 1.4826 * np.median(np.abs(values - middle))
    units: FloatArray = (values - middle) / max(spread, 1e-9 * abs(middle), np.finfo(np.float64).tiny)
    return units


def unexplained(insights: Tensor, bias: FloatArray, samples: IntArray) -> FloatArray:
    """How much of each client's insight is not what its class mix makes of it: √M_i·‖residual‖ `[clients]`.

    At an untrained model the softmax π hardly differs between samples. With class shares s and mean features μ_c of
    class c, the last layer's gradient is ∇b = π - s and ∇W_c = π_c·Σ_k s_k μ_k - s_c μ_c: clients whose classes look
    alike have a ∇W that is linear in ∇b. So the insights `[clients, h]` are regressed on the biases
    `[clients, classes]`, and what remains is a client whose μ_c are different, because its labels are flipped or its
    inputs altered. For odd clients not to bend the line towards themselves, they are weighed down again and again
    by the square of how far their residual exceeds the median (and a small ridge keeps the line from steep turns).

    A client whose class mix no other resembles is not judged: the line goes through it. So where there are only a few
    kinds of class mixes (the clustered environments), flipped labels make a mix of their own and mostly go unseen.
    """
    values = _coordinates(insights)
    sizes = samples.astype(np.float64)
    trust = np.ones(len(sizes))
    residual = np.zeros(len(sizes))
    for _ in range(_REWEIGHTINGS):
        weights = sizes * trust / (sizes * trust).sum()
        mix = bias - weights @ bias
        rest = values - weights @ values
        inner = (weights[:, None] * mix).T @ mix
        ridge = _RIDGE * np.linalg.norm(inner, 2) * np.eye(len(inner))
        slopes = np.linalg.pinv(inner + ridge, hermitian=True) @ ((weights[:, None] * mix).T @ rest)
        residual = np.sqrt(sizes) * np.linalg.norm(rest - mix @ slopes, axis=1)
        usual = np.median(residual)
        if usual == 0:
            break
        trust = np.minimum(1.0, usual / np.maximum(residual, usual)) ** 2
    return residual


def bias_slot(module: nn.Module, layout: Layout, dataset: Dataset) -> Slot | None:
    """The last layer's bias, if it has one that is added to the logits as it is: then the range of eq. 9 is known."""
    slot = layout.head[-1]
    if slot.shape != (dataset.classes,):
        return None
    floating = dataset.x.is_floating_point() or dataset.x.dtype == torch.uint8
    sample = torch.zeros(1, *dataset.shape, dtype=torch.float32 if floating else dataset.x.dtype)
    step = torch.arange(1.0, dataset.classes + 1)
    bias = dict(module.named_parameters())[slot.name].detach()
    with torch.no_grad():
        module.eval()
        before: Tensor = torch.func.functional_call(module, {slot.name: bias}, (sample,))
        after: Tensor = torch.func.functional_call(module, {slot.name: bias + step}, (sample,))
    return slot if torch.allclose(after - before, step.expand_as(after), atol=1e-3) else None


@dataclass(frozen=True, eq=False)
class _Answers:
    """What the clients of one round sent."""

    clients: IntArray
    samples: IntArray
    insights: Tensor
    """`[k, h]`"""
    bias: FloatArray | None
    """`[k, classes]`: the bias among the insights, as a gradient."""

    @classmethod
    def of(cls, replies: Replies, probe: Insight, bias: Slot | None) -> "_Answers":
        rows = replies.observed(probe.name)
        fields = {name: values[torch.from_numpy(rows)] for name, values in replies.probes.get(probe.name, {}).items()}
        found = None
        if bias is not None and fields and probe.kind in ("head", "full"):
            found = bias.of(fields["change"]) if probe.kind == "full" else fields["bias"]
        return cls(
            clients=replies.clients[rows],
            samples=replies.samples.numpy()[rows],
            # The gradients of whole models are many: they are converted piece by piece where they are used.
            insights=fields["change"] if "change" in fields else vectors(fields) if fields else torch.empty(0, 0),
            bias=None if found is None else found.double().numpy() / probe.rate,
        )


def _found(rounds: Sequence[_Answers], fresh: bool, level: float) -> dict[str, Any]:
    """What the answers of all rounds say: the fields of an `Analysis`."""
    clients = np.unique(np.concatenate([answers.clients for answers in rounds]))
    samples = np.zeros(len(clients), dtype=np.int64)
    for answers in rounds:
        samples[np.searchsorted(clients, answers.clients)] = answers.samples

    def mean(values: Sequence[FloatArray]) -> FloatArray:
        """Over the rounds in which a client answered."""
        total, times = np.zeros((len(clients), *values[0].shape[1:])), np.zeros(len(clients))
        for answers, one in zip(rounds, values, strict=True):
            here = np.searchsorted(clients, answers.clients)
            total[here] += one
            times[here] += 1
        averaged: FloatArray = (total.T / times).T
        return averaged

    scores = [skewness_scores(answers.insights, torch.from_numpy(answers.samples)) for answers in rounds]
    biases = [answers.bias for answers in rounds if answers.bias is not None]
    confidence, strange = None, None
    if fresh and biases:
        apart = [
            bias - answers.samples @ bias / answers.samples.sum() for answers, bias in zip(rounds, biases, strict=True)
        ]
        estimates = [np.abs(deviations).sum(axis=1) / 2 for deviations in apart]
        deviations = mean(apart)
        skew: FloatArray = np.abs(deviations).sum(axis=1) / 2
        confidence = Confidence.of(deviations, samples, level)
        if min(map(len, biases)) >= 2 * deviations.shape[1]:
            strange = [
                unexplained(answers.insights, bias, answers.samples)
                for answers, bias in zip(rounds, biases, strict=True)
            ]
    else:
        estimates = [score / np.sqrt(answers.samples) for answers, score in zip(rounds, scores, strict=True)]
        skew = mean(estimates)
        if len(clients) >= _FEW:
            strange = scores
    return {
        "measure": "distance" if confidence is None else "class mix",
        "clients": clients,
        "samples": samples,
        "skew": skew,
        "score": mean(scores),
        "score_rank": _places(mean([stats.rankdata(-score) / len(score) for score in scores])),
        "confidence": confidence,
        # Each model has its own scale.
        "strangeness": deviations_above(mean([one / (np.median(one) or 1.0) for one in strange])) if strange else None,
        "agreement": _agreement([answers.clients for answers in rounds], estimates),
    }


def _agreement(clients: Sequence[IntArray], estimates: Sequence[FloatArray]) -> float | None:
    """Mean rank correlation of any two rounds, over the clients that answered in both."""
    found = []
    for (some, one), (others, other) in combinations(zip(clients, estimates, strict=True), 2):
        _, here, there = np.intersect1d(some, others, return_indices=True)
        found.append(rank_correlation(one[here], other[there]))
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if known else None


def _places(values: FloatArray) -> IntArray:
    """1 for the lowest; equal values share the better place."""
    return stats.rankdata(values, method="min").astype(np.int64)


def _coordinates(insights: Tensor) -> FloatArray:
    """Insights `[k, h]` less their mean, by at most k coordinates each: their distances are the same."""
    if insights.shape[1] <= len(insights):
        values = insights.double().numpy()
        centred: FloatArray = values - values.mean(axis=0)
        return centred
    products = np.zeros((len(insights), len(insights)))
    for start in range(0, insights.shape[1], _COLUMNS):
        piece = insights[:, start : start + _COLUMNS].double().numpy()
        piece = piece - piece.mean(axis=0)
        products += piece @ piece.T
    lengths, axes = np.linalg.eigh(products)
    coordinates: FloatArray = axes * np.sqrt(np.maximum(lengths, 0.0))
    return coordinates


def _notes(insight: str, run: Run | None, bias: Slot | None, findings: Mapping[str, Any], classes: int) -> list[str]:
    """What cannot be said, and why."""
    notes = []
    nobody = "so there is no bound on false alarms and nobody is called odd; skew is the distance between insights."
    if run is not None:
        notes.append(f"The model was trained, perhaps on these very samples, {nobody}")
    elif insight not in ("head", "full"):
        notes.append(f"The range of {insight} is not known, {nobody}")
    elif bias is None:
        notes.append(f"The model's last layer has no bias that is added to its logits, {nobody}")
    if findings["strangeness"] is None:
        needed = _FEW if findings["confidence"] is None else 2 * classes
        notes.append(f"Fewer than {needed} clients answered, too few to say who stands out.")
    return notes


def _opened(run: Run | Path | str | None, federation: Federation | None) -> Run | None:
    if run is None:
        return None
    opened = run if isinstance(run, Run) else Run.open(run)
    needs_it = opened.given is None and opened.config.dataset.name == GIVEN
    return replace(opened, given=federation) if needs_it else opened


def _configured(
    given: Mapping[str, Any] | Config | None, settings: Mapping[str, Any], own: Federation | None, run: Run | None
) -> tuple[Config, Federation]:
    """The configuration and the federation that it speaks of; a run's settings are what others are laid over."""
    if own is not None:
        settings = {**settings, **describing(own)}
    if run is None:
        config = as_config(given, settings)
    else:
        if isinstance(given, Config):
            raise Refusal("Beside a run, give settings to lay over the run's, not a whole Config.")
        config = as_config(run.config, overlay(expand(given or {}), expand(settings)))
        require(config.model == run.config.model, f"The model is that of {run.folder}: another one cannot be given.")
    return config, build_federation(config) if own is None else as_configured(own, config)


def _states(config: Config, dataset: Dataset, layout: Layout, run: Run | None, count: int) -> Iterator[Tensor]:
    """The model of each round: the run's; or the one that a run of this seed begins with, and others of its kind."""
    dtype = torch.float64 if config.precision == "fp64" else torch.float32
    if run is not None:
        state = Layout.of(module := run.model()).read(module)
        require(
            len(state) == layout.size,
            f"The model of {run.folder} has {len(state):,} parameters, and one for samples of the shape "
            f"{' x '.join(map(str, dataset.shape))} in {dataset.classes} classes has {layout.size:,}.",
        )
        yield state.to(dtype)
        return
    for number in range(count):
        seed = config.seed if number == 0 else key(config.seed, number, "analysis")
        module = build_model(config.model.name, dict(config.model.options), dataset.shape, dataset.classes, seed)
        yield layout.read(module).to(dtype)


def _asked(among: Sequence[int] | None, clients: int) -> IntArray:
    if among is None:
        return np.arange(clients)
    asked = np.unique(np.asarray(among, dtype=np.int64))
    for client in asked.tolist():
        require(0 <= client < clients, f"There is no client {client}; clients are 0 to {clients - 1}.")
    return asked
