"""`covey.Client`: runs, jobs and models of a server (`covey serve`) from Python, with the standard library alone."""

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from covey.errors import Refusal, require
from covey.storage import replacing

_OVER = ("done", "failed", "cancelled", "stopped")


class ServiceClient:
    """A server's address, and the token if it needs one.

    client = covey.Client("http://127.0.0.1:8484")
    job = client.order("fedavg-uniform", {"0": 0.5, "3": 0.5}, rounds=20)
    client.wait(job["id"])
    about = client.download(job["id"], "model.safetensors")   # mix, clients, ε, accuracy
    """

    def __init__(
        self, address: str = "http://127.0.0.1:8484", token: str | None = None, timeout: float = 150.0
    ) -> None:
        parts = urlsplit(address)
        require(
            parts.scheme in ("http", "https") and bool(parts.netloc),
            f"'{address}' is no address of a server, such as http://127.0.0.1:8484.",
        )
        self._address, self._token, self._timeout = address.rstrip("/"), token, timeout

    def runs(self, **asked: Any) -> list[dict[str, Any]]:
        """Return what is under the folder; `text`, `kind`, `state`, `order` and `descending` filter and sort."""
        found: list[dict[str, Any]] = self._get(f"/runs?{urlencode(asked)}")
        return found

    def run_of(self, path: str) -> dict[str, Any]:
        """Return the line of one run, comparison, on-demand job or fleet."""
        return dict(self._get(f"/runs/{quote(path)}"))

    def run(self, name: str | None = None, **settings: Any) -> dict[str, Any]:
        """Begin a run with settings as for `covey.run`, and return its job."""
        return self._post("/runs", {"settings": settings, **({"name": name} if name else {})})

    def compare(self, methods: Sequence[str], seeds: int | Sequence[int] = 3, **more: Any) -> dict[str, Any]:
        """Begin a comparison (`vary`, `target`, `fairness`, `settings`, `name`), and return its job."""
        numbers = seeds if isinstance(seeds, int) else list(seeds)
        return self._post("/comparisons", {"methods": list(methods), "seeds": numbers, **more})

    def analyze(self, **asked: Any) -> dict[str, Any]:
        """Begin an analysis (`of`, `insight`, `rounds`, `level`, `settings`), and return its job."""
        return self._post("/analyses", asked)

    def order(self, base: str, target: Mapping[str, float] | str, **options: Any) -> dict[str, Any]:
        """Order a model for a class mix, and return its job; the same order again is the same job."""
        given = target if isinstance(target, str) else {str(label): share for label, share in target.items()}
        return self._post("/models", {"base": base, "target": given, **options})

    def nearest(self, base: str, target: Mapping[str, float] | str) -> dict[str, Any]:
        """Return the nearest class mix that the clients of a base can make; nothing is trained."""
        return self._post("/mixes", {"base": base, "target": target})

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs, the last asked for first."""
        found: list[dict[str, Any]] = self._get("/jobs")
        return found

    def job(self, id_: str) -> dict[str, Any]:
        """Return a job."""
        return dict(self._get(f"/jobs/{quote(id_)}"))

    def cancel(self, id_: str) -> dict[str, Any]:
        """Cancel a job: one that runs ends after its round."""
        return self._post(f"/jobs/{quote(id_)}/cancel", {})

    def retry(self, id_: str) -> dict[str, Any]:
        """Have a job that is over wait again; it goes on where it ended."""
        return self._post(f"/jobs/{quote(id_)}/retry", {})

    def stop(self, path: str) -> None:
        """Ask a run to end after its round."""
        self._post(f"/runs/{quote(path)}/stop", {})

    def resume(self, path: str) -> dict[str, Any]:
        """Resume what was stopped, and return the job that does."""
        return self._post(f"/runs/{quote(path)}/resume", {})

    def wait(self, id_: str, seconds: float = 3600.0) -> dict[str, Any]:
        """Wait until a job is over and return it; one that was not done is refused. It outlasts a server's restart."""
        end = time.monotonic() + seconds
        while True:
            try:
                job = self.job(id_)
            except ConnectionError:
                job = {"state": "unknown"}
            if job["state"] in _OVER:
                require(job["state"] == "done", f"The job {id_} is {job['state']}: {job['error'] or 'by request'}")
                return job
            require(time.monotonic() < end, f"The job {id_} is {job['state']} after {seconds:g} seconds.")
            time.sleep(0.05)

    def events(self, address: str, after: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield identity, kind and content of the events at `/jobs/ID/events` or `/runs/PATH/events`.

        A lost connection is made again, from the last event on. A job's events end with `end`, a run's never.
        """
        last = after
        while True:
            try:
                with self._open(address, {"Last-Event-ID": last} if last else {}) as answer:
                    for id_, kind, data in _events(answer):
                        last = id_ or last
                        yield last, kind, data
                        if kind == "end":
                            return
            except (OSError, http.client.HTTPException):
                time.sleep(0.2)

    def download(self, id_: str, path: Path | str) -> dict[str, Any]:
        """Write the model of a job to a file, and return what it is: mix, clients, ε and accuracy."""
        with (
            self._open(f"/models/{quote(id_)}.safetensors") as answer,
            replacing(Path(path)) as beside,
            beside.open("wb") as file,
        ):
            while data := answer.read(1 << 20):
                file.write(data)
        return dict(self._get(f"/models/{quote(id_)}"))

    def healthy(self) -> bool:
        """True if the server answers."""
        try:
            return bool(self._get("/healthz")["status"] == "ok")
        except (ConnectionError, Refusal):
            return False

    def _get(self, path: str) -> Any:
        with self._open(path) as answer:
            return json.load(answer)

    def _post(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        data = json.dumps(dict(content)).encode()
        with self._open(path, {"Content-Type": "application/json"}, data) as answer:
            return dict(json.load(answer))

    def _open(self, path: str, headers: Mapping[str, str] | None = None, data: bytes | None = None) -> Any:
        """Return the answer; a refusal of the server is one here, and a server that is away a ConnectionError."""
        given = {**(headers or {}), **({"Authorization": f"Bearer {self._token}"} if self._token else {})}
        try:
            return urlopen(Request(self._address + path, data, given), timeout=self._timeout)
        except HTTPError as error:
            try:
                detail = str(json.loads(error.read())["detail"])
            except (ValueError, KeyError, TypeError):
                detail = f"The server answers {error.code}."
            raise Refusal(detail) from error
        except (URLError, http.client.HTTPException) as error:
            raise ConnectionError(f"The server at {self._address} does not answer: {error}.") from error


def _events(lines: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the events of a stream of lines."""
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            found[name] = value
        elif found.get("data"):
            yield found.get("id", ""), found.get("event", "message"), json.loads(found["data"])
            found = {}
        else:
            found = {}


Client = ServiceClient
"""The name by which `covey` has it."""
