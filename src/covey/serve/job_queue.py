"""Jobs on disk: a folder for each, named by its request, and a thread that has them done.

`job.json` holds the request and the state, and is replaced whole; `result.json` is written once, by the process that
did the job. That process has the folder's lock while it lives, so that a new server knows which jobs go on, and no job
has two processes. A process that ended without a result crashed: its job is begun again, at most `retries` times, and
goes on where its run folder ends.

    waiting → running → done, failed, cancelled or stopped; a job that is asked for again waits again
"""

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from covey.errors import Refusal, require
from covey.fleet.job_lock import is_busy
from covey.job.run_index import kind_of
from covey.serve.job_events import JobEvents
from covey.serve.job_record import Job
from covey.serve.job_request import QUICK, JobRequest
from covey.serve.job_slots import Slots
from covey.serve.job_workers import Workers
from covey.serve.model_order import fleet_of
from covey.serve.served_folder import ServedFolder
from covey.serve.spawner import RESULT
from covey.storage import lock_holder, read_json, sync_folder, write_json

_GRACE = 15.0
"""Seconds after which a process that was begun must have its job's lock."""

_URGE = (10.0, 20.0)
"""Seconds after a cancel after which a process is interrupted a second time, and killed."""

_INTERRUPTED = 130
"""Exit code of a command that was stopped."""

_AFTER_FAULT = 2.0
"""Seconds after which the queue goes on when something was wrong with the disk."""

_MOST_WAITING = 10_000


class JobQueue:
    """The jobs of a served folder; `start` has them done."""

    def __init__(self, folder: ServedFolder, workers: int = 1, retries: int = 3) -> None:
        self.folder, self.workers, self.retries = folder, workers, retries
        self._jobs: dict[str, Job] = {}
        self._changed = threading.Condition(threading.RLock())
        self._stopping = False
        self._told: dict[str, tuple[float, int]] = {}
        """Job → when its process was told to end, and the signals that were sent."""
        self._begun: dict[str, float] = {}
        self._fleets: dict[str, Path | None] = {}
        """Request → the fleet that it asks."""
        self._thread = threading.Thread(target=self._serve, name="jobs", daemon=True)
        self._processes = Workers(self._wake)
        self.events = JobEvents(self.place)
        self._read()

    def place(self, id_: str) -> Path:
        """Return the folder of a job."""
        return self.folder.own / "jobs" / id_

    def start(self) -> None:
        """Begin to do jobs."""
        self._processes.start()
        self._thread.start()

    def stop(self, patience: float = 30.0) -> None:
        """Ask running jobs to end after their round, so that they go on with the next server; stop doing jobs."""
        with self._changed:
            for job in self._running():
                if not job.wanted:
                    job.wanted = "pause"
                    self._write(job)
                    self._urge(job)
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        end = time.monotonic() + patience
        while self._running() and time.monotonic() < end:
            with self._changed:
                self._look()
            time.sleep(0.05)
        self._processes.stop()

    def submit(self, request: JobRequest, *, again: bool = False) -> Job:
        """Put a request in the queue, or return the job that it is already.

        It waits again if it is over and `again` is given, or if what it made is gone, or if its live fleet failed it.
        """
        request.require_plain()
        with self._changed:
            job = self._jobs.get(request.identity) or self._same_base(request)
            if job is not None:
                again = again or self.lost(job) or (job.state == "failed" and self._fleet(job.meaning) is not None)
                return self.retry(job.id) if again and job.over else job
            waiting = sum(one.state == "waiting" for one in self._jobs.values())
            require(waiting < _MOST_WAITING, f"{waiting:,} jobs are waiting, which is the most that may.")
            named = request.content.get("name")
            if named:
                require(not self.folder.place(named).exists(), f"There is a folder '{named}' already: choose a name.")
            number = 1 + max((one.number for one in self._jobs.values()), default=0)
            job = Job(request.identity, number, request.as_mapping(), asked=time.time())
            self.place(job.id).mkdir(parents=True, exist_ok=True)
            self._write(job)
            sync_folder(self.place(job.id).parent)
            self._jobs[job.id] = job
            self._say(job)
            self._changed.notify_all()
            return job

    def retry(self, id_: str) -> Job:
        """Have a job that is over wait again; it goes on where it ended."""
        with self._changed:
            job = self.job(id_)
            require(job.over, f"The job {id_} is {job.state}, not over.")
            with suppress(FileNotFoundError):
                (self.place(id_) / RESULT).unlink()
            job.state, job.wanted, job.crashes = "waiting", "", 0
            job.result, job.error, job.ended = None, None, None
            self._write(job)
            self._say(job)
            self._changed.notify_all()
            return job

    def cancel(self, id_: str, wanted: str = "cancel") -> Job:
        """End a job: one that runs ends after its round, or after a while at once. What it wrote stays."""
        with self._changed:
            job = self.job(id_)
            if job.state == "waiting":
                self._end(job, "cancelled" if wanted == "cancel" else "stopped")
            elif job.state == "running" and job.wanted in ("", "stop", "pause"):
                told = bool(job.wanted)
                job.wanted = wanted
                self._write(job)
                if not told:
                    self._urge(job)
                self._changed.notify_all()
            return job

    def job(self, id_: str) -> Job:
        """Return a job; refuse an identity that there is not."""
        job = self._jobs.get(id_)
        if job is None:
            raise Refusal(f"There is no job '{id_[:40]}'.")
        return job

    def all(self) -> list[Job]:
        """Return the jobs of people, the last asked for first."""
        with self._changed:
            listed = [job for job in self._jobs.values() if job.request["kind"] not in QUICK]
        return sorted(listed, key=lambda job: -job.number)

    def lost(self, job: Job) -> bool:
        """True if the run, the comparison or the model that a job made has been removed."""
        kind, place = job.request["kind"], job.meaning.place
        if job.state != "done" or place is None or kind == "resume":
            return False
        if kind == "ondemand":
            return self.folder.file(f"{place}/target-1/model.safetensors") is None
        return kind_of(self.folder.root / place) is None

    def held_up(self, job: Job) -> str | None:
        """Return in a sentence why a job waits for a live fleet; None if it does not."""
        fleet = self._fleet(job.meaning) if job.state == "waiting" else None
        with self._changed:
            asked = [self._fleet(one.meaning) for one in self._running()]
        if fleet is None or not (fleet in asked or is_busy(fleet)):
            return None
        return f"The fleet {fleet.name} does one job at a time, and does another one now. This one waits for its end."

    def writing(self, path: str) -> Job | None:
        """Return the job that writes, or wrote last, the run or job at a path."""
        with self._changed:
            found = [job for job in self._jobs.values() if job.meaning.place == path]
        return max(found, key=lambda job: (not job.over, job.number), default=None)

    def processes(self) -> dict[str, int]:
        """Return the processes of the jobs that run, by job."""
        with self._changed:
            running = [job.id for job in self._running()]
        return {id_: holder for id_ in running if (holder := lock_holder(self.place(id_)))}

    def wait(self, id_: str, seconds: float) -> Job:
        """Wait until a job is over, at most so long, and return it."""
        with self._changed:
            self._changed.wait_for(lambda: self.job(id_).over, seconds)
            return self.job(id_)

    # What follows is the thread's, and holds the condition.

    def _serve(self) -> None:
        with self._changed:
            while not self._stopping:
                pause = 0.2 if self._running() else 5.0
                try:
                    self._look()
                    self._begin_more()
                except OSError as error:
                    # A full disk must not end the queue: what could not be done is tried again.
                    print(f"covey: Jobs wait: {error}. It is tried again.", file=sys.stderr, flush=True)
                    pause = _AFTER_FAULT
                except Exception:
                    traceback.print_exc()
                    pause = _AFTER_FAULT
                self._changed.wait(pause)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _running(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.state == "running"]

    def _look(self) -> None:
        """Take over what running jobs have come to."""
        for job in self._running():
            place = self.place(job.id)
            self.events.follow(job.id, self._member_root(job))
            if self._processes.has(job.id) or lock_holder(place) is not None:
                self._begun.pop(job.id, None)
                self._urge(job)
            elif (place / RESULT).exists():
                self.events.follow(job.id, self._member_root(job), last=True)
                self._take(job, read_json((place / RESULT).read_bytes()))
            elif time.monotonic() > self._begun.get(job.id, 0.0):
                self._crashed(job)

    def _take(self, job: Job, result: dict[str, Any]) -> None:
        code = result["code"]
        job.result, job.error = result.get("output"), result.get("error")
        if code == _INTERRUPTED:
            # A result is written once for each time that the job is asked for.
            (self.place(job.id) / RESULT).unlink()
            if job.wanted == "pause":
                job.state, job.wanted = "waiting", ""
                self._told.pop(job.id, None)
                self._write(job)
                self._say(job)
            else:
                self._end(job, "cancelled" if job.wanted == "cancel" else "stopped")
        elif code == 2 and (fleet := self._fleet(job.meaning)) is not None and is_busy(fleet):
            # Another program was quicker to take the fleet.
            (self.place(job.id) / RESULT).unlink()
            job.state, job.error = "waiting", None
            self._write(job)
            self._say(job)
        elif code in (0, 2):
            self._end(job, "done" if code == 0 else "failed")
        else:
            (self.place(job.id) / RESULT).unlink()
            self._crashed(job, job.error)

    def _crashed(self, job: Job, error: str | None = None) -> None:
        self._told.pop(job.id, None)
        if job.wanted in ("cancel", "stop"):
            self._end(job, "cancelled" if job.wanted == "cancel" else "stopped")
            return
        # One that was told to end before it had begun has not crashed.
        job.crashes, job.wanted = job.crashes + (job.wanted != "pause"), ""
        if job.crashes > self.retries:
            job.error = f"It crashed {job.crashes} times. {error or 'Its process ended without a result.'}"
            self._end(job, "failed")
        else:
            job.state = "waiting"
            self._write(job)
            self._say(job)

    def _end(self, job: Job, state: str) -> None:
        job.state, job.ended, job.wanted = state, time.time(), ""
        self._told.pop(job.id, None)
        self._write(job)
        self._say(job)
        self._changed.notify_all()

    def _begin_more(self) -> None:
        running = [job.meaning for job in self._running()]
        slots = Slots(running, self.workers, self._fleet, is_busy)
        for job in sorted((job for job in self._jobs.values() if job.state == "waiting"), key=lambda job: job.number):
            if slots.full:
                break
            if slots.take(job.meaning):
                self._start(job)

    def _fleet(self, asked: JobRequest) -> Path | None:
        if asked.identity not in self._fleets:
            self._fleets[asked.identity] = asked.fleet(self.folder)
        return self._fleets[asked.identity]

    def _start(self, job: Job) -> None:
        try:
            order = self._order(job)
        except Refusal as refusal:
            job.error = str(refusal)
            self._end(job, "failed")
            return
        before = (job.state, job.begun, job.starts)
        job.state, job.begun, job.starts = "running", time.time(), job.starts + 1
        try:
            self._write(job)
        except OSError:
            job.state, job.begun, job.starts = before
            raise
        self._say(job)
        self._begun[job.id] = time.monotonic() + _GRACE
        self._processes.begin({"job": job.id, "place": str(self.place(job.id)), **order})

    def _order(self, job: Job) -> dict[str, Any]:
        asked, place = job.meaning, self.place(job.id)
        if asked.kind == "federation":
            run = str(self.folder.place(asked.content["path"]))
            return {"function": "federation", "arguments": {"run": run}}
        if asked.kind == "shares":
            asked.require_same_base(self.folder)
            base = self.folder.place(asked.content["base"])
            fleet = fleet_of(base)
            arguments = {"base": str(base), "out": str(place / "shares.json"), "fleet": fleet and str(fleet)}
            return {"function": "shares", "arguments": arguments}
        return {"arguments": asked.arguments(self.folder, place)}

    def _urge(self, job: Job) -> None:
        """Tell a job's process to end, once it listens; one that is cancelled and goes on and on a second time."""
        if not job.wanted:
            return
        begin, sent = self._told.setdefault(job.id, (time.monotonic(), 0))
        passed = time.monotonic() - begin
        due = sent == 0 or (job.wanted == "cancel" and sent <= len(_URGE) and passed > _URGE[sent - 1])
        number = signal.SIGKILL if sent == len(_URGE) else signal.SIGINT
        if due and self._signal(job, number):
            self._told[job.id] = (begin, sent + 1)

    def _signal(self, job: Job, number: int) -> bool:
        """Send a signal to the process that has a job's lock; True if there is one."""
        holder = lock_holder(self.place(job.id))
        if not holder:
            return False
        with suppress(OSError):
            # It leads a process group of its own: a kill is for its workers too.
            os.killpg(holder, number) if number == signal.SIGKILL else os.kill(holder, number)
        return True

    def _member_root(self, job: Job) -> Path | None:
        place = job.meaning.place
        return None if place is None else self.folder.root / place

    def _same_base(self, request: JobRequest) -> Job | None:
        """Return the unfinished job of the same request about a base that has gone on since."""
        if request.kind not in ("ondemand", "shares"):
            return None
        unlike = dict.fromkeys(("base_round", "base_model", "target"))
        wanted = {**request.as_mapping(), **unlike}
        return next((one for one in self._jobs.values() if not one.over and {**one.request, **unlike} == wanted), None)

    def _say(self, job: Job) -> None:
        more = {"error": job.error} if job.error else {}
        self.events.add(job.id, {"event": "state", "state": job.state, "starts": job.starts, **more})

    def _write(self, job: Job) -> None:
        write_json(self.place(job.id) / "job.json", {"format": 1, **job.as_mapping()})

    def _read(self) -> None:
        """Read the jobs that earlier servers left; those that ran are looked at first."""
        jobs = self.folder.own / "jobs"
        for path in sorted(jobs.glob("*/job.json")) if jobs.is_dir() else ():
            try:
                data = read_json(path.read_bytes())
                data.pop("format")
                job = Job(**data)
                require(job.id == path.parent.name == job.meaning.identity, "its identity is another")
            except (OSError, ValueError, KeyError, TypeError):
                continue
            self._jobs[job.id] = job
            # The last server may have begun it just now.
            self._begun[job.id] = time.monotonic() + 1.0
            if job.wanted:
                self._told[job.id] = (time.monotonic(), 1)
