"""What the tests share."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from covey.cli.main import main
from covey.core.round_record import TIMINGS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder: those under `integration` start programs, those under `proof` take long."""
    for item in items:
        for folder in ("integration", "proof"):
            if f"/tests/{folder}/" in item.path.as_posix():
                item.add_marker(folder)


@pytest.fixture(autouse=True)
def one_thread():
    """Every test computes on one thread, as workers do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def covey_command(monkeypatch, capsys) -> Callable[..., Answer]:
    """`covey_command("run", "--rounds", "2")` as a shell would call it."""

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["covey", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        return Answer(int(exit_.value.code or 0), printed.out, printed.err)

    return call


SMALL: dict[str, Any] = {
    "clients": 8,
    "cohort": 4,
    "rounds": 3,
    "workers": 1,
    "environment": {"name": "uniform", "samples": 20},
    "local": {"epochs": 1, "batch": 8, "rate": 0.1},
    "model": {"name": "mlp", "hidden": (16,)},
}
"""A run of a fraction of a second."""


def without_timings(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in metrics]
