"""One writer at a time: a second one is refused, told who the first is, and touches nothing."""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import covey
from covey import Refusal, Run
from covey.core.build import build_module, dataset_of
from covey.job.comparison.execution import resume_comparison
from covey.job.on_demand import resume_ondemand
from covey.model.layout import Layout
from covey.storage import LOCK, FolderLock
from tests.conftest import SMALL, without_timings

HOLDER = """
import sys
from pathlib import Path
from covey.storage import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a folder's lock."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_run_that_is_being_written_is_not_resumed_and_its_records_stay(tmp_path: Path) -> None:
    """The run below is its own first writer; each attempt to resume it comes from its second round."""
    met = []

    def intrude(record: dict[str, Any]) -> None:
        before = (tmp_path / "run" / "metrics.jsonl").stat()
        with pytest.raises(Refusal, match="is being written by this very process") as refused:
            covey.resume(tmp_path / "run")
        code = f"import covey; covey.resume({str(tmp_path / 'run')!r})"
        if record["round"] == 2:
            other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert f"is being written by process {os.getpid()} on {platform.node()}" in other.stderr
        after = (tmp_path / "run" / "metrics.jsonl").stat()
        assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
        met.append(refused)

    run = covey.run(SMALL, out=tmp_path / "run", on_round=intrude)
    assert len(met) == 3
    assert not (tmp_path / "run" / LOCK).exists()
    undisturbed = covey.run(SMALL, out=tmp_path / "alone")
    assert without_timings(run.metrics) == without_timings(undisturbed.metrics)


def test_jobs_are_refused_while_another_process_writes_them(tmp_path: Path) -> None:
    base = covey.run(SMALL, out=tmp_path / "base")
    compare: dict[str, Any] = {"given": SMALL, "out": tmp_path / "all"}
    rows = covey.compare(["fedavg"], 2, **compare).rows
    asked: dict[str, Any] = {"estimator": "ground-truth", "rounds": 1, "out": tmp_path / "job"}
    covey.ondemand(base, "0=1", **asked)
    for folder, again, cut in (
        (tmp_path / "all", lambda: covey.compare(["fedavg"], 2, **compare), "fedavg/seed-1"),
        (tmp_path / "all", lambda: resume_comparison(tmp_path / "all"), "fedavg/seed-0"),
        (tmp_path / "job", lambda: covey.ondemand(base, "0=1", **asked), "target-1"),
        (tmp_path / "job", lambda: resume_ondemand(tmp_path / "job"), "target-1"),
    ):
        (folder / cut / "checkpoint.safetensors").unlink(missing_ok=True)
        with writer(folder) as process, pytest.raises(Refusal) as refused:
            again()
        assert f"is being written by process {process.pid} on {platform.node()}" in str(refused.value)
        assert not (folder / cut / "checkpoint.safetensors").exists()
    # Reading needs no lock, and a writer that was killed leaves none.
    with writer(tmp_path / "base"):
        assert Run.open(tmp_path / "base").evaluate()["round"] == 3
        covey.report([tmp_path / "base"])
    assert resume_comparison(tmp_path / "all").rows == rows
    assert resume_ondemand(tmp_path / "job").tailored


def test_two_runs_do_not_begin_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with writer(tmp_path / "run"), pytest.raises(Refusal, match=r"The output folder .* is being written by process"):
        covey.run(SMALL, out=tmp_path / "run")
    assert covey.run(SMALL, out=tmp_path / "run").finished


def test_a_lock_ends_with_its_process_and_workers_do_not_inherit_it(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        with pytest.raises(Refusal, match=f"process {process.pid}"):
            FolderLock(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        lock = FolderLock(tmp_path)
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0 if (tmp_path / LOCK).exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(Refusal, match="this very process"):
        FolderLock(tmp_path)
    lock.release()
    assert not (tmp_path / LOCK).exists()
    FolderLock(tmp_path).release()


def test_a_lock_that_is_no_longer_referred_to_is_released(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    del lock
    FolderLock(tmp_path).release()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"The run folder .*absent cannot be written: No such file"):
        FolderLock(tmp_path / "absent")


def test_a_strategys_folder_has_one_writer(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from covey.flower.strategy_folder import RunFolder

    config = covey.Config.of(SMALL)
    layout = Layout.of(build_module(config, dataset_of(config)))
    first = RunFolder(tmp_path, config, layout)
    with pytest.raises(Refusal, match="this very process"):
        RunFolder(tmp_path, config, layout)
    first.close()
    with writer(tmp_path) as process, pytest.raises(Refusal, match=f"process {process.pid}"):
        RunFolder(tmp_path, config, layout)
    RunFolder(tmp_path, config, layout).close()
