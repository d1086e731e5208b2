"""Covey's local runtime as users run it: the whole round loop, with every round counted and recorded."""

import signal
import tempfile
from pathlib import Path

import covey
from benchmarks.laps import Job, job
from benchmarks.workloads import load

_FOREVER = 1_000_000


def main(job: Job) -> None:
    workload, data = job.workload, load(job.data)
    federation = covey.federation(
        data.x,
        data.y,
        list(data.parts.numpy()),
        test=(data.test_x, data.test_y),
        class_names=[f"class {label}" for label in range(workload.classes)],
        tokens=workload.is_text,
    )
    stopped = False

    def on_round(record: dict[str, object]) -> None:
        nonlocal stopped
        assert not record["dropped"], record["dropped"]
        job.laps.lap()
        if job.laps.enough and not stopped:
            # Like Ctrl-C: Covey finishes the round and writes a checkpoint.
            stopped = True
            signal.raise_signal(signal.SIGINT)

    with tempfile.TemporaryDirectory() as folder:
        run = covey.run(
            method="fedavg",
            federation=federation,
            model=workload.model,
            cohort=workload.cohort,
            rounds=_FOREVER,
            evaluate_every=_FOREVER,
            local={"epochs": workload.epochs, "batch": workload.batch, "rate": workload.rate},
            workers=job.workers,
            precision=job.precision,
            out=Path(folder) / "run",
            on_round=on_round,
        )
        loss = run.evaluate()["loss"]
        assert isinstance(loss, float)
        job.finish(loss)


if __name__ == "__main__":
    main(job())
