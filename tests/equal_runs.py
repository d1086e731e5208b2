"""Check that a run ends the same however it is executed."""

from pathlib import Path
from typing import Any

import pytest

from covey import resume, run
from tests.conftest import without_timings


def ends_the_same(given: dict[str, Any], folder: Path) -> None:
    """Assert it for two worker processes, for the stacked runtime, and for a run cut off after round 3 and resumed."""
    whole = run(given, out=folder / "whole")
    losses = "devices" in given
    assert not losses or any(row["dropped"] for row in whole.metrics), "a client must drop out, or that is not tested"
    two = run(given, workers=2, out=folder / "two")
    assert without_timings(whole.metrics) == without_timings(two.metrics)
    stacked = run(given, runtime="stacked", device="cpu", out=folder / "stacked")
    for mine, theirs in zip(whole.metrics, stacked.metrics, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
        assert (mine["bytes_down"], mine["bytes_up"]) == (theirs["bytes_down"], theirs["bytes_up"])

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, out=folder / "cut", on_round=stop)
    assert without_timings(resume(folder / "cut").metrics) == without_timings(whole.metrics)
    written = [(folder / name / "checkpoint.safetensors").read_bytes() for name in ("whole", "cut")]
    assert written[0] == written[1]
