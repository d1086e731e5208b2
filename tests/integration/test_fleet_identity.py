"""Who is who on a live fleet: a SuperLink and SuperNodes over TLS, an impostor, and a caller without the secret."""

import hashlib
import os
import shutil
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Metadata as ProtoMetadata
from flwr.proto.node_pb2 import Node

import covey
from covey import Config, Refusal
from covey.core.build import build_federation
from covey.fleet import Rules
from covey.fleet.audit_log import AUDIT, read_events
from covey.fleet.certificates import write_node_keys
from covey.fleet.fleet_runtime import FLEET
from covey.fleet.loopback import Loopback, loopback_fleet
from covey.fleet.processes import end, environment
from covey.fleet.site_request import accept_request, make_request
from covey.fleet.superlink import Link
from covey.flower.private_api import (
    FleetHttpClient,
    NodeAuthHttpInterceptor,
    ProtobufClientInterceptor,
    ProtoMessage,
    RuntimeVersionHttpInterceptor,
)
from covey.flower.public_keys import fingerprint, public_bytes
from tests.conftest import SMALL

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked after through /proc"),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern"),
]

SETTINGS: dict[str, Any] = {**SMALL, "clients": 2, "cohort": 2, "rounds": 3}
LONG = 300.0
"""Seconds that a busy machine may take for anything."""


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.2)


def events(fleet: Loopback, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(fleet.fleet.folder) if event["event"] == kind]


def refused_without_the_secret(fleet: Loopback) -> None:
    """Somebody who reaches the port, has the authority's certificate, and knows no secret."""
    outsider = Link(fleet.fleet.address, fleet.fleet.server / "ca.crt")
    guessing = Link(fleet.fleet.address, fleet.fleet.server / "ca.crt", b"guessed")
    key = public_bytes(fleet.fleet.key("site-0"))
    before = len(events(fleet, "refused"))
    for link in (outsider, guessing):
        for ask in (
            lambda control: control.RegisterNode(RegisterNodeRequest(public_key=key, name="site-0")),
            lambda control: control.StartRun(StartRunRequest()),
            lambda control: control.StopRun(StopRunRequest(run_id=1)),
        ):
            with pytest.raises(Refusal, match="needs the token of the fleet's server"), link._control() as control:
                ask(control)
    noted = events(fleet, "refused")[before:]
    assert [event["call"] for event in noted] == [
        *("control/register-node", "control/start-run", "control/stop-run") * 2
    ]
    assert {event["peer"] for event in noted} == {"127.0.0.1"}
    trusting = ssl.create_default_context(cafile=str(fleet.fleet.server / "ca.crt"))
    with httpx.Client(base_url=f"https://{fleet.fleet.address}", verify=trusting) as client:
        found = {path: client.get(path).status_code for path in ("/docs", "/openapi.json", "/", "/v1/control")}
        assert set(found.values()) == {404}
        assert client.post("/v1/control/get-login-details").status_code == 401


def a_site_answers_for_itself_alone(fleet: Loopback) -> None:
    """site-1 signs a call as itself, and hands in an answer of site-0."""
    key = load_ssh_private_key((fleet.fleet.site("site-1") / "node.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    numbers = {node.name: node.node_id for node in fleet.link.nodes()}
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    authority = (fleet.fleet.server / "ca.crt").read_bytes()
    answer = ProtoMessage(metadata=ProtoMetadata(src_node_id=numbers["site-0"], reply_to_message_id="an order's"))
    with FleetHttpClient.from_server_address(fleet.fleet.address, False, authority, interceptors) as client:
        for caller, status in (("site-1", 403), ("site-0", 401)):
            with pytest.raises(httpx.HTTPStatusError) as refused:
                client.PushMessages(PushMessagesRequest(node=Node(node_id=numbers[caller]), messages_list=[answer]))
            assert refused.value.response.status_code == status


def readable_by_others(folder: Path) -> list[Path]:
    """Files of a folder that group or others can open."""
    if not stat.S_IMODE(folder.stat().st_mode) & 0o077:
        return []
    return [path for path in folder.rglob("*") if stat.S_IMODE(path.stat().st_mode) & 0o077]


def with_an_impostor(fleet: Loopback, place: Path) -> "tuple[subprocess.Popen[bytes], str]":
    """Start a node under the name of site-0 with a key of its own, registered by somebody who has the secret."""
    impostor = place / "impostor"
    shutil.copytree(fleet.fleet.site("site-0"), impostor, ignore=shutil.ignore_patterns("node.*", "flower", "memory*"))
    write_node_keys(impostor)
    with np.load(impostor / "data" / "train.npz") as honest:
        poisoned = {"x": honest["x"], "y": (honest["y"] + 1) % 10}
    np.savez(impostor / "data" / "train.npz", **poisoned)
    key = public_bytes(impostor / "node.pub")
    with fleet.link._control() as control:
        control.RegisterNode(RegisterNodeRequest(public_key=key, name="site-0"))
    with (place / "impostor.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "covey.fleet.node", str(impostor)],
            env=environment(place / "flower"),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until(lambda: any(node.public_key == key and node.status == "online" for node in fleet.link.nodes()))
    return process, fingerprint(key)


def test_nobody_without_its_key_is_a_site_and_nobody_without_the_secret_controls_the_fleet(
    tmp_path, monkeypatch, covey_command
):
    rules = Rules(timeout=LONG, patience=LONG, poll=0.1)
    described = loopback_fleet(tmp_path / "fleet", build_federation(Config.of(SETTINGS)), SETTINGS, rules=rules)
    monkeypatch.setenv(FLEET, str(described.folder))
    # One site makes its key itself.
    accept_request(described, make_request(described.site("site-1"), replace=True).path, replace=True)
    local = covey.run(SETTINGS, out=tmp_path / "local")
    before = os.umask(0o022)
    try:
        with Loopback(described) as fleet:
            assert readable_by_others(described.server) == []
            assert stat.S_IMODE((described.server / "state.db").stat().st_mode) == 0o600
            refused_without_the_secret(fleet)
            a_site_answers_for_itself_alone(fleet)
            impostor, key = with_an_impostor(fleet, tmp_path)
            try:
                the_run_ignores_it_and_says_when_it_is_stopped(fleet, key, local, tmp_path, covey_command)
            finally:
                end([impostor.pid])
                impostor.wait(timeout=60)
            the_log_outlives_the_superlink(fleet)
            assert readable_by_others(described.server) == []
    finally:
        os.umask(before)


def the_run_ignores_it_and_says_when_it_is_stopped(
    fleet: Loopback, key: str, local: covey.Run, place: Path, covey_command: Callable[..., Any]
) -> None:
    reason = "it is registered as site-0, and its key is not the one pinned for site-0"
    rows = covey_command("fleet", "status", fleet.fleet.folder, "--json").json
    pinned = {name: fingerprint(public_bytes(fleet.fleet.key(name))) for name in fleet.fleet.sites}
    assert [(row["site"], row["key"]) for row in rows] == [*pinned.items(), ("site-0", key)]
    assert (rows[2]["status"], rows[2]["reason"]) == ("refused (online)", reason)

    def stop_from_outside(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            fleet.link.stop_runs()

    settings = {**SETTINGS, "runtime": "fleet"}
    with (
        pytest.warns(UserWarning, match="connected that is none of the sites"),
        pytest.raises(Refusal, match="The run was stopped from outside"),
    ):
        covey.run(settings, out=place / "live", on_round=stop_from_outside)
    with pytest.warns(UserWarning, match="connected that is none of the sites"):
        live = covey.resume(place / "live")
    assert [row["refused"] for row in live.metrics] == [[{"name": "site-0", "key": key, "reason": reason}]] * 3
    assert [row["dropped"] for row in live.metrics] == [[], [], []]
    assert checkpoint(live) == checkpoint(local)
    answer = covey_command("fleet", "run", fleet.fleet.folder, "--out", live.folder)
    assert f"A node got no orders: {reason} (key {key})." in " ".join(answer.out.split())
    page = covey.report([live.folder]).read_text()
    assert "Nodes that got no orders" in page and key in page
    assert len(events(fleet, "run stopped")) >= 1
    # Calls of a node that is none of the sites may be refused as well, if calls are many.
    noted = [event for event in events(fleet, "refused") if event.get("key") == key and event.get("status") != 429]
    assert {(event["name"], event["reason"]) for event in noted} == {("site-0", reason)}
    said = covey_command("fleet", "log", fleet.fleet.folder).out
    assert "run stopped" in said and key in said
    said = " ".join(covey_command("fleet", "status", fleet.fleet.folder).out.split())
    assert f"A node gets no orders: {reason}" in said


def the_log_outlives_the_superlink(fleet: Loopback) -> None:
    path = fleet.fleet.folder / AUDIT
    before = path.read_bytes()
    joined = len(events(fleet, "joined"))
    fleet.kill_server()
    fleet.start_server()
    until(lambda: len([node for node in fleet.link.nodes() if node.status == "online"]) >= 2)
    assert path.read_bytes().startswith(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert joined >= 3


def checkpoint(run: covey.Run) -> str:
    return hashlib.sha256((run.folder / "checkpoint.safetensors").read_bytes()).hexdigest()
