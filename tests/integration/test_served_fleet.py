"""Models on demand from a live fleet that is served: its sites are asked once its run has ended."""

import os
import signal

import pytest

import covey
from covey.config.schema import Config
from covey.core.build import build_federation
from covey.fleet import Rules
from covey.fleet.fleet_runtime import FLEET
from covey.fleet.loopback import Loopback, loopback_fleet
from tests.integration.served import SMALL_RUN, Server
from tests.programs import start_covey, wait_for_rounds

SETTINGS = {**SMALL_RUN, "clients": 3, "cohort": 3, "rounds": 500, "environment": "uniform"}


def test_an_order_waits_for_the_fleets_run_and_is_then_done_by_its_sites(tmp_path):
    folder = tmp_path / "runs" / "plant"
    rules = Rules(timeout=120.0, patience=120.0, poll=0.1)
    described = loopback_fleet(folder, build_federation(Config.of(SETTINGS)), SETTINGS, rules=rules)
    with Loopback(described):
        flags = ["--clients", 3, "--cohort", 3, "--rounds", 500, "--runtime", "fleet", "--set", "local.epochs=1"]
        flags += ["--set", "model.hidden=16", "--out", folder / "run"]
        program = start_covey("run", *flags, env={**os.environ, FLEET: str(folder)})
        wait_for_rounds(folder / "run", 2)
        server = Server(tmp_path / "runs", "--workers", 2)
        try:
            client = covey.Client(server.address)
            job = client.order("plant", {"0": 0.5, "3": 0.5}, rounds=1)
            assert job["path"] and "does another one now" in client.job(job["id"])["waits_for"]
            assert client.order("plant/run", "3=1,0=1", rounds=1)["id"] == job["id"]
            with pytest.raises(covey.Refusal, match="does another one now"):
                client.nearest("plant", {"0": 0.5, "3": 0.5})
            assert client.job(job["id"])["state"] == "waiting"
            program.send_signal(signal.SIGINT)
            program.communicate()
            made = client.wait(job["id"])
            assert made["starts"] == 1 and len(made["model"]["clients"]) == 3
            assert client.nearest("plant", {"0": 0.5, "3": 0.5})["clients"] == made["model"]["clients"]
        finally:
            if program.poll() is None:
                os.kill(program.pid, signal.SIGKILL)
            assert "Traceback" not in server.close()
