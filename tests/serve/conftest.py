"""A served folder with two runs, without a process for jobs: they wait."""

import shutil

import pytest
from starlette.testclient import TestClient

import covey
from covey.cli.serve_command import forms
from covey.serve.job_queue import JobQueue
from covey.serve.served_folder import ServedFolder
from covey.serve.web_app import ServeOptions, create_service
from tests.conftest import SMALL


@pytest.fixture(scope="session")
def served_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    covey.run(SMALL, out=folder / "first")
    covey.run(SMALL, out=folder / "deep" / "second", method="fedprox")
    return folder


@pytest.fixture
def asked(served_runs):
    """Return a client of a server without a token, as seen from this machine."""
    return client_of(served_runs)


@pytest.fixture
def folder(served_runs):
    return ServedFolder(served_runs)


@pytest.fixture
def queue(folder, monkeypatch):
    """Return a queue that begins jobs in name alone: their processes live until the test ends them."""
    queue = JobQueue(folder)
    monkeypatch.setattr(queue, "place", lambda id_: folder.root / ".serve" / "jobs" / id_)
    monkeypatch.setattr(queue._processes, "begin", lambda order: None)
    monkeypatch.setattr(queue._processes, "has", lambda job: True)
    yield queue
    shutil.rmtree(folder.root / ".serve", ignore_errors=True)


def client_of(folder, *, address="127.0.0.1", **options):
    service = create_service(folder, ServeOptions(forms=forms(), **options))
    return TestClient(
        service.app,
        base_url="http://127.0.0.1",
        client=(address, 50_000),
        raise_server_exceptions=True,
        follow_redirects=False,
    )
