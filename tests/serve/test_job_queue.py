"""The queue: who waits for whom, what is tried again, and how a job is ended."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from covey.config.runtime_choice import ON_GPU
from covey.serve.job_queue import JobQueue
from covey.serve.job_record import Job
from covey.serve.job_request import ondemand_request, report_request, run_request, shares_request
from covey.serve.served_folder import ServedFolder
from covey.storage import lock_holder, write_json
from tests.integration.served import SMALL_RUN
from tests.programs import PATIENCE, wait_until


def begun(queue):
    """Have jobs begin, and return what runs, by kind."""
    queue._begin_more()
    return sorted(job.request["kind"] for job in queue._jobs.values() if job.state == "running")


def test_on_a_gpu_one_job_runs_at_a_time_and_pages_do_not_wait_for_it(queue, folder, monkeypatch):
    """There is no GPU here, so the choice of a runtime answers as if there were one."""
    monkeypatch.setattr("covey.serve.job_request.runtime_here", lambda runtime, device: ON_GPU)
    queue.workers = 3
    queue.submit(run_request({"rounds": 5}))
    queue.submit(run_request({"rounds": 6}))
    queue.submit(report_request(folder, ["first"]))
    queue.submit(shares_request(folder, "first"))
    assert begun(queue) == ["report", "run", "shares"]
    queue.submit(run_request({"rounds": 7, "device": "cpu"}))
    assert begun(queue) == ["report", "run", "run", "shares"]
    assert [job.request["settings"]["rounds"] for job in queue.all() if job.state == "waiting"] == [6]


def test_orders_of_a_live_fleet_wait_until_it_is_free(queue, folder):
    plant = folder.root / "plant"
    shutil.copytree(folder.root / "first", plant / "run")
    (plant / "fleet.toml").write_text('address = "127.0.0.1:8443"\nsites = ["a", "b"]\n')
    (plant / "server").mkdir()
    try:
        queue.workers = 3
        first, second = (queue.submit(ondemand_request(folder, "plant", {label: 1.0})) for label in "01")
        with (plant / "server" / "run.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert begun(queue) == []
            assert "does another one now" in queue.held_up(first)
            queue.submit(ondemand_request(folder, "first", {"0": 1.0}))
            assert begun(queue) == ["ondemand"]
        # The run that had the fleet has ended; its orders follow one by one.
        begun(queue)
        assert (first.state, second.state) == ("running", "waiting")
        assert queue.held_up(first) is None and "does another one now" in queue.held_up(second)
        with queue._changed:
            queue._take(first, {"code": 2, "error": "The sites are away."})
        (queue.place(first.id) / "result.json").unlink(missing_ok=True)
        begun(queue)
        assert (first.state, second.state) == ("failed", "running")
        # Who asks again asks the sites again.
        assert queue.submit(first.meaning) is first and first.state == "waiting"
    finally:
        shutil.rmtree(plant)


def test_a_model_that_was_removed_is_made_again(queue, folder):
    request = ondemand_request(folder, "first", {"0": 1.0})
    job = queue.submit(request)
    job.state = "done"
    assert queue.lost(job) and queue.submit(request).state == "waiting"
    job.state = "done"
    place = folder.root / request.place / "target-1"
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes(b"")
    try:
        assert not queue.lost(job) and queue.submit(request).state == "done"
    finally:
        shutil.rmtree(place.parent)


def test_a_run_that_was_removed_is_made_again_when_it_is_asked_for(queue, folder):
    request = run_request({"rounds": 2}, "kept")
    job = queue.submit(request)
    place = folder.root / "kept"
    shutil.copytree(folder.root / "first", place)
    try:
        with queue._changed:
            queue._end(job, "done")
        assert not queue.lost(job) and queue.submit(request).state == "done"
        shutil.rmtree(place)
        assert queue.lost(job)
        again = queue.submit(request)
        assert (again.id, again.state) == (job.id, "waiting")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_a_fault_of_the_disk_does_not_end_the_queue(served_runs, tmp_path, monkeypatch, capsys):
    shutil.copytree(served_runs / "first", tmp_path / "first")
    folder = ServedFolder(tmp_path)
    folder.claim()
    queue, faults = JobQueue(folder), [OSError(28, "No space left on device")] * 2
    job = queue.submit(report_request(folder, ["first"]))
    write = queue._write

    def full(job):
        if faults:
            raise faults.pop()
        write(job)

    monkeypatch.setattr("covey.serve.job_queue._AFTER_FAULT", 0.05)
    monkeypatch.setattr(queue, "_write", full)
    queue.start()
    try:
        done = queue.wait(job.id, PATIENCE)
        assert (done.state, done.starts, done.crashes, faults) == ("done", 1, 0, [])
    finally:
        queue.stop()
    said = capsys.readouterr().err
    assert "covey: Jobs wait: [Errno 28] No space left on device." in said and "Traceback" not in said


def test_a_job_that_crashes_again_and_again_is_given_up(tmp_path):
    folder = ServedFolder(tmp_path / "runs")
    folder.claim()
    queue = JobQueue(folder, retries=1)
    job = queue.submit(run_request({**SMALL_RUN, "rounds": 100_000}))
    queue.start()
    try:
        for crashes in (1, 2):
            wait_until(lambda: bool(lock_holder(queue.place(job.id))), "its process")
            # A process that ends before the queue has seen it is waited for a while.
            wait_until(lambda: job.id not in queue._begun, "the queue")
            os.kill(lock_holder(queue.place(job.id)) or 0, signal.SIGKILL)
            wait_until(lambda: job.crashes == crashes, "the crash")  # noqa: B023
        assert queue.wait(job.id, PATIENCE).state == "failed"
        assert (job.starts, job.error) == (2, "It crashed 2 times. Its process ended without a result.")
        # Who asks for it again has it tried as often again.
        assert queue.retry(job.id).crashes == 0
        wait_until(lambda: job.state == "running" and bool(lock_holder(queue.place(job.id))), "its process")
        queue.cancel(job.id)
        assert queue.wait(job.id, PATIENCE).state == "cancelled"
    finally:
        queue.stop()


STUBBORN = """
import signal, subprocess, sys, time
from pathlib import Path
from covey.storage import FolderLock

place = Path(sys.argv[1])
lock = FolderLock(place, "job")

def count(*_):
    with (place / "told").open("a") as file:
        file.write("x")

signal.signal(signal.SIGINT, count)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(place / "child").write_text(str(child.pid))
while True:
    time.sleep(0.05)
"""
"""A job's process that does not end when it is told to, and has a worker."""


@pytest.mark.parametrize("wanted", ["cancel", "stop"])
def test_a_cancelled_job_that_goes_on_is_told_again_and_then_killed_with_its_workers(tmp_path, monkeypatch, wanted):
    # Two signals that arrive before a busy machine lets the process handle the first count as one.
    monkeypatch.setattr("covey.serve.job_queue._URGE", (1.0, 3.0))
    folder = ServedFolder(tmp_path / "runs")
    folder.claim()
    request = run_request({"rounds": 5})
    place = folder.own / "jobs" / request.identity
    place.mkdir(parents=True)
    job = Job(request.identity, 1, request.as_mapping(), state="running", starts=1)
    write_json(place / "job.json", {"format": 1, **job.as_mapping()})
    stubborn = subprocess.Popen([sys.executable, "-c", STUBBORN, str(place)], start_new_session=True)
    wait_until((place / "child").exists, "the process")
    queue = JobQueue(folder)
    # No other process is begun.
    monkeypatch.setattr(queue._processes, "start", lambda: None)
    queue.start()
    try:
        queue.cancel(request.identity, wanted)
        told = place / "told"
        wait_until(lambda: told.exists(), "the first signal")
        if wanted == "stop":
            # A round may take long: who stops a run waits for its end.
            time.sleep(1.5)
            assert told.read_text() == "x" and stubborn.poll() is None
            queue.cancel(request.identity)
        assert queue.wait(request.identity, PATIENCE).state == "cancelled"
        assert told.read_text() == "xx" and stubborn.wait(PATIENCE) == -signal.SIGKILL
        child = int((place / "child").read_text())
        wait_until(lambda: not _runs(child), "the end of its worker")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(stubborn.pid, signal.SIGKILL)
        queue.stop()


def _runs(process):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
