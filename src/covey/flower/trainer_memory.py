"""What a client keeps for a trainer: its name in the client's memory, and who may use it.

A trainer's own part of a model (FedPer's head, Ditto's personal model) must not leave the client. So an order names it
in one place alone, for the trainer that kept it: as a start, an anchor or for another trainer it could be computed back
from the reply.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from covey.core.replies import TRAINER
from covey.core.trainer import KEPT
from covey.errors import require

KEPT_BY_TRAINER = f"{TRAINER}.{KEPT}"
"""What a trainer's clients keep, as a simulated client's reply names it."""


def kept_name(trainer: str) -> str:
    """Return the name in a client's memory of what it keeps for a trainer."""
    return f"{KEPT_BY_TRAINER} {trainer}"


def require_own_use(instructions: Mapping[str, Any]) -> None:
    """Refuse an order that uses what a client keeps for a trainer in any other way than for this trainer."""
    trainer = instructions.get("trainer") or {}
    others = {**instructions, "trainer": {**trainer, "kept": None}}
    own = kept_name(str(trainer.get("name")))
    require(
        not any(name.startswith(KEPT_BY_TRAINER) for name in _held(others))
        and all(name.rpartition("@")[0] == own for name in _held(trainer.get("kept")) if "@" in name),
        "What this client keeps for a trainer is for this trainer alone.",
    )


def _held(described: Any) -> Iterator[str]:
    """Yield the names of all arrays of the client that an order, or a part of it, refers to."""
    if isinstance(described, Mapping):
        if isinstance(described.get("held"), str):
            yield described["held"]
        for value in described.values():
            yield from _held(value)
    elif isinstance(described, list):
        for value in described:
            yield from _held(value)
