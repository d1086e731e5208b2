"""What a run's rounds show that somebody should be told of while it runs."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.core.client_names import read_names
from covey.core.loop import OnRound

SILENT_ROUNDS = 10
"""Rounds in a row, of those that ask for replies, after which a run says that none was of use."""


def warn_of_stall(folder: Path, on_round: OnRound | None) -> OnRound:
    """Tell once when a run stands still: round after round, every reply is dropped, and the model stays what it was.

    Rounds that ask nobody, since nobody can be reached or all are resting, neither count nor end it.
    """
    silent, before = 0, 0

    def told(record: dict[str, Any]) -> None:
        nonlocal silent, before
        if record["clients"]:
            silent = silent + 1 if _nothing_came(record) else 0
            before = record["round"] - 1 if silent == 1 else before
            if silent == SILENT_ROUNDS:
                warnings.warn(_standstill(folder, before, record["dropped"][-1]), stacklevel=2)
        if on_round:
            on_round(record)

    return told


def _nothing_came(record: Mapping[str, Any]) -> bool:
    """Whether no reply could be used.

    Clients that keep theirs to themselves have replied; and one that only a survey before the round has lost may have
    trained.
    """
    lost = {fault["client"] for fault in record["dropped"]}
    return record["train_loss"] is None and lost.issuperset(record["clients"])


def _standstill(folder: Path, before: int, last: Mapping[str, Any]) -> str:
    who = read_names(folder).get(last["client"], f"client {last['client']}")
    return (
        f"The run {folder.name} stands still: {SILENT_ROUNDS} rounds in a row no reply could be used, and the model is "
        f"that of round {before}. The last one: {who}: {last['reason']}."
    )
