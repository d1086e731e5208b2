"""Results from run folders: the columns that the store keeps of a run, finished or not."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.config.schema import Config
from covey.core.build import build_federation
from covey.core.records import read_config, read_metrics
from covey.data.paper_targets import target as class_mix
from covey.environment.truth import Truth
from covey.errors import Refusal
from covey.registries import methods
from papers.grid import OWN_PARTS, PlannedRun
from papers.store import COLUMNS, LISTED_CLASSES, OWN_MIX, Result

MEASUREMENTS = "measurements.json"
"""File of a run folder with the measurements of its clients."""

BRANCH = "branch.json"
"""File of a run folder with the model and clients that a branch started from."""


def result_of(paper: str, run: PlannedRun, folder: Path, skew: Sequence[float] | None = None) -> Result:
    """Return the result of a run folder so far; `skew`, if known, saves splitting the data again."""
    config = read_config(folder, trust=OWN_PARTS)
    # Until its next measurement, a run folder is configured for the rounds up to there.
    config = replace(config, rounds=max(config.rounds, run.rounds))
    rows = read_metrics(folder)
    machine = _read_json(folder / "environment.json")
    measured = _read_json(folder / MEASUREMENTS) if (folder / MEASUREMENTS).is_file() else []
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    up = down = probes = 0
    for row in rows:
        up += row["bytes_up"]
        down += row["bytes_down"]
        probes += sum(row.get("probe_bytes", {}).values())
        if "accuracy" in row:
            values = (row["round"], round(row["accuracy"], 4), _rounded(row["loss"], 4), up, down, probes)
            for name, value in zip(COLUMNS, values, strict=True):
                columns[name].append(value)
    invited = Counter(client for row in rows for client in row["clients"])
    settings = config.as_mapping()
    settings.pop("data_dir", None)
    if run.agent is not None:
        settings["aggregator"]["agent"] = run.agent.name
    if run.features is not None:
        settings["many"]["features"] = run.features.name
    scored = [row for row in rows if "accuracy" in row]
    truth = true_skew(folder) if skew is None else skew
    listed = run.by_class and all(len(row.get("class_accuracy", ())) in range(1, LISTED_CLASSES + 1) for row in scored)
    return Result(
        paper=paper,
        environment=run.environment,
        method=run.method,
        seed=run.seed,
        variant=run.variant,
        commit=machine.get("commit"),
        date=machine["started"],
        device=machine.get("gpu") or "CPU",
        torch=machine["versions"]["torch"],
        config=settings,
        rounds=len(rows),
        finished=len(rows) >= config.rounds,
        evaluated=columns,
        cohort_skew=[_rounded(row["cohort_skew"], 3) for row in rows],
        skew=[round(float(value), 3) for value in truth],
        hits=[invited[client] for client in range(len(truth))],
        dropped=sum(len(row["dropped"]) for row in rows),
        withheld=sum(len(row.get("withheld", ())) for row in rows),
        seconds={
            "clients": round(sum(row["seconds"].get("clients", 0.0) for row in rows), 4),
            "probes": round(sum(sum(row.get("probe_seconds", {}).values()) for row in rows), 4),
            "aggregation": round(sum(row["seconds"].get("aggregation", 0.0) for row in rows), 4),
            "total": round(sum(sum(row["seconds"].values()) for row in rows), 4),
        },
        measurements=measured,
        raw_accuracy=[round(row["raw_accuracy"], 4) for row in scored if "raw_accuracy" in row],
        halved=[row["round"] for row in rows if row.get("figures", {}).get("rate_halved")],
        class_accuracy=[_all_rounded(row["class_accuracy"], 4) for row in scored] if listed else [],
        shares=[_all_rounded(row, 4) for row in truth_of(config).shares] if listed else [],
        targets={target: _all_rounded(_on_target(scored, target, config), 4) for target in run.targets},
        branch=_read_json(folder / BRANCH) if (folder / BRANCH).is_file() else None,
        client_loss=_client_loss(rows),
        regret=_regret(rows),
        impact=_impact(rows, len(truth)),
        agent=rows[0].get("figures", {}).get("agent", {}) if rows else {},
    )


def _client_loss(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return figures of clients' losses at every evaluation, means over the rounds since the last; {} without any."""
    if not any("client_loss" in row for row in rows):
        return {}
    columns: dict[str, list[float | None]] = {"mean": [], "variance": [], "gap": []}
    since: list[Mapping[str, float]] = []
    for row in rows:
        since += [row["client_loss"]] if "client_loss" in row else []
        if "accuracy" in row:
            for name, column in columns.items():
                column.append(float(f"{np.mean([one[name] for one in since]):.4g}") if since else None)
            since = []
    return columns


def _regret(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return losses of cohorts and of all clients, means over the rounds since the last evaluation, and the regret."""
    if not any("regret" in row.get("figures", {}) for row in rows):
        return {}
    losses = ("cohort_loss", "population_loss")
    columns: dict[str, list[float | None]] = {name: [] for name in (*losses, "regret")}
    since: list[Mapping[str, float]] = []
    for row in rows:
        figures = row["figures"]
        since += [figures] if figures["cohort_loss"] is not None else []
        if "accuracy" in row:
            for name in losses:
                columns[name].append(float(f"{np.mean([one[name] for one in since]):.5g}") if since else None)
            columns["regret"].append(float(f"{figures['regret']:.5g}"))
            since = []
    return columns


def _impact(rows: Sequence[Mapping[str, Any]], clients: int) -> list[float | None]:
    """Return each client's mean impact factor over the rounds that it took part in; [] if no method sets them."""
    recorded = [row["figures"]["impact_factors"] for row in rows if "impact_factors" in row.get("figures", {})]
    factors: list[list[float]] = [[] for _ in range(clients)]
    for one in recorded:
        for client, factor in one.items():
            factors[int(client)].append(factor)
    return [float(f"{np.mean(own):.4g}") if own else None for own in factors] if recorded else []


def true_skew(folder: Path) -> FloatArray:
    """Return the skew of each client of a run `[clients]`; splits its data again."""
    return truth_of(read_config(folder, trust=OWN_PARTS)).skew


def truth_of(config: Config) -> Truth:
    """Return the true class shares and skew of a run's clients; splits its data again."""
    return _truth(_Split(config))


class _Split:
    """A cache key: the settings that decide how the data are split, so that runs with the same split share it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        mapping = config.as_mapping()
        kept = {
            key: mapping.get(key)
            for key in ("dataset", "environment", "altered", "clients", "seed", "numbering", "data_dir")
        }
        reshaped = config.method in methods.names() and methods[config.method].part.reshape is not None
        self.key = json.dumps([kept, config.method if reshaped else None], sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Split) and self.key == other.key


@lru_cache(maxsize=3)
def _truth(split: _Split) -> Truth:
    config = split.config
    recipe = methods[config.method].part if config.method in methods.names() else None
    federation = build_federation(config)
    return (recipe.reshape(federation, config.seed) if recipe and recipe.reshape else federation).truth


def _on_target(rows: Sequence[Mapping[str, Any]], target: str, config: Config) -> list[float]:
    """Return the accuracy on a class mix at every evaluation."""
    if target == OWN_MIX:
        return [float(row["own_accuracy"]) for row in rows]
    shares = truth_of(config).shares
    mix = class_mix(target, shares.shape[1], shares)
    return [float(np.asarray(row["class_accuracy"]) @ mix) for row in rows]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"The file {path} cannot be read ({error}).") from error


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _all_rounded(values: Sequence[float] | FloatArray, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
