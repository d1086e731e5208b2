"""A checkpoint gives a state back as it was, or says what it cannot hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey import Refusal, Selector
from covey.core.checkpoint import read_checkpoint, write_checkpoint
from tests.conftest import SMALL, without_timings


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "losses": {3: 0.5, 10: float("inf")},
        "window": [torch.ones(2), [np.arange(3), {"last": torch.zeros(1)}], float("nan"), None, True],
        "count": np.int64(7),
        "a.b": torch.full((1,), 1.0),
        "a": {"b": torch.full((1,), 2.0)},
        "names": ["x", "y"],
    }
    write_checkpoint(tmp_path, 4, state)
    rounds, found = read_checkpoint(tmp_path)
    assert rounds == 4 and found is not None
    assert found["losses"] == {3: 0.5, 10: float("inf")}
    first, (numbers, last), missing, *others = found["window"]
    assert first.tolist() == [1, 1] and numbers.tolist() == [0, 1, 2] and last["last"].tolist() == [0]
    assert np.isnan(missing) and others == [None, True]
    assert (found["count"], found["names"]) == (7, ["x", "y"])
    assert (found["a.b"].item(), found["a"]["b"].item()) == (1.0, 2.0)


@pytest.mark.parametrize("held", [{1, 2}, object(), 1j])
def test_what_a_checkpoint_cannot_hold_is_named(held: Any, tmp_path: Path) -> None:
    sentence = rf"The state 'selector.seen.0' holds a {type(held).__name__}, and a checkpoint cannot: state_dict gives"
    with pytest.raises(Refusal, match=sentence):
        write_checkpoint(tmp_path, 1, {"selector": {"seen": [held]}})


class ByLoss(Selector):
    """Invites those never seen, then those of the highest last loss."""

    def begin(self, setting):
        super().begin(setting)
        self.losses: dict[int, float] = {}

    def select(self, t, candidates):
        order = sorted(candidates.tolist(), key=lambda client: -self.losses.get(client, 1e9))
        return np.array(order[: self.setting.cohort])

    def observe(self, t, replies):
        self.losses |= dict(zip(replies.clients.tolist(), replies.losses.tolist(), strict=True))

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.losses = dict(state["losses"])


def test_a_selector_that_keeps_numbers_by_client_resumes_the_same(tmp_path: Path) -> None:
    whole = covey.run(SMALL, rounds=6, selector=ByLoss, out=tmp_path / "whole")
    covey.run(SMALL, rounds=3, selector=ByLoss, out=tmp_path / "part")
    part = covey.resume(tmp_path / "part", rounds=6, trust=True)
    assert [row["clients"] for row in part.metrics] == [row["clients"] for row in whole.metrics]
    assert without_timings(part.metrics) == without_timings(whole.metrics)
