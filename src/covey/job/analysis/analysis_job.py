"""The analysis as a job: send models to clients, collect their insights round by round, and evaluate them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from covey.arrays import IntArray
from covey.config.schema import GIVEN, Config
from covey.config.values import overlay
from covey.core.build import build_federation, build_module, initial_model
from covey.core.messages import Fault, Order
from covey.core.model_constants import read_constants
from covey.core.replies import checked
from covey.data.dataset import Dataset
from covey.environment.federated_data import Federation
from covey.errors import Refusal, require
from covey.job.analysis.analysis_result import Analysis
from covey.job.analysis.confidence import bias_slot
from covey.job.analysis.insight_answers import Answers, findings_of, missing_notes
from covey.job.experiment import build_runtime
from covey.job.runs import Run
from covey.job.settings import as_config, as_configured, expand, with_federation
from covey.model.layout import Layout
from covey.probe.insight import Insight
from covey.randomness import generator, key
from covey.trust import Trust

ROUNDS = 3
"""Insight rounds by default, each with a new model; more hardly change the ranking."""

MOST_ASKED = 10_000
"""Most clients that are asked unless the caller names them: insights of all are in memory together."""


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
    fleet: Path | str | None = None,
    trust: Trust = False,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Analysis:
    """Estimate how skewed each client is and find odd ones, from a few rounds of insights; nothing is trained.

    federation: your own data (see `covey.federation`), instead of a data set and an environment by name.
    model_of: a run (or its folder) whose model is used, on its federation unless settings say otherwise. It finds
        clients whose labels or inputs the model gets wrong; freshly initialised models rank skew better.
    among: clients to ask, instead of all (of more than 10,000, so many that are drawn by the seed).
    rounds: insight rounds, each with a new initial model; 3, or 1 with a run's model.
    level: probability of calling any client odd if all have the same class mix.
    insight: head (last layer), full (all parameters), or package.module:function.
    fleet: folder of a live fleet, for the runtime "fleet"; by default COVEY_FLEET names it.
    trust: let the folder of the run name code of somebody's own to import: True, or the names that are allowed.

    Other settings are those of `Config`: `covey.analyze(environment="dirichlet", clients=100)`.
    """
    begin = time.perf_counter()
    run = _opened(model_of, federation, trust)
    config, held = _configured(given, settings, federation or (run.given if run else None), run)
    count = (1 if run else ROUNDS) if rounds is None else rounds
    require(count >= 1, f"rounds must be at least 1, not {count}.")
    require(run is None or count == 1, f"A run has one model, so its analysis has one round, not {count}.")
    require(0 < level < 1, f"level is a probability between 0 and 1, not {level:g}.")
    probe = Insight(rate=config.local.rate, kind=insight)
    asked = _asked(among, held.clients, config.seed)
    require(len(asked) >= 2, "Clients are compared with each other, so an analysis needs at least two.")
    dataset = held.dataset
    module = build_module(config, dataset)
    if run is not None:
        read_constants(run.folder, config.model.name, module)
    layout = Layout.of(module)
    probe.require_head(layout, "The analysis")
    bias = bias_slot(module, layout, dataset)
    states = list(_states(config, dataset, layout, run, count))
    runtime = build_runtime(held, module, config, fleet)
    heard: list[Answers] = []
    faults: list[Fault] = []
    up, down, clock = 0, 0, 0.0
    try:
        for number, state in enumerate(states, start=1):
            reachable = np.intersect1d(asked, runtime.available(number))
            order = Order(number, reachable, state, config.local, (probe,), train=False)
            replies = checked(runtime.execute(order))
            heard.append(Answers.of(replies, probe, bias))
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
    findings = findings_of(usable, run is None, level)
    return Analysis(
        config=config,
        insight=insight,
        rounds=count,
        level=level,
        model_of=None if run is None else str(run.folder),
        truth=held.truth.skew[findings["clients"]] if held.known and runtime.holdings_known else None,
        poisoned=_poisoned(held)[findings["clients"]] if held.known and runtime.holdings_known else None,
        names=held.names,
        missing=tuple(np.setdiff1d(asked, findings["clients"]).tolist()),
        faults=tuple(faults),
        notes=(*_sample_note(among, held.clients), *missing_notes(insight, run, bias, findings, dataset.class_count)),
        bytes_up=up,
        bytes_down=down,
        seconds=time.perf_counter() - begin,
        clock=clock,
        **findings,
    )


def _poisoned(held: Federation) -> NDArray[np.bool_]:
    """Return `[clients]`: True for those whose labels are all wrong."""
    if held.altered is None:
        return np.zeros(held.clients, dtype=np.bool_)
    return np.array(held.altered.poisoned, dtype=np.bool_)


def _sample_note(among: Sequence[int] | None, clients: int) -> list[str]:
    if among is not None or clients <= MOST_ASKED:
        return []
    return [f"{MOST_ASKED:,} of {clients:,} clients, drawn by the seed, were asked; name others with among."]


def _opened(run: Run | Path | str | None, federation: Federation | None, trust: Trust) -> Run | None:
    if run is None:
        return None
    opened = run if isinstance(run, Run) else Run.open(run, trust=trust)
    needs_it = opened.given is None and opened.config.dataset.name == GIVEN
    return replace(opened, given=federation) if needs_it else opened


def _configured(
    given: Mapping[str, Any] | Config | None, settings: Mapping[str, Any], own: Federation | None, run: Run | None
) -> tuple[Config, Federation]:
    """Return configuration and federation; settings are laid over those of the run, if there is one."""
    if own is not None:
        settings = with_federation(given, settings, own)
    if run is None:
        config = as_config(given, settings)
    else:
        if isinstance(given, Config):
            raise Refusal("Beside a run, give settings to lay over the run's, not a whole Config.")
        config = as_config(run.config, overlay(expand(given or {}), expand(settings)))
        require(config.model == run.config.model, f"The model is that of {run.folder}: another one cannot be given.")
    return config, build_federation(config) if own is None else as_configured(own, config)


def _states(config: Config, dataset: Dataset, layout: Layout, run: Run | None, count: int) -> Iterator[Tensor]:
    """Yield the model of each round: the run's, or the initial model of this seed and then of others."""
    if run is not None:
        state = initial_model(config, run.model())
        require(
            len(state) == layout.size,
            f"The model of {run.folder} has {len(state):,} parameters, and one for samples of the shape "
            f"{' x '.join(map(str, dataset.shape))} in {dataset.classes} classes has {layout.size:,}.",
        )
        yield state
        return
    for number in range(count):
        seed = config.seed if number == 0 else key(config.seed, number, "analysis")
        yield initial_model(config, build_module(replace(config, seed=seed), dataset))


def _asked(among: Sequence[int] | None, clients: int, seed: int) -> IntArray:
    if among is None:
        if clients > MOST_ASKED:
            return np.sort(generator(seed, "asked clients").choice(clients, MOST_ASKED, replace=False))
        return np.arange(clients)
    given = np.asarray(among)
    require(given.dtype.kind in "iu" or not given.size, "among is a list of clients' numbers, such as [0, 3, 7].")
    asked = np.unique(given.astype(np.int64))
    for client in asked.tolist():
        require(0 <= client < clients, f"There is no client {client}; clients are 0 to {clients - 1}.")
    return asked
