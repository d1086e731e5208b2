"""Who is odd? Clients with flipped labels, found without training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from covey.core.build import build_federation
from covey.errors import require
from covey.job.analysis import ROUNDS, Analysis, analyze
from covey.job.demo.wording import counted, listed

QUESTION = "Who is odd?"

SETTING: dict[str, Any] = {
    "dataset": "digits",
    "environment": "uniform",
    "clients": 60,
    "altered": {"poison": 0.1},
}
"""Clients with any skew from none to a single class, of whom a tenth have all labels flipped."""

COMMAND = "covey analyze --dataset mine.csv --environment natural --draw odd.html"


@dataclass(frozen=True, eq=False)
class OddClients:
    """The clients that stand out, beside those whose labels were flipped."""

    analysis: Analysis
    flipped: tuple[int, ...]
    """Clients whose labels were flipped. The analysis does not see it."""

    question = QUESTION
    command = COMMAND

    @property
    def found(self) -> tuple[int, ...]:
        """Clients whose gradient is not explained by their class mix."""
        return tuple(self.analysis.clients[self.analysis.outlier].tolist())

    @property
    def sentence(self) -> str:
        """The answer: who stands out, and whether these are the clients with flipped labels."""
        found, flipped, count = self.found, set(self.flipped), len(self.analysis.clients)
        labels = f"{counted(len(flipped), 'client')} with flipped labels"
        if not found:
            return f"No client of {count} stands out, so the {labels} went unnoticed: {listed(self.flipped)}."
        stand = "stands" if len(found) == 1 else "stand"
        who = f"Without any training, {len(found)} of {count} clients {stand} out: {listed(found)}"
        if set(found) == flipped:
            return f"{who}, exactly {'the one' if len(found) == 1 else 'those'} whose labels were flipped."
        parts = [f"{len(flipped & set(found))} of the {labels} are among them"]
        if missed := sorted(flipped - set(found)):
            parts.append(f"{listed(missed)} went unnoticed")
        if wrong := sorted(set(found) - flipped):
            parts.append(f"the labels of {listed(wrong)} are sound")
        return f"{who}; {listed(parts)}."

    def as_mapping(self) -> dict[str, Any]:
        """Return the answer and its numbers for JSON."""
        return {
            "question": self.question,
            "sentence": self.sentence,
            "command": self.command,
            "seed": self.analysis.config.seed,
            "clients": len(self.analysis.clients),
            "found": list(self.found),
            "flipped": list(self.flipped),
            "seconds": self.analysis.seconds,
            "each": self.analysis.each(),
        }


def find_odd_clients(
    seed: int,
    on_run: Callable[[str, int | None, int], None] | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> OddClients:
    """Analyze a federation with flipped labels."""
    if on_run is not None:
        on_run("gradients of 60 clients", None, ROUNDS)
    analysis = analyze(SETTING, seed=seed, workers=1, on_round=on_round)
    altered = build_federation(analysis.config).altered
    require(altered is not None, "The demo's federation has no client with flipped labels.")
    assert altered is not None
    return OddClients(analysis, tuple(client for client, flipped in enumerate(altered.poisoned) if flipped))
