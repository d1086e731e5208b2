"""Old objects are spared by the garbage collector while rounds take milliseconds, and no longer."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey import run
from covey.core.garbage import old_objects_spared
from covey.runtime.stacked.stacked_runtime import StackedRuntime
from tests.conftest import SMALL

GIVEN: dict[str, Any] = {**SMALL, "runtime": "stacked", "device": "cpu"}


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    """Undo for a test what the test session has frozen."""
    count = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if count:
        gc.freeze()


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_run_on_a_gpu_spares_what_was_there_when_its_first_round_was_computed(
    overlaps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StackedRuntime, "overlaps", overlaps)
    frozen = []
    run(GIVEN, out=tmp_path / "run", on_round=lambda record: frozen.append(gc.get_freeze_count() > 10_000))
    assert frozen == [overlaps] * 3
    assert gc.get_freeze_count() == 0


def test_garbage_is_collected_first_and_what_somebody_else_has_frozen_stays_frozen() -> None:
    class Ring:
        gone = 0

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            Ring.gone += 1

    Ring()
    with old_objects_spared():
        assert Ring.gone == 1
        count = gc.get_freeze_count()
        with old_objects_spared():
            assert gc.get_freeze_count() == count
        assert gc.get_freeze_count() == count
    assert gc.get_freeze_count() == 0
