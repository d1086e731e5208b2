"""Figures for Prometheus, in its text format: training and the server itself."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from covey.job.run_summary import STATES, RunSummary
from covey.serve.job_record import Job
from covey.serve.round_stream import Counters

_MOST = 200
"""Runs that have figures of their own: those that run, and those that changed last."""

BEGUN = time.time()


def exposition(
    lines: Sequence[RunSummary], jobs: Sequence[Job], counters: Counters, processes: Mapping[str, int]
) -> str:
    """Return all figures; `processes` are those of the jobs that run, by job."""
    states = Counter(line.state for line in lines)
    queue = Counter(job.state for job in jobs)
    used = os.times()
    text = [
        _head("covey_runs", "gauge", "Runs and jobs of runs under the folder, by state."),
        *(_line("covey_runs", states[state], state=state) for state in STATES),
        _head("covey_jobs", "gauge", "Jobs of the queue, by state."),
        *(_line("covey_jobs", queue[state], state=state) for state in _JOB_STATES),
        _head("covey_job_crashes_total", "counter", "Processes of jobs that ended without a result."),
        _line("covey_job_crashes_total", sum(job.crashes for job in jobs)),
    ]
    shown = sorted(lines, key=lambda line: (line.state != "running", -line.changed))[:_MOST]
    for name, help_, value in _OF_RUNS:
        text.append(_head(f"covey_run_{name}", "gauge", help_))
        for line in shown:
            if (figure := value(line)) is not None:
                metric = {"metric": line.metric or ""} if name == "score" else {}
                about = {"run": line.path, "kind": line.kind, "name": line.name, **metric}
                text.append(_line(f"covey_run_{name}", figure, **about))
    for name, kind, help_, figure in (
        ("covey_http_requests_total", "counter", "Requests.", counters.requests),
        ("covey_events_total", "counter", "Events that were sent.", counters.events),
        ("covey_watching", "gauge", "Readers of live runs.", counters.watching),
        ("process_cpu_seconds_total", "counter", "Processor time of the server.", used.user + used.system),
        ("process_resident_memory_bytes", "gauge", "Memory of the server.", _resident()),
        ("process_start_time_seconds", "gauge", "Start of the server.", BEGUN),
    ):
        if figure is not None:
            text += [_head(name, kind, help_), _line(name, figure)]
    for name, help_, of in (
        ("cpu_seconds", "Processor time of a job's process.", _cpu),
        ("resident_memory_bytes", "Memory of a job's process.", _resident),
    ):
        text.append(_head(f"covey_job_{name}", "gauge", help_))
        for job, process in processes.items():
            if (figure := of(process)) is not None:
                text.append(_line(f"covey_job_{name}", figure, job=job))
    return "\n".join(text) + "\n"


_OF_RUNS: Sequence[tuple[str, str, Callable[[RunSummary], float | None]]] = (
    ("round", "Rounds done.", lambda line: line.done),
    ("rounds", "Rounds planned.", lambda line: line.rounds),
    ("accuracy", "Last accuracy on the test set.", lambda line: line.accuracy),
    ("score", "Last main metric on the test set, where it is not accuracy.", lambda line: line.score),
    ("epsilon", "What the clients' answers for a model on demand spent.", lambda line: line.epsilon),
    ("mix_accuracy", "Accuracy of models on demand on their mixes.", lambda line: line.mix_accuracy),
    ("loss", "Last loss on the test set.", lambda line: line.loss),
    ("last_change_seconds", "Time of the last round.", lambda line: line.changed),
)

_JOB_STATES = ("waiting", "running", "done", "failed", "cancelled", "stopped")


def _head(name: str, kind: str, help_: str) -> str:
    return f"# HELP {name} {help_}\n# TYPE {name} {kind}"


def _line(figure: str, value: float, /, **labels: str) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{figure}{{{inside}}} {value}" if labels else f"{figure} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _resident(process: int | str = "self") -> float | None:
    try:
        return float(int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        return None


def _cpu(process: int) -> float | None:
    """Return the processor time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
