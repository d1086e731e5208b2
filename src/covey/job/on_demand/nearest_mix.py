"""The nearest class mix that a base run's clients can make, without training: for sliders that are being drawn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.data.class_mix import Target, parse_target
from covey.job.on_demand.class_shares import estimated
from covey.job.on_demand.composition import compose
from covey.job.on_demand.on_demand_job import opened_base
from covey.job.runs import Run
from covey.storage import misfit, read_json, write_json
from covey.trust import Trust


@dataclass(frozen=True, eq=False)
class BaseShares:
    """Class shares of a base run's clients, by one gradient of each at a last layer of zeros."""

    class_names: tuple[str, ...]
    shares: FloatArray
    """`[clients, classes]`"""
    cohort: int
    base_round: int
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, base: Path, *, fleet: Path | None = None, trust: Trust = False) -> "BaseShares":
        """Ask all clients of a base run for their gradient; nothing is trained."""
        run = Run.open(base, trust=trust)
        experiment, done = opened_base(run, fleet)
        try:
            found, notes, _ = estimated(experiment, done, "analytic")
            names = tuple(experiment.federation.dataset.class_names)
        finally:
            experiment.runtime.close()
        return cls(names, found.shares, run.config.cohort, done, tuple(notes))

    def write(self, path: Path) -> None:
        """Write the shares, for `read`."""
        plain = {"class_names": list(self.class_names), "cohort": self.cohort, "base_round": self.base_round}
        write_json(path, {**plain, "notes": list(self.notes), "shares": self.shares.tolist()})

    @classmethod
    def read(cls, path: Path) -> "BaseShares":
        """Read what `write` wrote."""
        data = read_json(path.read_bytes())
        if fault := misfit(data["shares"], list[list[float]], "shares"):
            raise ValueError(fault)
        shares = np.array(data["shares"], dtype=np.float64)
        return cls(tuple(data["class_names"]), shares, data["cohort"], data["base_round"], tuple(data["notes"]))

    def nearest(self, target: Target) -> dict[str, Any]:
        """Return the mix that is nearest to a target, with its clients, as an on-demand job would compose it."""
        wanted = parse_target(target, self.class_names)
        found = compose(self.shares, wanted.mix, at_least=self.cohort)
        return {
            "target": wanted.mix.tolist(),
            "mix": found.mix.tolist(),
            "clients": found.clients.tolist(),
            "ratios": found.ratios.tolist(),
            "distance": found.distance,
            "warning": found.warning(self.class_names),
            "class_names": list(self.class_names),
            "base_round": self.base_round,
            "notes": [*wanted.notes, *self.notes],
        }
