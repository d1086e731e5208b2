"""Keys of a fleet's sites, with nothing running: requests, the audit log, the SuperLink's gate, damaged files."""

import asyncio
import base64
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message, RecordDict
from starlette.exceptions import HTTPException

from covey import Refusal
from covey.fleet import Fleet, certificates
from covey.fleet.audit_log import AUDIT, note_event, read_events
from covey.fleet.certificates import require_server_files, write_node_keys
from covey.fleet.control_gate import ControlGate, of_its_own
from covey.fleet.fleet_grid import FleetGrid, control_token
from covey.fleet.fleet_runtime import read_accounts
from covey.fleet.link_process import close_to_others
from covey.fleet.node import run_node
from covey.fleet.processes import free_port
from covey.fleet.site_keys import pin, pinned_keys
from covey.fleet.site_request import accept_request, make_request
from covey.fleet.superlink import Link
from covey.flower.private_api import ObjectTree, message_to_proto, set_task_identity
from covey.flower.public_keys import fingerprint, public_bytes
from covey.storage import write_private

Command = Callable[..., Any]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """A fleet's folder with keys made by the operator; nothing runs."""
    made = Fleet(folder=tmp_path / "fleet", address=f"127.0.0.1:{free_port()}", sites=("harbour", "mill"))
    made.write(["127.0.0.1"])
    return made


@pytest.fixture
def own_keys(tmp_path: Path) -> Fleet:
    """A fleet's folder in which sites make their keys."""
    made = Fleet(folder=tmp_path / "own", address=f"127.0.0.1:{free_port()}", sites=("harbour", "mill"))
    made.write(["127.0.0.1"], own_keys=True)
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Requests


def test_a_site_makes_its_key_and_the_operator_accepts_it(covey_command: Command, tmp_path):
    samples = ["--shape", "6", "--classes", "3", "--address", f"127.0.0.1:{free_port()}"]
    made = covey_command("fleet", "init", tmp_path / "fleet", "--sites", "harbour,mill", *samples, "--own-keys")
    assert made.code == 0, made.err
    fleet = Fleet.read(tmp_path / "fleet")
    assert "covey fleet join ." in (fleet.folder / "README.md").read_text()
    assert not list(fleet.folder.glob("sites/*/node.*")) and not list(fleet.folder.glob("sites/*/secret"))
    assert pinned_keys(fleet) == {}
    # The folder travels to the site, which has the only private key there ever is.
    site = tmp_path / "elsewhere" / "harbour"
    shutil.copytree(fleet.site("harbour"), site)
    asked = covey_command("fleet", "join", site, "--contact", "Ada, 555\x1b[2J0199")
    assert asked.code == 0, asked.err
    assert {mode(site / name) for name in ("node.key", "secret")} == {0o600}
    request = site / "harbour.request.json"
    assert "PRIVATE" not in request.read_text()
    answer = covey_command("fleet", "accept", fleet.folder, request)
    assert answer.code == 0, answer.err
    key = public_bytes(site / "node.pub")
    assert pinned_keys(fleet) == {key: "harbour"}
    assert fingerprint(key) in asked.out and fingerprint(key) in answer.out
    (noted,) = read_events(fleet.folder)
    assert (noted["event"], noted["site"], noted["key"]) == ("accepted", "harbour", fingerprint(key))
    assert noted["contact"] == "Ada, 5550199"
    said = covey_command("fleet", "log", fleet.folder).out
    assert "accepted, site harbour" in said


def test_fingerprints_are_those_of_ssh_keygen(fleet):
    program = shutil.which("ssh-keygen")
    if program is None:
        pytest.skip("ssh-keygen is not installed")
    path = fleet.key("mill")
    shown = subprocess.run([program, "-lf", str(path)], capture_output=True, text=True, check=True).stdout
    assert fingerprint(public_bytes(path)) == shown.split()[1]


def test_a_name_that_has_a_key_gets_no_other_unless_told_to_replace(fleet, covey_command: Command, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(fleet.site("harbour"), site, ignore=shutil.ignore_patterns("node.*"))
    request = make_request(site).path
    before = pinned_keys(fleet)
    answer = covey_command("fleet", "accept", fleet.folder, request)
    assert answer.code == 2
    assert "The site harbour has another key, SHA256:" in " ".join(answer.err.split())
    assert pinned_keys(fleet) == before
    assert covey_command("fleet", "accept", fleet.folder, request, "--replace").code == 0
    assert public_bytes(site / "node.pub") in pinned_keys(fleet)
    refused, accepted = read_events(fleet.folder)
    assert (refused["event"], refused["call"], accepted["event"]) == ("refused", "accept", "accepted")
    assert accepted["replaced"] in {fingerprint(key) for key in before}
    # Accepting it again changes nothing.
    after = pinned_keys(fleet)
    assert "replaced" not in (accept_request(fleet, request), read_events(fleet.folder))[1][-1]
    assert pinned_keys(fleet) == after


def test_a_request_is_for_a_site_of_the_fleet_with_a_key_of_its_own(own_keys, tmp_path):
    harbour, mill = own_keys.site("harbour"), own_keys.site("mill")
    request = make_request(harbour)
    accept_request(own_keys, request.path)
    with pytest.raises(Refusal, match="has a key already"):
        make_request(harbour)
    assert make_request(harbour, replace=True).key != request.key
    # mill asks with harbour's pinned key.
    (harbour / "site.toml").write_text((mill / "site.toml").read_text())
    other = json.loads(make_request(harbour, replace=True).path.read_text())
    path = tmp_path / "request.json"
    for altered, said in (
        ({"site": "harbour"}, "is not signed with the key"),
        ({"key": request.key}, "is not signed with the key"),
        ({"signature": "AAAA"}, "is not signed with the key"),
        ({"key": "ssh-rsa AAAA"}, "cannot be read"),
        ({"key": "ssh-unheard-of AAAA"}, "cannot be read"),
        ({"key": "\ud800"}, "cannot be read"),
        ({"key": 3}, "does not say the site's key"),
        ({"kind": "another"}, "is not a site's request"),
    ):
        path.write_text(json.dumps({**other, **altered}))
        with pytest.raises(Refusal, match=said):
            accept_request(own_keys, path)
    path.write_text("[" * 100_000)
    with pytest.raises(Refusal, match="too large"):
        accept_request(own_keys, path)
    for text in ("{", "[" * 60_000, "\x00"):
        path.write_text(text)
        with pytest.raises(Refusal, match="cannot be read"):
            accept_request(own_keys, path)
    with pytest.raises(Refusal, match="too large"):
        accept_request(own_keys, Path("/dev/zero"))
    (mill / "site.toml").write_text((mill / "site.toml").read_text().replace("mill", "castle"))
    with pytest.raises(Refusal, match=r"'castle' is none of the sites"):
        accept_request(own_keys, make_request(mill).path)


def test_a_key_of_another_site_is_not_accepted(own_keys):
    harbour = own_keys.site("harbour")
    accept_request(own_keys, make_request(harbour).path)
    shutil.copytree(harbour, own_keys.folder / "copied")
    (own_keys.folder / "keys" / "mill.pub").write_bytes(own_keys.key("harbour").read_bytes())
    with pytest.raises(Refusal, match="The sites harbour and mill have the same key"):
        pinned_keys(own_keys)


def test_a_site_without_a_key_says_how_to_make_one(own_keys):
    from covey.fleet.fleet_folder import Site

    with pytest.raises(Refusal, match=r"The site mill has no key yet\. Make one: covey fleet join"):
        run_node(Site.read(own_keys.site("mill")))


def test_a_folder_of_an_earlier_version_has_its_keys_with_the_sites(fleet, tmp_path):
    pinned = pinned_keys(fleet)
    shutil.rmtree(fleet.folder / "keys")
    assert pinned_keys(fleet) == pinned
    (fleet.site("harbour") / "node.key").unlink()
    request = make_request(fleet.site("harbour"))
    new = public_bytes(fleet.site("harbour") / "node.pub")
    accept_request(fleet, request.path, replace=True)
    mill = next(key for key, name in pinned.items() if name == "mill")
    assert pinned_keys(fleet) == {new: "harbour", mill: "mill"}


def test_a_folder_of_an_earlier_version_loses_no_key_if_the_disk_is_full(fleet, monkeypatch):
    pinned = pinned_keys(fleet)
    shutil.rmtree(fleet.folder / "keys")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space"):
        pin(fleet, "harbour", next(iter(pinned)))
    assert pinned_keys(fleet) == pinned


def test_a_pinned_key_is_written_without_what_else_a_request_says(own_keys):
    """Its file is read on terminals."""
    site = own_keys.site("harbour")
    asked = make_request(site)
    said = replace(asked, key=f"{asked.key} \x1b[2Jmill\necdsa-sha2-nistp384 AAAA mill")
    key = load_ssh_private_key((site / "node.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signature = base64.b64encode(key.sign(said.signed, ec.ECDSA(hashes.SHA384()))).decode()
    altered = {**json.loads(asked.path.read_text()), "key": said.key, "signature": signature}
    asked.path.write_text(json.dumps(altered))
    accept_request(own_keys, asked.path)
    assert own_keys.key("harbour").read_text() == f"{asked.key}\n"


def test_a_site_keeps_its_key_if_another_cannot_be_written(own_keys, monkeypatch):
    site = own_keys.site("harbour")
    make_request(site)
    before = (site / "node.key").read_bytes()
    written = write_private

    def full(path: Path, data: bytes) -> None:
        written(path, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(certificates, "write_private", full)
    with pytest.raises(Refusal, match="No space left"):
        make_request(site, replace=True)
    assert (site / "node.key").read_bytes() == before
    monkeypatch.undo()
    assert make_request(site, replace=True).fingerprint
    assert mode(site / "node.key") == 0o600 and not (site / "node.key.part").exists()


def test_a_sites_folder_cannot_have_files_written_elsewhere(own_keys, tmp_path, covey_command: Command):
    site = own_keys.site("mill")
    (site / "site.toml").write_text((site / "site.toml").read_text().replace('"mill"', '"../../../mill"'))
    answer = covey_command("fleet", "join", site)
    assert answer.code == 2 and "cannot be a site's name" in answer.err
    assert not list(tmp_path.rglob("*.request.json"))


# The audit log


def test_the_audit_log_is_appended_private_and_readable_after_a_power_cut(fleet):
    note_event(fleet.folder, "joined", site="mill", key=None)
    path = fleet.folder / AUDIT
    assert mode(path) == 0o600
    with path.open("ab") as file:
        file.write(b'3\n{"time": "2026')
    assert [event["site"] for event in read_events(fleet.folder)] == ["mill"]
    with path.open("ab") as file:
        file.write(b"\n")
    note_event(fleet.folder, "refused", name="\x1b[31mmill")
    assert [event["event"] for event in read_events(fleet.folder)] == ["joined", "refused"]
    assert b"\x1b" not in path.read_bytes() and "\\u001b" not in path.read_text()
    assert "key" not in read_events(fleet.folder)[0]


def test_an_event_after_an_incomplete_line_is_not_lost(fleet):
    path = fleet.folder / AUDIT
    path.write_bytes(b'{"time": "2026')
    note_event(fleet.folder, "removed", site="mill")
    note_event(fleet.folder, "joined", site="a\u2028b")
    assert [event["event"] for event in read_events(fleet.folder)] == ["removed", "joined"]
    with path.open("ab") as file:
        file.write(b"[" * 100_000 + b"\n")
    assert len(read_events(fleet.folder)) == 2
    path.unlink()
    path.mkdir()
    with pytest.raises(Refusal, match=r"The audit log .* cannot be written"):
        note_event(fleet.folder, "joined")


def called(gate: ControlGate, path: str, headers: list[tuple[bytes, bytes]] | None = None) -> int:
    """Return the status of a call through the gate."""
    found: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    given = headers or []
    if not any(name in (b"content-length", b"transfer-encoding") for name, _ in given):
        given = [(b"content-length", b"0"), *given]
    scope = {"type": "http", "path": path, "headers": given, "client": ("192.0.2.7", 40000), "state": {}}
    asyncio.run(gate(scope, receive, send))
    return found[0]


def signed(fleet: Fleet, site: str, *, key_of: str | None = None, ago: float = 0.0) -> list[tuple[bytes, bytes]]:
    """Return the headers of a call that a site signs, with another's public key if `key_of` names one."""
    private = load_ssh_private_key((fleet.site(site) / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    stated = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat().encode()
    return [
        (b"flwr-public-key", base64.b64encode(public_bytes(fleet.key(key_of or site)))),
        (b"flwr-timestamp", stated),
        (b"flwr-signature", base64.b64encode(private.sign(stated, ec.ECDSA(hashes.SHA256())))),
    ]


async def served(scope: Any, receive: Any, send: Any) -> None:
    """A SuperLink that says yes."""
    await send({"type": "http.response.start", "status": 200, "headers": []})


def test_the_gate_lets_sites_pass_and_control_calls_with_the_token(fleet):
    gate = ControlGate(served, fleet)
    token = (b"authorization", f"Bearer {control_token(fleet.secret)}".encode())
    assert called(gate, "/v1/fleet/pull-messages") == 200
    assert called(gate, "/v1/runtime/acquire-task", [token]) == 200
    assert called(gate, "/v1/control/stop-run", [token]) == 200
    assert called(gate, "/v1/runtime/push-object") == 401
    for headers in ([], [(token[0], b"Bearer x")], [token, token], [(token[0], token[1] + b"0")]):
        assert called(gate, "/v1/control/stop-run", headers) == 401
    for path in ("/docs", "/openapi.json", "/health", "/v1", "/v1/control", "//v1/control/stop-run", "/V1/control/x"):
        assert called(gate, path) == 404
    noted = read_events(fleet.folder)
    assert [event["event"] for event in noted] == ["run stopped", *["refused"] * 5]
    assert {event["peer"] for event in noted} == {"192.0.2.7"}


def test_a_call_is_in_the_audit_log_before_its_caller_is_answered(fleet, capfd):
    token = (b"authorization", f"Bearer {control_token(fleet.secret)}".encode())
    gate = ControlGate(served, fleet)
    seen: list[list[str]] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            seen.append([event["event"] for event in read_events(fleet.folder)])

    def call(headers: list[tuple[bytes, bytes]]) -> None:
        scope: Any = {"type": "http", "path": "/v1/control/stop-run", "headers": headers, "client": None, "state": {}}
        asyncio.run(gate(scope, AsyncMock(return_value={"type": "http.request", "body": b""}), send))

    call([])
    call([token])
    assert seen == [["refused"], ["refused", "run stopped"]]
    # A log that cannot be written changes no answer; the server's own log says so.
    (fleet.folder / AUDIT).unlink()
    (fleet.folder / AUDIT).mkdir()
    assert called(gate, "/v1/control/stop-run") == 401
    assert called(gate, "/v1/control/stop-run", [token]) == 200
    assert capfd.readouterr().err.count("cannot be written") == 2


def test_large_calls_are_read_from_sites_alone(fleet):
    gate = ControlGate(served, fleet)
    site, stranger = signed(fleet, "mill"), [(b"flwr-public-key", base64.b64encode(b"another"))]

    def sized(bytes_: int, headers: list[tuple[bytes, bytes]]) -> int:
        return called(gate, "/v1/fleet/push-object", [(b"content-length", str(bytes_).encode()), *headers])

    assert [sized(1 << 16, headers) for headers in ([], stranger, site)] == [200, 200, 200]
    assert [sized(1 << 20, headers) for headers in ([], stranger, site)] == [413, 413, 200]
    assert sized(1 << 27, site) == 413
    # A public key is no secret: without a signature of its owner's, and of now, it is nobody's.
    key, stated, signature = site
    unsigned = [key], [key, stated], [key, signature], [key, stated, (signature[0], b"x")]
    doubled = [key, stated, stated, signature]
    others = signed(fleet, "mill", ago=-700), signed(fleet, "mill", ago=700), signed(fleet, "harbour", key_of="mill")
    timeless = [key, (stated[0], b"now"), signature], [key, (stated[0], stated[1][:-6]), signature]
    assert {sized(1 << 20, headers) for headers in (*unsigned, doubled, *others, *timeless)} == {413}
    # A server obeys the chunks where both are stated.
    chunked, none = (b"transfer-encoding", b"chunked"), (b"content-length", b"0")
    for headers in ([chunked], [none, chunked], [chunked, none], [none, none], [(none[0], b"1" * 5000)]):
        assert called(gate, "/v1/fleet/push-object", headers) == 411
    # A key that is taken away loses its place within seconds.
    fleet.key("mill").unlink()
    gate._read_at -= 3
    assert sized(1 << 20, site) == 413


def test_a_flood_of_calls_that_no_site_has_signed_is_refused_unread_and_sites_pass(fleet):
    passed = []

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])
        await served(scope, receive, send)

    gate = ControlGate(counted, fleet)
    begun = time.monotonic()
    answers = [called(gate, "/v1/fleet/pull-messages") for _ in range(300)]
    seconds = time.monotonic() - begun
    assert answers[:20] == [200] * 20
    assert answers.count(200) == len(passed) <= 20 * (seconds + 1)
    assert set(answers) == {200, 429}
    gate._second, gate._calls = time.monotonic(), 20
    assert called(gate, "/v1/fleet/pull-messages", signed(fleet, "harbour", key_of="mill")) == 429
    # Sites and the server are served all the same.
    assert [called(gate, "/v1/fleet/pull-messages", signed(fleet, "mill")) for _ in range(30)] == [200] * 30
    token = (b"authorization", f"Bearer {control_token(fleet.secret)}".encode())
    assert called(gate, "/v1/control/list-runs", [token]) == 200
    gate._second -= 1
    assert called(gate, "/v1/fleet/pull-messages") == 200
    noted = read_events(fleet.folder)
    assert {(event["event"], event["status"]) for event in noted} == {("refused", 429)}
    assert len(noted) == 30


def test_a_flood_of_refusals_does_not_fill_the_audit_log(fleet):
    gate = ControlGate(served, fleet)
    for _ in range(200):
        assert called(gate, "/v1/control/stop-run") == 401
    assert len(read_events(fleet.folder)) == 30
    # Nor does a site that comes and goes; the lines of another, and the operator's own, are there all the same.
    for _ in range(50):
        assert called(gate, "/v1/fleet/activate-node", signed(fleet, "mill")) == 200
    assert called(gate, "/v1/fleet/activate-node", signed(fleet, "harbour")) == 200
    token = (b"authorization", f"Bearer {control_token(fleet.secret)}".encode())
    assert called(gate, "/v1/control/start-run", [token]) == 200
    assert len(read_events(fleet.folder)) == 62
    gate._since -= 61
    assert called(gate, "/v1/control/stop-run") == 401
    assert [event.get("left_out") for event in read_events(fleet.folder)[-2:]] == [190, None]


def test_the_audit_log_quotes_no_more_than_the_beginning_of_a_call(fleet):
    assert called(ControlGate(served, fleet), f"/v1/control/{'x' * 60_000}") == 401
    assert (fleet.folder / AUDIT).stat().st_size < 1000


class Received(FleetGrid):
    """A grid with an answer that has arrived."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents

    def __del__(self) -> None:
        """There is no connection to close."""

    def _contents(self, tree: Any, seconds: float) -> dict[str, bytes]:
        return self.contents

    def _confirm(self, name: str) -> None:
        pass


@pytest.mark.parametrize("altered", [{"_src_node_id": 8}, {"_reply_to_message_id": "another"}, {"_run_id": 4}])
def test_an_answer_is_of_the_node_and_to_the_order_that_it_was_handed_in_with(altered):
    set_task_identity(3, 1, 0)
    order = Message(RecordDict(), 7, "train")
    vars(order.metadata)["_message_id"] = order.object_id
    answer = Message(RecordDict(), reply_to=order)
    handed_in = message_to_proto(answer)

    def read(stated: Message) -> Message:
        handed_in.metadata.message_id = stated.object_id
        parts = {stated.object_id: stated, **(stated.children or {})}
        return Received({name: part.deflate() for name, part in parts.items()})._message(handed_in, ObjectTree(), 1.0)

    assert read(answer).has_content()
    vars(answer.metadata).update(altered)
    found = read(answer)
    assert found.has_error() and "another sender or order" in str(found.error.reason)
    assert (found.metadata.src_node_id, found.metadata.reply_to_message_id) == (
        handed_in.metadata.src_node_id,
        handed_in.metadata.reply_to_message_id,
    )


def test_a_node_answers_for_itself_alone():
    taken: list[Any] = []
    push = of_its_own(lambda request, state: taken.append(request))

    def answers(node: int, *sources: int) -> Any:
        messages = [SimpleNamespace(metadata=SimpleNamespace(src_node_id=source)) for source in sources]
        return SimpleNamespace(node=SimpleNamespace(node_id=node), messages_list=messages)

    push(answers(7, 7), None)
    for stated in ([8], [7, 8]):
        with pytest.raises(HTTPException, match="for itself alone"):
            push(request=answers(7, *stated), state=None)
    assert len(taken) == 1


# Files


def test_a_fleets_folders_are_the_owners_alone(tmp_path):
    place = tmp_path / "made before"
    place.mkdir(mode=0o755)
    fleet = Fleet(folder=place, address="127.0.0.1:8443", sites=("mill",))
    fleet.write(["127.0.0.1"])
    assert {mode(place), mode(fleet.site("mill")), mode(fleet.server), mode(place / "keys")} == {0o700}


def test_what_a_server_has_written_before_is_closed_to_others(fleet):
    (fleet.server / "state.db").write_bytes(b"")
    (fleet.server / "state.db").chmod(0o644)
    fleet.server.chmod(0o755)
    before = os.umask(0o022)
    try:
        close_to_others(fleet)
        (fleet.server / "later").write_text("")
    finally:
        os.umask(before)
    assert {mode(path) & 0o077 for path in (fleet.server, *fleet.server.rglob("*"))} == {0}
    assert {mode(fleet.folder), mode(fleet.server), mode(fleet.folder / "keys")} == {0o700}


HOLLOW = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", HOLLOW, None])
def test_a_damaged_certificate_of_the_authority_is_refused_with_a_sentence(fleet, covey_command: Command, content):
    for path in (fleet.server / "ca.crt", fleet.site("mill") / "ca.crt"):
        path.write_bytes(content) if content is not None else path.unlink()
    for arguments in (("status", fleet.folder), ("register", fleet.folder), ("node", fleet.site("mill"))):
        answer = covey_command("fleet", *arguments)
        assert answer.code == 2
        assert "The authority's certificate" in answer.err and "Traceback" not in answer.err
    with pytest.raises(Refusal, match="The authority's certificate"):
        Link(fleet.address, fleet.server / "ca.crt").nodes()


def test_damaged_files_of_a_fleet_are_refused_with_a_sentence(fleet, covey_command: Command):
    def refusal(*arguments: object) -> str:
        answer = covey_command("fleet", *arguments)
        assert answer.code == 2
        return " ".join(answer.err.split())

    toml, kept = fleet.folder / "fleet.toml", (fleet.folder / "fleet.toml").read_text()
    for before, after, said in (
        (f'address = "{fleet.address}"', 'address = "nowhere"', "The address is of the form host:port"),
        (f'address = "{fleet.address}"', "address = 3", "address"),
        ('["harbour", "mill"]', '["harbour", "harbour"]', "Two sites have the same name."),
        ('["harbour", "mill"]', '["../harbour"]', "cannot be a site's name"),
        ("[rules]", "[data]\nshape=3\n[run.x]\n[rules]", ""),
    ):
        toml.write_text(kept.replace(before, after))
        assert said in refusal("status", fleet.folder)
    toml.write_text("run = 3\n" + kept)
    assert "[run] is a section, not a value." in refusal("status", fleet.folder)
    toml.write_text(kept)
    secret = fleet.secret
    (fleet.server / "secret").write_bytes(b"")
    assert "secret is empty" in refusal("status", fleet.folder)
    (fleet.server / "secret").unlink()
    assert "The secret" in refusal("status", fleet.folder)
    (fleet.server / "secret").write_bytes(secret)
    fleet.key("mill").write_bytes(b"ecdsa-sha2-nistp384 nonsense")
    assert "mill.pub cannot be read" in refusal("register", fleet.folder)
    write_node_keys(fleet.folder / "another")
    shutil.copy(fleet.folder / "another" / "node.pub", fleet.key("mill"))
    require_server_files(fleet.server)
    for name in ("server.crt", "server.key"):
        content = (fleet.server / name).read_bytes()
        (fleet.server / name).write_bytes(content[:100])
        with pytest.raises(Refusal, match=f"{name} cannot be read"):
            require_server_files(fleet.server)
        (fleet.server / name).write_bytes(content)
    shutil.copy(fleet.folder / "authority" / "ca.key", fleet.server / "server.key")
    command = [sys.executable, "-m", "covey.fleet.link_process", str(fleet.folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 2
    assert "is not one of the key" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize("content", ["{", "[3]", '{"x": ["a"]}', '{"0": 3}', "\x00", "3"])
def test_a_damaged_account_of_what_sites_hold_is_refused(tmp_path, content):
    path = tmp_path / "accounts.json"
    path.write_text('{"0": ["a", "b"]}')
    assert read_accounts(path) == {0: ["a", "b"]}
    path.write_text(content)
    with pytest.raises(Refusal, match="is damaged"):
        read_accounts(path)
