"""A warning about runs whose every reply is dropped."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.core.client_names import read_names
from covey.core.loop import OnRound

SILENT_ROUNDS = 10
"""Rounds in a row without a usable reply, of those that invite clients, after which a run warns."""


def warn_of_stall(folder: Path, on_round: OnRound | None) -> OnRound:
    """Return an `on_round` that warns once if a run stalls: every reply is dropped, and the model does not change.

    Rounds that invite no client, since none can be reached or all are resting, are ignored.
    """
    silent, before = 0, 0

    def checked(record: dict[str, Any]) -> None:
        nonlocal silent, before
        if record["clients"]:
            silent = silent + 1 if _all_replies_lost(record) else 0
            before = record["round"] - 1 if silent == 1 else before
            if silent == SILENT_ROUNDS:
                warnings.warn(_stall_sentence(folder, before, record["dropped"][-1]), stacklevel=2)
        if on_round:
            on_round(record)

    return checked


def _all_replies_lost(record: Mapping[str, Any]) -> bool:
    """True if no reply could be used.

    Clients that withheld their update have replied, and a client whose survey alone was lost may have trained.
    """
    lost = {fault["client"] for fault in record["dropped"]}
    return record["train_loss"] is None and lost.issuperset(record["clients"])


def _stall_sentence(folder: Path, before: int, last: Mapping[str, Any]) -> str:
    who = read_names(folder).get(last["client"], f"client {last['client']}")
    return (
        f"The run {folder.name} stands still: {SILENT_ROUNDS} rounds in a row no reply could be used, and the model is "
        f"that of round {before}. The last one: {who}: {last['reason']}."
    )
