"""JSON for programs: runs, jobs, models on demand, health and figures."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from covey.core.interrupt import request_stop
from covey.errors import Refusal, require
from covey.job.on_demand.nearest_mix import BaseShares
from covey.job.run_index import RunIndex, filtered, member_runs
from covey.job.run_summary import KINDS, STATES
from covey.serve.job_queue import JobQueue
from covey.serve.job_record import Job
from covey.serve.job_request import (
    analysis_request,
    comparison_request,
    federation_request,
    ondemand_request,
    report_request,
    resume_request,
    run_request,
    shares_request,
)
from covey.serve.model_facts import model_facts, spent_by_base
from covey.serve.model_order import base_run, target_text
from covey.serve.prometheus import exposition
from covey.serve.report_pages import drop_old_pages
from covey.serve.round_stream import Counters, job_events, run_events, shortened
from covey.serve.round_tail import RoundTail
from covey.serve.served_folder import ServedFolder
from covey.storage import is_being_written

_PATIENCE = 120.0
"""Seconds that a request waits for quick work of a page."""

_BRIEF = 3.0
"""Seconds that it waits for a live fleet that does something else."""

_LONGEST_HEADER = 4000
"""Most bytes of a model's facts in a header."""

_ORDERS = ("changed", "score", "accuracy", "name", "path", "done", "rounds", "dataset", "state", "kind")


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RunWanted(_Asked):
    """Settings of a run, as for `covey.run`: sections as mappings, or dotted keys."""

    settings: dict[str, Any] = Field(default_factory=dict)
    name: str | None = Field(None, description="Name of its folder; by default made from the settings.")


class ComparisonWanted(_Asked):
    """A comparison, as for `covey.compare`."""

    methods: list[str] = Field(min_length=1, max_length=100)
    seeds: int | list[int] = 3
    vary: dict[str, list[Any]] = Field(default_factory=dict)
    target: float | None = None
    fairness: bool = False
    settings: dict[str, Any] = Field(default_factory=dict)
    name: str | None = None


class AnalysisWanted(_Asked):
    """An analysis, as for `covey.analyze`; `of` is the run whose model and federation it is about."""

    of: str | None = None
    insight: str = "head"
    rounds: int | None = None
    level: float = 0.05
    settings: dict[str, Any] = Field(default_factory=dict)


class ModelWanted(_Asked):
    """A model for a class mix, from a base run."""

    base: str = Field(description="Path of the base run, or of a live fleet, in the folder that is served.")
    target: dict[str, float] | str = Field(description="Class, by name or number, to its share.")
    estimator: Literal["learned", "analytic", "analytic-as-is", "ground-truth"] = "analytic"
    rounds: int = Field(50, ge=1, le=1_000_000)
    pairing: Literal["unscaled", "scaled_r", "scaled_rn"] | None = None
    survey: bool = False
    insight_dp: str | None = Field(None, description="Epsilon and delta of the clients' answers, such as 1,1e-5.")
    continued: bool = False
    without: str | None = Field(None, description="Clients to leave out, by name or number, such as hosp07,hosp12.")
    settings: dict[str, Any] = Field(default_factory=dict)


class MixWanted(_Asked):
    """A class mix whose nearest possible one is sought."""

    base: str
    target: dict[str, float] | str


class ReportWanted(_Asked):
    """A report about runs, comparisons or on-demand jobs together."""

    folders: list[str]


_DIGITS = {"base": "fedavg-uniform", "target": {"0": 0.5, "3": 0.5}, "rounds": 10}
_EXAMPLES: dict[str, dict[str, Any]] = {
    "run": {"settings": {"method": "fedprox", "rounds": 20, "environment": {"name": "dirichlet", "alpha": 0.1}}},
    "comparison": {"methods": ["fedavg", "fedprox", "iid"], "seeds": 5, "settings": {"rounds": 20}},
    "analysis": {"level": 0.05, "settings": {"environment": "dirichlet", "clients": 100}},
    "model": _DIGITS,
    "mix": {"base": "fedavg-uniform", "target": {"0": 0.5, "3": 0.5}},
    "report": {"folders": ["fedavg-uniform", "fedprox-uniform"]},
}


def _example(name: str) -> Any:
    return Body(openapi_examples={name: {"value": _EXAMPLES[name]}})


class ServeActions:
    """What routes do, for programs and for people alike."""

    def __init__(self, folder: ServedFolder, queue: JobQueue) -> None:
        self.folder, self.queue, self.counters = folder, queue, Counters()
        self.index = RunIndex(folder.root)
        self._shares: dict[str, BaseShares] = {}

    def stop(self, path: str) -> None:
        """Ask a run, or the runs of a job, to end after the round; whichever process they are in."""
        place = self.folder.place(path)
        runs = [run for _, run in member_runs(place) if is_being_written(run)]
        job = self.queue.writing(path)
        require(bool(runs) or (job is not None and not job.over), f"'{path[:80]}' is not running.")
        if job is not None and not job.over:
            self.queue.cancel(job.id, "stop")
        for run in runs:
            request_stop(run)

    def resume(self, path: str) -> Job:
        """Have a job resume what was stopped: the job that began it, or a new one."""
        line = self.index.one(path) if self.folder.place(path).is_dir() else None
        job = self.queue.writing(path)
        require(line is not None or job is not None, f"There is no run '{path[:80]}'.")
        require(line is None or line.state != "running", f"'{path[:80]}' is running.")
        require(line is None or line.state != "finished", f"'{path[:80]}' is finished.")
        if job is not None:
            return self.queue.retry(job.id) if job.over else job
        return self.queue.submit(resume_request(path), again=True)

    def quick(self, job: Job, seconds: float = _PATIENCE) -> Job:
        """Wait for work that a page needs."""
        job = self.queue.wait(job.id, min(seconds, _BRIEF))
        require(job.over or self.queue.held_up(job) is None, self.queue.held_up(job) or "")
        job = self.queue.wait(job.id, seconds)
        require(job.state == "done", job.error or f"This takes longer than {seconds:g} seconds; ask again.")
        return job

    def shares_of(self, base: str) -> BaseShares:
        """Return the class shares of a base run's clients, asked for once for each base."""
        request = shares_request(self.folder, base)
        if request.identity in self._shares:
            return self._shares[request.identity]
        # It may be a job that was asked for before the base went on, and has not been done yet.
        job = self.quick(self.queue.submit(request, again=self._failed(request.identity)))
        return self._shares.setdefault(job.id, BaseShares.read(self.queue.place(job.id) / "shares.json"))

    def report(self, paths: list[str]) -> Path:
        """Return a fresh report about runs, made at most once for what they hold now."""
        request = report_request(self.folder, paths)
        page = self.queue.place(request.identity) / "page.html"
        self.quick(self.queue.submit(request, again=self._failed(request.identity) or not page.exists()))
        drop_old_pages(self.queue)
        return page

    def federation(self, path: str) -> Any:
        """Return the true class mixes of a simulated run's clients; none, and why, where they are not known here."""
        request = federation_request(self.folder, path)
        job = self.queue.wait(self.queue.submit(request).id, _PATIENCE)
        nothing: dict[str, Any] = {"class_names": [], "sizes": [], "shares": []}
        return job.result or {**nothing, "reason": job.error or "It takes long.", "pending": not job.over}

    def _failed(self, id_: str) -> bool:
        try:
            return self.queue.job(id_).state != "done"
        except Refusal:
            return False

    def model_of(self, id_: str) -> tuple[Job, dict[str, Any], Path]:
        """Return the job, the model's facts and its file."""
        job = self.queue.job(id_)
        require(job.request["kind"] == "ondemand", f"The job {id_[:40]} makes no model on demand.")
        require(job.state == "done" and job.result is not None, f"The job {id_[:40]} is {job.state}: no model yet.")
        assert job.meaning.place is not None
        file = self.folder.file(f"{job.meaning.place}/target-1/model.safetensors")
        if file is None:
            raise Refusal(f"The model of the job {id_[:40]} is no longer in its folder.")
        return job, model_facts(job, spent_by_base(self.queue.all())), file


def routes(do: ServeActions) -> APIRouter:
    """Return the routes of the interface for programs."""
    api = APIRouter()
    last_event = Annotated[str, Header(alias="Last-Event-ID", description="Go on after this event.")]

    @api.get("/healthz", summary="Is the server up?")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @api.get("/metrics", summary="Figures for Prometheus", response_class=PlainTextResponse)
    def metrics() -> Response:
        text = exposition(do.index.all(), do.queue.all(), do.counters, do.queue.processes())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @api.get("/runs", summary="Runs, comparisons, on-demand jobs and fleets")
    def runs(
        text: str = "",
        kind: Annotated[str, Query(pattern=f"^({'|'.join(KINDS)})?$")] = "",
        state: Annotated[str, Query(pattern=f"^({'|'.join(STATES)})?$")] = "",
        order: Annotated[str, Query(pattern=f"^({'|'.join(_ORDERS)})$")] = "changed",
        descending: bool = True,
        most: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    ) -> list[dict[str, Any]]:
        found = filtered(do.index.all(), text=text, kind=kind, state=state, order=order, descending=descending)
        return [line.as_mapping() for line in found[:most]]

    @api.post("/runs", status_code=202, summary="Begin a run")
    def begin_run(wanted: Annotated[RunWanted, _example("run")]) -> dict[str, Any]:
        return job_view(do.queue.submit(run_request(wanted.settings, wanted.name)), do)

    @api.post("/comparisons", status_code=202, summary="Begin a comparison")
    def begin_comparison(wanted: Annotated[ComparisonWanted, _example("comparison")]) -> dict[str, Any]:
        return job_view(do.queue.submit(comparison_request(**wanted.model_dump())), do)

    @api.post("/analyses", status_code=202, summary="Begin an analysis")
    def begin_analysis(wanted: Annotated[AnalysisWanted, _example("analysis")]) -> dict[str, Any]:
        if wanted.of is not None:
            base_run(do.folder, wanted.of)
        return job_view(do.queue.submit(analysis_request(**wanted.model_dump())), do)

    @api.post("/models", status_code=202, summary="Order a model for a class mix")
    def order_model(wanted: Annotated[ModelWanted, _example("model")]) -> dict[str, Any]:
        """The same request again is the same job, whoever sends it."""
        given = wanted.model_dump()
        return job_view(do.queue.submit(ondemand_request(do.folder, given.pop("base"), **given)), do)

    @api.get("/models/{id_}.safetensors", summary="A model on demand, as a file", response_class=FileResponse)
    def model_file(id_: str) -> Response:
        _, about, file = do.model_of(id_)
        facts = {key: about[key] for key in ("mix", "clients", "epsilon", "accuracy", "distance", "base_round")}
        if len(json.dumps(facts)) > _LONGEST_HEADER:
            # Proxies and programs bound a header; GET /models/{id} has everything.
            facts |= {"mix": None, "clients": len(about["clients"])}
        headers = {"X-Covey-Model": json.dumps(facts)}
        return FileResponse(file, media_type="application/octet-stream", filename=f"{id_}.safetensors", headers=headers)

    @api.get("/models/{id_}", summary="What a model on demand is: mix, clients, privacy, accuracy")
    def model(id_: str) -> dict[str, Any]:
        return do.model_of(id_)[1]

    @api.post("/mixes", summary="The nearest class mix that the clients of a base can make")
    def nearest(wanted: Annotated[MixWanted, _example("mix")]) -> dict[str, Any]:
        target = wanted.target if isinstance(wanted.target, str) else target_text(wanted.target)
        return do.shares_of(wanted.base).nearest(target)

    @api.get("/jobs", summary="Jobs, the last asked for first")
    def jobs() -> list[dict[str, Any]]:
        listed = do.queue.all()
        spent = spent_by_base(listed)
        return [job_view(job, do, spent) for job in listed]

    @api.get("/jobs/{id_}", summary="A job")
    def job(id_: str) -> dict[str, Any]:
        return job_view(do.queue.job(id_), do)

    @api.get("/jobs/{id_}/events", summary="Events of a job as they happen", response_class=StreamingResponse)
    def events_of_job(id_: str, last_event_id: last_event = "", after: str = "") -> Response:
        do.queue.job(id_)
        return _stream(job_events(do.queue, id_, do.counters, last_event_id or after))

    @api.post("/jobs/{id_}/cancel", summary="Cancel a job")
    def cancel(id_: str) -> dict[str, Any]:
        return job_view(do.queue.cancel(id_), do)

    @api.post("/jobs/{id_}/retry", summary="Have a job that is over wait again")
    def retry(id_: str) -> dict[str, Any]:
        return job_view(do.queue.retry(id_), do)

    @api.get("/runs/{path:path}/events", summary="Rounds as they end", response_class=StreamingResponse)
    def events_of_run(path: str, last_event_id: last_event = "", after: str = "") -> Response:
        place = do.folder.place(path)
        if do.index.one(path) is None and do.queue.writing(path) is None:
            raise HTTPException(404, f"There is no run '{path[:80]}'.")
        last = last_event_id or after
        return _stream(run_events(place, path, do.index, do.queue, do.counters, last))

    @api.get("/runs/{path:path}/rounds", summary="The rounds so far")
    def rounds(path: str, after: int = 0) -> dict[str, Any]:
        members = member_runs(do.folder.place(path))
        require(bool(members), f"There is no run '{path[:80]}'.")
        return {
            label: [shortened(row) for row in RoundTail(run / "metrics.jsonl", after).read()] for label, run in members
        }

    @api.get("/runs/{path:path}/federation", summary="True class mixes of a simulated run's clients")
    def federation(path: str) -> Any:
        return do.federation(path)

    @api.post("/runs/{path:path}/stop", status_code=202, summary="Stop a run after its round")
    def stop(path: str) -> dict[str, Any]:
        do.stop(path)
        return {"path": path, "asked": time.time()}

    @api.post("/runs/{path:path}/resume", status_code=202, summary="Resume what was stopped")
    def resume(path: str) -> dict[str, Any]:
        return job_view(do.resume(path), do)

    @api.get("/runs/{path:path}", summary="A run, comparison, on-demand job or fleet")
    def run(path: str) -> dict[str, Any]:
        do.folder.place(path)
        line = do.index.one(path)
        if line is None:
            raise HTTPException(404, f"There is no run '{path[:80]}'.")
        return line.as_mapping()

    @api.post("/reports", summary="A report about runs, as a page", response_class=FileResponse)
    def report(wanted: Annotated[ReportWanted, _example("report")]) -> Response:
        return FileResponse(do.report(wanted.folders), media_type="text/html")

    @api.get("/{rest:path}", include_in_schema=False)
    def nothing(rest: str, request: Request) -> Response:
        raise HTTPException(404, f"There is nothing at /{rest[:80]}.")

    return api


def job_view(job: Job, do: ServeActions, spent: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return a job as programs see it; `spent` is `spent_by_base`, if the caller knows it."""
    command = None
    if job.request["kind"] not in ("federation", "shares"):
        try:
            command = job.meaning.command(do.folder)
        except Refusal:
            command = None
    facts, lost = None, do.queue.lost(job)
    if job.request["kind"] == "ondemand" and job.state == "done" and job.result:
        facts = model_facts(job, spent_by_base(do.queue.all()) if spent is None else spent)
    more = {"path": job.meaning.place, "command": command, "model": facts, "lost": lost}
    return {**job.as_mapping(), **more, "waits_for": do.queue.held_up(job)}


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
