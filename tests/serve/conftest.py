"""A served folder with two runs, without a process for jobs: they wait."""

import pytest
from starlette.testclient import TestClient

import covey
from covey.cli.serve_command import forms
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


def client_of(folder, *, address="127.0.0.1", **options):
    service = create_service(folder, ServeOptions(forms=forms(), **options))
    return TestClient(
        service.app,
        base_url="http://127.0.0.1",
        client=(address, 50_000),
        raise_server_exceptions=True,
        follow_redirects=False,
    )
