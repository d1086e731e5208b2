"""A real fleet on the loopback interface: processes, certificates, every kind of failure. One fleet for all tests."""

import fcntl
import json
import os
import re
import shlex
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.proto.control_pb2 import UnregisterNodeRequest
from safetensors.torch import load_file

import covey
from covey import Config, Refusal
from covey.client.learner import Learner
from covey.core.build import build_federation
from covey.core.checkpoint import read_checkpoint
from covey.core.client_names import write_names
from covey.core.records import read_metrics
from covey.core.replies import checked
from covey.fleet import Fleet, Rules
from covey.fleet.audit_log import read_events
from covey.fleet.certificates import write_node_keys
from covey.fleet.fault_injection import HUGE, InjectedFault
from covey.fleet.fleet_folder import write_toml
from covey.fleet.fleet_runtime import FLEET
from covey.fleet.loopback import Loopback, loopback_fleet
from covey.fleet.node import ORDER_FILE
from covey.fleet.processes import alive, environment, free_port, listens
from covey.fleet.samples import settings as run_settings
from covey.fleet.site import about, prepared, read_samples
from covey.fleet.site import app as site_app
from covey.fleet.superlink import Link
from covey.flower import InProcessGrid
from covey.flower.exchange import Exchange
from covey.flower.memory_file import recall, remember
from covey.flower.node_memory import Memory
from covey.flower.public_keys import fingerprint, public_bytes
from covey.flower.roster import Roster
from covey.flower.wire import REPLY
from covey.job.experiment import Experiment
from covey.job.federation_summary import describe
from covey.personalization.cfl import CFL
from covey.registries import methods
from tests.conftest import SMALL

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked after through /proc"),
    pytest.mark.filterwarnings("ignore:selector.clusters"),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern"),
]

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {**SMALL, "clients": 5, "cohort": 5, "rounds": 2}
TIMEOUT = 20.0
"""Seconds of a round in which somebody will not answer; others wait long, as machines may be busy."""
SHORT = {"devices": {"deadline": TIMEOUT}}
LIMIT = 8 << 20


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Iterator[Loopback]:
    """Five SuperNodes and a SuperLink with TLS and node authentication."""
    config = Config.of(SETTINGS)
    rules = Rules(timeout=120.0, patience=120.0, limit=f"{LIMIT}", poll=0.1)
    folder = tmp_path_factory.mktemp("shared") / "fleet"
    described = loopback_fleet(folder, build_federation(config), SETTINGS, rules=rules, node={"drill": "drill.txt"})
    before = os.environ.get(FLEET)
    os.environ[FLEET] = str(folder)
    with Loopback(described) as started:
        yield started
        groups = [started.superlink, *(group for group in map(started.node, described.sites) if group)]
    if before is None:
        del os.environ[FLEET]
    assert not any(alive(group) for group in groups)
    assert not listens(described.port)


@pytest.fixture
def drill(fleet) -> Iterator[Callable[[int, str], None]]:
    """`drill(2, "nan 1")`: site 2 misbehaves in round 1."""
    paths = [fleet.fleet.site(name) / "data" / "drill.txt" for name in fleet.fleet.sites]

    def misbehave(client: int, line: str) -> None:
        with paths[client].open("a") as file:
            file.write(f"{line}\n")

    yield misbehave
    for path in paths:
        path.unlink(missing_ok=True)


def both(folder: Path, **settings: Any) -> tuple[covey.Run, covey.Run]:
    """The same run on the fleet and in this process."""
    live = covey.run({**SETTINGS, **settings, "runtime": "fleet"}, out=folder / "fleet")
    return live, covey.run({**SETTINGS, **settings}, out=folder / "local")


def outcomes(run: covey.Run) -> list[tuple[Any, ...]]:
    """Return the cohort, scores and faults of each round; times of real clients differ from run to run."""
    return [(row["clients"], row["accuracy"], row["loss"], row["dropped"]) for row in run.metrics]


def checkpoint(run: covey.Run) -> bytes:
    """The method's whole state."""
    return (run.folder / "checkpoint.safetensors").read_bytes()


def state(run: covey.Run) -> dict[str, torch.Tensor]:
    return load_file(run.folder / "checkpoint.safetensors")


# Methods, certificates, keys


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedacs", {"cohort": 2, "rounds": 3}),
        ("feddrl", {"cohort": 3}),
        ("ondemand", {"cohort": 3}),
        ("nccb", {"cohort": 2}),
        ("fedcm", {"cohort": 2, "rounds": 3, "server": {"optimizer": "momentum"}, "averaging": {"ema": 0.9}}),
        ("scaffold", {"cohort": 2, "rounds": 4}),
    ],
)
def test_methods_train_on_a_fleet_as_they_do_in_one_process(fleet, method, more, tmp_path):
    live, local = both(tmp_path, method=method, **more)
    assert outcomes(live) == outcomes(local)
    assert all(row["away"] == [] and row["dropped"] == [] for row in live.metrics)
    # What SCAFFOLD's clients keep stays at the sites: the server has the rounds that it is from.
    assert checkpoint(live) == checkpoint(local) or method == "scaffold"
    assert torch.equal(state(live)["model"], state(local)["model"])


def test_nodes_are_processes_of_their_own(fleet, tmp_path):
    covey.run({**SETTINGS, "rounds": 1, "runtime": "fleet"}, out=tmp_path / "run")
    nodes = [fleet.node(name) for name in fleet.fleet.sites]
    assert None not in nodes
    assert len({os.getpid(), fleet.superlink, *nodes}) == 7
    for node in nodes:
        assert b"covey.fleet.node" in Path(f"/proc/{node}/cmdline").read_bytes()
        # Its SuperNode is a child of it.
        assert Path(f"/proc/{node}/task/{node}/children").read_text().split()


def test_the_servers_certificate_chain_verifies_against_the_fleets_authority_alone(fleet):
    authority = fleet.fleet.server / "ca.crt"
    address = ("127.0.0.1", fleet.fleet.port)
    with socket.create_connection(address) as plain:
        context = ssl.create_default_context(cafile=str(authority))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            shown = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
            assert secured.version() in ("TLSv1.2", "TLSv1.3")
    root = x509.load_pem_x509_certificate(authority.read_bytes())
    verifier = PolicyBuilder().store(Store([root])).build_server_verifier(x509.DNSName("localhost"))
    assert verifier.verify(shown, [])[-1] == root
    with socket.create_connection(address) as plain, pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")


def test_a_node_with_a_key_that_nobody_registered_is_refused_and_the_log_says_so(fleet, tmp_path):
    site = fleet.fleet.site("site-0")
    stranger = tmp_path / "stranger"
    write_node_keys(stranger)
    for name in ("ca.crt", "secret"):
        (stranger / name).write_bytes((site / name).read_bytes())
    write_toml(stranger / "site.toml", {"name": "site-0", "server": fleet.fleet.address, "poll": 0.2})
    before = fleet.log.read_text()
    ended = subprocess.run(
        [sys.executable, "-m", "covey.fleet.node", str(stranger)],
        env=environment(tmp_path / "flower"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode != 0
    said = fleet.log.read_text()[len(before) :]
    assert re.search(r'"POST /v1/fleet/activate-node HTTP/1\.1" 4\d\d', said), said
    noted = read_events(fleet.fleet.folder)[-1]
    assert (noted["event"], noted["call"]) == ("refused", "fleet/activate-node")
    assert noted["key"] == fingerprint(public_bytes(stranger / "node.pub"))
    assert len(fleet.link.nodes()) == 5


def test_a_site_has_one_node(fleet, tmp_path):
    command = [sys.executable, "-m", "covey.cli.main", "fleet", "node", str(fleet.fleet.site("site-0"))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 2
    assert "The node of the site site-0 runs already." in ended.stderr


def test_a_site_that_claims_another_ones_name_is_known_by_its_key(fleet):
    """Names come from the registered keys, so a node's own word does not count."""
    names = {node.name: node.node_id for node in fleet.link.nodes()}
    assert sorted(names) == sorted(fleet.fleet.sites)
    other = fleet.fleet.folder / "other"
    write_node_keys(other)
    with pytest.raises(Refusal, match="registered with another key than the pinned one"):
        fleet.link.register([("site-0", other / "node.pub")])


def test_a_key_that_is_known_by_another_name_or_was_removed_is_not_registered(fleet, tmp_path):
    node = fleet.fleet.site("site-0") / "node.pub"
    (number,) = (node.node_id for node in fleet.link.nodes() if node.name == "site-0")
    assert fleet.link.register([("site-0", node)]) == {"site-0": number}
    with pytest.raises(Refusal, match="The key of the site site-9 is registered as site-0"):
        fleet.link.register([("site-9", node)])
    write_node_keys(tmp_path)
    spare = fleet.link.register([("spare", tmp_path / "node.pub")])["spare"]
    with fleet.link._control() as control:
        control.UnregisterNode(UnregisterNodeRequest(node_id=spare))
    with pytest.raises(Refusal, match="The key of the site spare was removed"):
        fleet.link.register([("spare", tmp_path / "node.pub")])
    write_node_keys(tmp_path / "new")
    again = fleet.link.register([("spare", tmp_path / "new" / "node.pub")])["spare"]
    with fleet.link._control() as control:
        control.UnregisterNode(UnregisterNodeRequest(node_id=again))
    assert again != spare
    assert len(fleet.link.nodes()) == 5


def test_a_fleet_has_one_server_at_a_time(fleet, tmp_path):
    with (fleet.fleet.server / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Refusal, match="Another job is running"):
            covey.run({**SETTINGS, "runtime": "fleet"}, out=tmp_path / "run")


def test_references_that_rearrange_data_are_for_simulations(fleet, tmp_path):
    with pytest.raises(Refusal, match="'iid' rearranges clients' data, which only a simulation can"):
        covey.run({**SETTINGS, "method": "iid", "runtime": "fleet"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_server_without_the_secret_gets_no_run(fleet, tmp_path):
    from covey.fleet.flower_app import write_app

    write_app(tmp_path, "{}")
    link = Link(fleet.fleet.address, fleet.fleet.server / "ca.crt", b"guessed")
    with pytest.raises(Refusal, match="refused"), link.grid(tmp_path):
        pass


# Faults


def test_every_kind_of_bad_answer_costs_itself_and_is_in_the_record(fleet, drill, tmp_path):
    """Four of five sites fail twice in a row, each time differently; they pause for a round and return."""
    kinds = {
        0: ("nan", "nothing"),
        1: ("shape", "garbage"),
        2: ("huge", f"sleep 2 {TIMEOUT + 1}"),
        3: ("negative", "error"),
    }
    for client, (first, second) in kinds.items():
        drill(client, f"{first} 1")
        drill(client, second if " " in second else f"{second} 2")
    drill(4, "crash 4")
    run = covey.run({**SETTINGS, **SHORT, "rounds": 4, "runtime": "fleet"}, out=tmp_path / "run")
    reasons = [{fault["client"]: fault["reason"] for fault in row["dropped"]} for row in run.metrics]
    assert set(reasons[0]) == set(reasons[1]) == {0, 1, 2, 3}
    assert reasons[0][0] == "its model holds NaN or infinite values"
    assert "its model has the shape" in reasons[0][1]
    assert f"larger than {LIMIT:,} bytes" in reasons[0][2]
    assert HUGE > LIMIT
    assert reasons[0][3] == "it reported -5 samples"
    assert reasons[1][0] == "its answer is not one of Covey's"
    assert "its answer cannot be read" in reasons[1][1]
    assert reasons[1][2] == f"no answer within {TIMEOUT:g} seconds"
    # The text of an exception may contain data, and stays at the site.
    assert reasons[1][3] == "it answered with an error: RuntimeError: the site's log says more"
    assert run.metrics[2]["resting"] == [0, 1, 2, 3]
    assert run.metrics[2]["clients"] == [4]
    assert run.metrics[3]["clients"] == [0, 1, 2, 3, 4]
    assert reasons[2] == {}
    assert set(reasons[3]) == {4}
    assert "the process that trains was killed by SIGKILL" in reasons[3][4]
    assert all(torch.isfinite(value).all() for value in state(run).values())
    page = covey.report([run.folder]).read_text()
    for said in ("its model holds NaN", "RuntimeError", "larger than", "rested"):
        assert said in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5:nan:2", r"'5:nan:2' is for a site that is not there: the sites are 0 to 4\."),
        ("1:nan:9", r"'1:nan:9' is for a round that will not be run: the rounds are 1 to 4\."),
        ("1:nan:0", "is for a round that will not be run"),
        ("1:tea:2", "A drill is SITE:KIND:ROUND"),
        ("1:nan:soon", "A drill is SITE:KIND:ROUND"),
    ],
)
def test_a_drill_that_cannot_take_place_is_refused(text, said):
    with pytest.raises(Refusal, match=said):
        InjectedFault.of(text, clients=5, rounds=range(1, 5))


def test_drills_of_the_guide_take_place_and_others_are_named_with_the_reason(tmp_path):
    words = documented("fleet up --clients 5 --cohort")
    drills = [
        InjectedFault.of(words[place + 1], 5, range(1, 5)) for place, word in enumerate(words) if word == "--drill"
    ]
    chosen = {words[place].removeprefix("--"): int(words[place + 1]) for place in (2, 4, 6)}
    run = covey.run({**SETTINGS, **chosen}, out=tmp_path / "run")
    assert [drill.missed(run.metrics) for drill in drills] == [None, None]
    rows = [{"round": 1, "clients": [0], "dropped": [], "away": [1], "resting": [2]}]
    reasons = {client: InjectedFault(client, "nan", 1).missed(rows) for client in range(4)}
    assert reasons[0] is None
    assert reasons[1] == "The drill nan of site 1 in round 1 did not take place: the site was away."
    assert reasons[2] is not None and reasons[2].endswith("the site was resting.")
    assert reasons[3] is not None and reasons[3].endswith("the site was not invited.")
    assert str(InjectedFault(0, "nan", 2).missed(rows)).endswith("the run ended before.")


@dataclass
class AfterRound:
    """Does something when a round has ended."""

    do: dict[int, Callable[[], None]]

    def __call__(self, record: dict[str, Any]) -> None:
        self.do.get(record["round"], lambda: None)()


def test_nodes_leave_join_in_the_middle_die_at_work_and_return_as_the_same_client(fleet, drill, tmp_path):
    """Site 4 has signed off and joins after round 1; site 1 is killed in round 2 and comes back for round 3."""
    drill(1, "sleep 2 60")
    numbers = {node.name: node.node_id for node in fleet.link.nodes()}
    settings = fleet.fleet.folder / "fleet.toml"
    before = settings.read_text()
    settings.write_text(before.replace("patience = 120.0", "patience = 0.5"))
    group = fleet.node("site-4")
    os.killpg(group, signal.SIGTERM)
    until(lambda: not alive(group))

    def join_and_kill() -> None:
        bring_back(fleet, "site-4")
        threading.Thread(target=kill_at_work, args=[fleet, "site-1"]).start()

    after = AfterRound({1: join_and_kill, 2: lambda: bring_back(fleet, "site-1")})
    try:
        run = covey.run({**SETTINGS, **SHORT, "rounds": 3, "runtime": "fleet"}, out=tmp_path / "run", on_round=after)
    finally:
        settings.write_text(before)
    assert [row["away"] for row in run.metrics] == [[4], [], []]
    assert [row["clients"] for row in run.metrics] == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert [[fault["client"] for fault in row["dropped"]] for row in run.metrics] == [[], [1], []]
    assert run.metrics[1]["dropped"][0]["reason"] == f"no answer within {TIMEOUT:g} seconds"
    assert {node.name: node.node_id for node in fleet.link.nodes()} == numbers
    assert all(torch.isfinite(value).all() for value in state(run).values())


def kill_at_work(fleet: Loopback, name: str) -> None:
    """Kill a node as soon as it answers an order."""
    until(lambda: any(fleet.fleet.site(name).glob(f"{ORDER_FILE}-*")))
    fleet.kill_node(name)


def bring_back(fleet: Loopback, name: str) -> None:
    """Start a node, and wait until the server knows it."""
    log = fleet.fleet.site(name) / "node.log"
    seen = log.read_text().count("SuperNode ID")
    fleet.start_nodes([name])
    until(lambda: log.read_text().count("SuperNode ID") > seen)


def until(what: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_server_that_is_killed_goes_on_where_it_was_and_ends_as_if_nothing_had_happened(fleet, tmp_path):
    """SIGKILL of the server app and of the SuperLink in the middle of a round; both are started again."""
    out = tmp_path / "run"
    rounds = 5
    given = [f"{key}={value}" for key, value in {"method": "fedacs", "cohort": 2, "rounds": rounds}.items()]
    command = [sys.executable, "-m", "covey.cli.main", "fleet", "run", str(fleet.fleet.folder), "--out", str(out)]
    command += [word for setting in given for word in ("--set", setting)]
    server = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(read_metrics(out)) >= 2)
        os.kill(server.pid, signal.SIGKILL)
        fleet.kill_server()
    finally:
        server.wait()
    kept = read_metrics(out)
    assert 2 <= len(kept) < rounds
    fleet.start_server()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr
    resumed = covey.Run.open(out)
    local = covey.run({**SETTINGS, "method": "fedacs", "cohort": 2, "rounds": rounds}, out=tmp_path / "local")
    assert outcomes(resumed) == outcomes(local)
    assert [row["clock"] for row in resumed.metrics[: len(kept) - 1]] == [row["clock"] for row in kept[:-1]]
    assert checkpoint(resumed) == checkpoint(local)


def test_a_server_that_goes_on_rests_the_sites_that_it_would_have_rested(fleet, drill, tmp_path):
    for number in (1, 2):
        drill(0, f"error {number}")
    settings = {**SETTINGS, "rounds": 4, "runtime": "fleet"}

    def stop(record: dict[str, Any]) -> None:
        if record["round"] in (2, 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        covey.run(settings, out=tmp_path / "run", on_round=stop)
    with pytest.raises(KeyboardInterrupt):
        covey.resume(tmp_path / "run", on_round=stop)
    run = covey.resume(tmp_path / "run")
    assert [row["resting"] for row in run.metrics] == [[], [], [0], []]
    assert [row["clients"] for row in run.metrics] == [[0, 1, 2, 3, 4]] * 2 + [[1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert run.metrics[2]["health"] == {"failures": {"0": 2}, "until": {"0": 3}}
    assert "health" not in run.metrics[3]


# Jobs of their own


def test_analyze_and_ondemand_ask_live_nodes(fleet, covey_command, tmp_path):
    folder = fleet.fleet.folder
    asked = {key: SETTINGS[key] for key in ("clients", "environment", "model", "local")}
    local = covey.analyze(asked, rounds=1, workers=1)
    live = covey_command("analyze", "--fleet", folder, "--rounds", 1, "--json").json
    assert live["clients"] == 5
    assert live["faults"] == []
    assert live["each"] == json.loads(json.dumps(local.as_mapping()["each"]))
    base = covey.run(SETTINGS, out=tmp_path / "base")
    job = covey_command(
        *("ondemand", base.folder, "--target", "0=0.5,1=0.5", "--estimator", "analytic", "--rounds", 2),
        *("--fleet", folder, "--out", tmp_path / "job", "--json"),
    )
    assert job.code == 0, job.err
    expected = covey.ondemand(
        base, {0: 0.5, 1: 0.5}, estimator="analytic", rounds=2, out=tmp_path / "local", runtime="local", workers=1
    )
    found = [sorted((tmp_path / name).rglob("model.safetensors")) for name in ("job", "local")]
    assert found[0] and len(found[0]) == len(found[1]) == len(expected.tailored)
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(value, load_file(other)[name]) for name, value in load_file(one).items())


# A fleet on real machines


def test_the_files_of_a_real_fleet_run_as_its_readme_says(covey_command, tmp_path):
    folder, port = tmp_path / "pumps", free_port()
    where = ["--sites", "harbour,mill", "--address", f"127.0.0.1:{port}", "--host", "fleet.example"]
    samples = ["--shape", "6", "--classes", "ok,worn,broken", "--poll", "0.3"]
    run = ["--rounds", "2", "--set", "model.hidden=8", "--set", "local.epochs=2"]
    answer = covey_command("fleet", "init", folder, *where, *samples, *run)
    assert answer.code == 0, answer.err
    described = Fleet.read(folder)
    private = [folder / "authority/ca.key", folder / "server/server.key", folder / "server/secret"]
    private += [described.site(name) / file for name in described.sites for file in ("node.key", "secret")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    certificate = x509.load_pem_x509_certificate((folder / "server/server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fleet.example"]
    readme = (folder / "README.md").read_text()
    assert all(word in readme for word in ("harbour", "mill", str(port), "server/start.sh", "covey fleet register ."))
    write_site_samples(described)
    variables = environment(tmp_path / "flower")
    variables |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def started(script: Path) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([str(script)], env=variables, start_new_session=True, stdout=subprocess.DEVNULL)

    processes = [started(folder / "server/start.sh")]
    try:
        until(lambda: listens(port))
        assert covey_command("fleet", "register", folder).code == 0
        processes += [started(described.site(name) / "start.sh") for name in described.sites]

        def online() -> bool:
            rows = covey_command("fleet", "status", folder, "--json").json
            return [row["status"] for row in rows] == ["online", "online"]

        until(online)
        ended = covey_command("fleet", "run", folder, "--json")
        assert ended.code == 0, ended.err
        found = covey_command("analyze", "--fleet", folder, "--rounds", 1, "--json")
        assert found.code == 0, found.err
        untested = covey_command("ondemand", folder / "run", "--target", "0=1", "--fleet", folder)
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait(timeout=120)
    assert not listens(port)
    rows = read_metrics(folder / "run")
    assert [row["clients"] for row in rows] == [[0, 1], [0, 1]]
    assert rows[-1]["accuracy"] > 0.6
    assert {(one["name"], one["samples"], one["true_skew"]) for one in found.json["each"]} == {
        ("harbour", 60, None),
        ("mill", 60, None),
    }
    assert "Give it test samples" in untested.err
    assert rows[-1]["cohort_skew"] is None
    assert rows[-1]["own_accuracy"] is None
    assert "harbour" not in (folder / "run" / "metrics.jsonl").read_text()
    assert covey.report([folder / "run"]).exists()


def documented(command: str) -> list[str]:
    """The arguments of a command as the guide has it."""
    lines = (ROOT / "docs/fleet.md").read_text().replace("\\\n", " ").splitlines()
    (found,) = (line for line in lines if line.startswith(f"covey {command}"))
    return shlex.split(found)[1:]


def test_the_guide_installs_what_an_operators_commands_need():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (ROOT / "docs/fleet.md").read_text()
    found = {name for names in re.findall(r"pip install '\.\[([a-z,]+)\]'", text) for name in names.split(",")}
    assert found == {"flower", "report"} <= set(extras)


# FedBN needs a model with normalisation, which the documented fleet's has not.
LIVE = [name for name in methods.names() if methods[name].part.reshape is None and name != "fedbn"]


@pytest.mark.parametrize("method", [*LIVE, "fedacs+feddrl"])
def test_the_documented_fleet_can_run_every_method(covey_command, method, tmp_path):
    words = documented("fleet init pumps --sites")
    words[words.index("fedacs")] = method
    words[words.index("pumps")] = str(tmp_path / "pumps")
    answer = covey_command(*words)
    assert answer.code == 0, answer.err
    written = Fleet.read(tmp_path / "pumps")
    assert written.run["rounds"] == 50
    Experiment.of(Config.of({**run_settings(written), "runtime": "local", "workers": 1})).runtime.close()


def test_a_fleet_that_could_not_run_is_refused_before_anything_is_made(covey_command, monkeypatch, tmp_path):
    monkeypatch.setattr("covey.fleet.loopback.Loopback.__enter__", lambda self: pytest.fail("started"))
    init = ("fleet", "init", tmp_path / "x", "--sites", "a,b,c", "--shape", "4", "--classes", "2")
    for words, said in (
        ((*init, "--method", "fedacs", "--cohort", 2), "too few for a cohort of 2"),
        ((*init, "--method", "iid"), "The method 'iid' rearranges clients' data"),
        ((*init, "--model", "fashion-cnn"), "fashion-cnn"),
        (("fleet", "up", "--method", "fedacs", "--cohort", 5), "too few for a cohort of 5"),
        (("fleet", "up", "--method", "iid"), "The method 'iid' rearranges clients' data"),
    ):
        answer = covey_command(*words)
        assert answer.code == 2
        assert said in " ".join(answer.err.split())
    assert not (tmp_path / "x").exists()


def write_site_samples(described: Fleet) -> None:
    """One site keeps NumPy files, the other a table with class names."""
    rng = np.random.default_rng(0)
    classes = ("ok", "worn", "broken")
    centres = 3 * rng.normal(size=(3, 6))
    for number, name in enumerate(described.sites):
        for part in ("train", "test"):
            y = rng.integers(3, size=60)
            x = (centres[y] + rng.normal(size=(60, 6))).astype(np.float32)
            place = described.site(name) / "data"
            if number == 0:
                np.savez(place / f"{part}.npz", x=x, y=y)
                continue
            header = [*(f"band {band}" for band in range(6)), "label"]
            lines = [[*map(str, row), classes[label]] for row, label in zip(x.tolist(), y.tolist(), strict=True)]
            (place / f"{part}.csv").write_text("\n".join(",".join(line) for line in [header, *lines]))
    samples = read_samples(described.site("mill") / "data", "train", classes)
    assert tuple(samples.x.shape) == (60, 6)
    assert int(samples.y.max()) == 2


@pytest.mark.parametrize("method", ["mocha", "scaffold", "moon"])
def test_what_a_site_holds_outlives_its_node_and_the_server(method, tmp_path):
    """MOCHA's dual variables and what trainers keep never leave a site. Node and server restart after two rounds."""
    config = Config.of({**SETTINGS, "method": method, "rounds": 4})
    experiment = Experiment.of(config)
    sites = site_nodes(config, tmp_path)
    for first in (1, 3):
        grid = site_grid(*sites)
        roster = Roster(5, patience=1.0)
        roster.wait(grid, 5.0)
        exchange = Exchange(roster, seed=config.seed, timeout=30.0, run="one run")
        for number in (first, first + 1):
            replies = checked(exchange.execute(grid, experiment.method.order(number, np.arange(5))))
            assert replies.faults == ()
            experiment.method.absorb(number, replies)
    local = covey.run(config, out=tmp_path / "local")
    kept = experiment.method.models()
    experiment.runtime.close()
    _, saved = read_checkpoint(local.folder)
    again = Experiment.of(config)
    again.method.load_state_dict(saved or {})
    again.runtime.close()
    assert torch.equal(kept, again.method.models())
    assert stat.S_IMODE((tmp_path / "0" / "memory").stat().st_mode) == 0o600


def test_a_site_that_lost_what_it_kept_is_visited_as_if_for_the_first_time(tmp_path):
    config = Config.of({**SETTINGS, "method": "moon", "cohort": 5, "rounds": 3})
    experiment = Experiment.of(config)
    said, nodes = site_nodes(config, tmp_path)
    exchange = None
    for number in (1, 2, 3):
        grid = site_grid(said, nodes)
        roster = Roster(5, patience=1.0)
        roster.wait(grid, 5.0)
        exchange = exchange or Exchange(roster, seed=config.seed, timeout=30.0, run="one run")
        exchange.roster = roster
        replies = checked(exchange.execute(grid, experiment.method.order(number, np.arange(5))))
        assert replies.faults == ()
        experiment.method.absorb(number, replies)
        (tmp_path / "0" / "memory").unlink()
    experiment.runtime.close()
    # The first client trained plainly in every round; the others had something to contrast with.
    whole = covey.run(config, out=tmp_path / "whole")
    _, saved = read_checkpoint(whole.folder)
    assert saved is not None
    assert not torch.equal(experiment.method.models()[0], saved["model"])


def site_nodes(config: Config, folder: Path) -> tuple[str, list[dict[str, str]]]:
    """Return the settings sent to sites with the samples of a configuration, and their nodes' configuration."""
    federation = build_federation(config)
    nodes = []
    for client in range(federation.clients):
        place = folder / str(client)
        place.mkdir(parents=True)
        samples = federation.samples(client)
        np.savez(place / "train.npz", x=samples.x.numpy(), y=samples.y.numpy())
        nodes.append({"client": str(client), "folder": str(place), "memory": str(place / "memory")})
    said = about(federation.dataset, config.model.name, config.model.options, config.seed, config.precision)
    return json.dumps(said), nodes


def site_grid(said: str, nodes: list[dict[str, str]]) -> InProcessGrid:
    """Nodes that have just started."""
    grid = InProcessGrid(site_app, nodes)
    for context in grid.contexts.values():
        context.run_config = {"covey": said}
    return grid


def test_sites_are_told_which_words_are_stop_words(tmp_path):
    words = {"dataset": {"name": "papers.nccb:made_up", "stop_words": "keep"}, "environment": "natural"}
    config = Config.of({**words, "model": {"name": "lstm", "embedding": 4, "hidden": 4, "layers": 1}, "cohort": 3})
    said, nodes = site_nodes(config, tmp_path)
    dataset = build_federation(config).dataset
    assert [dataset.class_names[place] for place in dataset.stop_words] == ["the"]
    for context in site_grid(said, nodes[:1]).contexts.values():
        assert prepared(context, "train").learner.stop_words == dataset.stop_words
    # A server that does not know them says nothing of them.
    older = {key: value for key, value in json.loads(said).items() if key != "stop_words"}
    for context in site_grid(json.dumps(older), nodes[:1]).contexts.values():
        assert prepared(context, "train").learner.stop_words == ()


def test_a_round_that_is_played_again_after_a_crash_trains_models_at_sites_once(tmp_path):
    """local-only: the server dies after all replies to round 2, before its checkpoint, and orders it again."""
    config = Config.of({**SETTINGS, "method": "local-only", "rounds": 3})
    experiment = Experiment.of(config)
    experiment.runtime.close()
    grid = site_grid(*site_nodes(config, tmp_path / "sites"))
    holds: dict[int, list[str]] = {}
    attempts: list[tuple[int, ...]] = [(1, 2), (2, 3), (1, 2, 2, 3)]
    for rounds in attempts:
        roster = Roster(5, patience=1.0)
        roster.wait(grid, 5.0)
        exchange = Exchange(roster, seed=config.seed, timeout=30.0, run="one run")
        exchange.holds = holds
        for number in rounds:
            replies = checked(exchange.execute(grid, experiment.method.order(number, np.arange(5))))
            assert replies.faults == ()
        if rounds[0] == 2:
            # A new run of the same settings starts from the initial model, too.
            once = own_models(grid)
        holds = exchange.holds
    local = covey.run(config, out=tmp_path / "local")
    _, saved = read_checkpoint(local.folder)
    assert saved is not None
    assert torch.equal(once, saved["personal"])
    assert torch.equal(own_models(grid), saved["personal"])


def test_a_site_whose_node_restarted_scores_the_model_that_it_trained(tmp_path):
    config = Config.of({**SETTINGS, "method": "local-only"})
    experiment = Experiment.of(config)
    experiment.runtime.close()
    sites = site_nodes(config, tmp_path)
    order = experiment.method.order(1, np.arange(5))
    grid = site_grid(*sites)
    roster = Roster(5, patience=1.0)
    roster.wait(grid, 5.0)
    exchange = Exchange(roster, seed=config.seed, timeout=30.0, run="one run")
    untrained = exchange.scores(grid, replace(order, train=False))
    exchange.execute(grid, order)
    trained = exchange.scores(grid, replace(order, train=False))
    assert all(trained[client][1] < untrained[client][1] for client in range(5))
    assert exchange.scores(site_grid(*sites), replace(order, train=False)) == trained


class Session:
    """A fleet's run whose nodes are in this process."""

    def __init__(self, grid: InProcessGrid) -> None:
        self.grid = grid

    def act(self) -> None: ...

    def leave(self) -> None: ...


class Registered(InProcessGrid):
    """A grid that knows its nodes by their keys."""

    keys: dict[str, bytes]
    """Name → public key."""

    def get_nodes(self) -> list[Any]:
        named = {node: context.node_config["client"] for node, context in self.contexts.items()}
        return [
            SimpleNamespace(node_id=node, name=name, public_key=self.keys[str(name)], registered_at="")
            for node, name in named.items()
        ]


@pytest.fixture
def own_data(tmp_path, monkeypatch) -> Callable[..., Fleet]:
    """`own_data(test=True)`: a fleet of three sites with data of their own, in this process."""

    def made(*, test: bool = False, kind: type[Registered] = Registered) -> Fleet:
        sites, classes = ("harbour", "mill", "quarry"), ("ok", "worn", "broken")
        data: dict[str, Any] = {"shape": [6], "classes": list(classes), **({"test": "test.npz"} if test else {})}
        run = {"model": {"name": "mlp", "hidden": [8]}, "local": {"epochs": 1}, "rounds": 2, "cohort": 3}
        rules = Rules(timeout=30.0, patience=1.0)
        fleet = Fleet(folder=tmp_path / "own", address="127.0.0.1:1", sites=sites, rules=rules, run=run, data=data)
        fleet.write(["127.0.0.1"])
        rng = np.random.default_rng(0)
        nodes = []
        for number, name in enumerate(sites):
            y = rng.permutation(np.repeat([number, (number + 1) % 3], [40 + number, 8]))
            x = (3 * np.eye(3).repeat(2, axis=1)[y] + rng.normal(size=(len(y), 6))).astype(np.float32)
            for path in (fleet.site(name) / "data" / "train.npz", fleet.folder / "test.npz"):
                np.savez(path, x=x, y=y)
            nodes.append({"client": name, "folder": str(fleet.site(name) / "data")})
        grid = kind(site_app, nodes)
        grid.keys = {name: public_bytes(fleet.key(name)) for name in sites}

        def entered(fleet: Fleet, settings: str, limit: int) -> Session:
            for context in grid.contexts.values():
                context.run_config = {"covey": settings}
            return Session(grid)

        monkeypatch.setattr("covey.fleet.fleet_runtime._Session.enter", entered)
        monkeypatch.setenv(FLEET, str(fleet.folder))
        return fleet

    return made


def score_at(experiment: Experiment, fleet: Fleet, model: torch.Tensor, client: int) -> tuple[float, float]:
    """Loss and accuracy of a model at a site."""
    samples = read_samples(fleet.site(fleet.sites[client]) / "data", "train", ("ok", "worn", "broken"))
    loss, right = Learner(experiment.module, experiment.federation.dataset).score(model, samples)
    return float(loss) / len(samples), int(right.sum()) / len(samples)


def test_each_site_scores_the_model_that_it_uses(own_data):
    """CFL with as many clusters as sites, in another order than theirs; then with two."""
    fleet = own_data()
    experiment = Experiment.of(Config.of({**run_settings(fleet), "method": "cfl"}))
    method = experiment.method
    assert isinstance(method, CFL)
    models = torch.randn(3, method.centres.shape[1], generator=torch.Generator().manual_seed(0))
    for cluster in ([2, 0, 1], [1, 0, 1]):
        method.cluster = np.array(cluster)
        method.centres = models[: max(cluster) + 1]
        scores = experiment.runtime.evaluate(method.models())
        for model in set(cluster):
            users = [client for client in range(3) if cluster[client] == model]
            found = np.array([score_at(experiment, fleet, models[model], client) for client in users])
            mean = np.average(found, axis=0, weights=[48 + client for client in users])
            assert (scores.loss[model], scores.accuracy[model]) == pytest.approx(tuple(mean), rel=1e-6)
    experiment.runtime.close()


class Boasting(Registered):
    """A grid whose first site claims a billion samples and a perfect score in evaluations."""

    def _answer(self, message: Message) -> Message:
        answer = super()._answer(message)
        if message.metadata.dst_node_id == min(self.contexts) and REPLY in answer.content.metric_records:
            record = answer.content.metric_records[REPLY]
            if "accuracy" in record:
                record["samples"], record["loss"], record["accuracy"] = 10**9, 0.0, 1.0
        return answer


def test_a_site_that_boasts_does_not_decide_the_score_of_a_fleet(own_data):
    fleet = own_data(kind=Boasting)
    truth: list[float] = []
    reported: dict[bool, float] = {}
    for on in (True, False):
        experiment = Experiment.of(Config.of({**run_settings(fleet), "method": "fedavg", "guard": {"on": on}}))
        model = torch.randn(experiment.method.models().shape, generator=torch.Generator().manual_seed(0))
        truth = [score_at(experiment, fleet, model[0], client)[0] for client in (1, 2)]
        reported[on] = float(experiment.runtime.evaluate(model).loss[0])
        experiment.runtime.close()
    assert reported[False] == pytest.approx(0.0, abs=1e-3)
    # The site weighs at most as much as two of three.
    assert reported[True] == pytest.approx(np.average(truth, weights=[49, 50]) / 3, rel=1e-6)


@pytest.mark.parametrize("method", ["local-only", "fedper", "ditto"])
@pytest.mark.parametrize("test", [False, True])
def test_models_that_stay_at_sites_are_scored_there(own_data, test, method, tmp_path):
    """The server's own copies are those from before training."""
    fleet = own_data(test=test)
    run = covey.run({**run_settings(fleet), "method": method, "rounds": 3}, out=tmp_path / "run")
    assert run.metrics[-1]["accuracy"] > run.metrics[0]["accuracy"] > 0.2
    assert run.metrics[-1]["own_accuracy"] is None
    assert "class_accuracy" not in run.metrics[-1]
    for look in (run.evaluate, lambda: run.model(0), lambda: run.export(tmp_path / "model.safetensors", 0)):
        with pytest.raises(Refusal, match=f"With '{method}' on a fleet, models stay at the sites"):
            look()


def test_a_run_that_is_gone_on_with_keeps_its_settings_or_says_that_they_differ(own_data, covey_command):
    fleet = own_data()
    assert covey_command("fleet", "run", fleet.folder).code == 0
    assert covey_command("fleet", "run", fleet.folder, "--set", "rounds=2").code == 0
    answer = covey_command("fleet", "run", fleet.folder, "--set", "local.rate=0.5", "--set", "rounds=3")
    assert answer.code == 2
    said = "was begun with local.rate = 0.1, rounds = 2, and is now given local.rate = 0.5, rounds = 3."
    assert said in " ".join(answer.err.split())
    assert "put them back, or begin another run: --out FOLDER." in " ".join(answer.err.split())
    write_toml(fleet.folder / "fleet.toml", replace(fleet, run={**fleet.run, "seed": 7}).as_mapping())
    answer = covey_command("fleet", "run", fleet.folder)
    assert answer.code == 2
    assert "was begun with seed = 0, and is now given seed = 7." in " ".join(answer.err.split())
    assert len(read_metrics(fleet.folder / "run")) == 2
    assert covey_command("fleet", "run", fleet.folder, "--out", fleet.folder / "another").code == 0


def test_resume_takes_the_fleet_that_a_run_needs(own_data, covey_command, monkeypatch, tmp_path):
    fleet = own_data()
    with pytest.raises(KeyboardInterrupt):
        covey.run(run_settings(fleet), out=tmp_path / "run", on_round=AfterRound({1: interrupt}))
    monkeypatch.delenv(FLEET)
    assert "Say which fleet: --fleet FOLDER" in covey_command("resume", tmp_path / "run").err
    write_names(tmp_path / "run", ["kiln", "mill", "quarry"])
    answer = covey_command("resume", tmp_path / "run", "--fleet", fleet.folder)
    assert answer.code == 2
    assert "is one of the sites kiln, mill, quarry; those of" in " ".join(answer.err.split())
    (tmp_path / "run" / "names.json").unlink()
    answer = covey_command("resume", tmp_path / "run", "--fleet", fleet.folder)
    assert answer.code == 0, answer.err
    assert covey.Run.open(tmp_path / "run").finished
    assert FLEET not in os.environ
    other = covey.run({**SETTINGS, "rounds": 1}, out=tmp_path / "other")
    assert "not one of a fleet" in covey_command("resume", other.folder, "--fleet", fleet.folder).err


def interrupt() -> None:
    raise KeyboardInterrupt


def test_help_says_how_many_sites_are_invited(covey_command):
    said = " ".join(covey_command("fleet", "up", "--help").out.replace("│", " ").split())
    assert "by default 0.4 (covey run invites 0.1)" in said


def test_sites_are_called_by_their_names(own_data, covey_command):
    fleet = own_data()
    (fleet.site("mill") / "data" / "train.npz").write_bytes(b"gone")
    answer = covey_command("fleet", "run", fleet.folder)
    assert answer.code == 0, answer.err
    said = " ".join(answer.out.split())
    assert "Round 2: the answer of mill was lost: it answered with an error" in said
    assert "2 replies were dropped (clients mill). The first: round 1, mill: it answered with an error" in said
    shown = covey_command("fleet", "run", fleet.folder, "--json").json
    assert [fault["name"] for fault in shown["faults"]] == ["mill", "mill"]
    page = covey.report([fleet.folder / "run"]).read_text()
    assert page.count("<td>mill</td>") == 2
    assert [fault["client"] for row in read_metrics(fleet.folder / "run") for fault in row["dropped"]] == [1, 1]


def test_a_run_on_a_new_fleet_keeps_its_settings_too(covey_command, tmp_path):
    run = covey.run({**SETTINGS, "rounds": 1}, out=tmp_path / "run")
    for flags, said in (
        (["--rounds", 9], "was begun with rounds = 1, runtime = local, and is now given rounds = 9, runtime = fleet."),
        (["--clients", 9, "--set", "seed=1"], "is now given clients = 9, seed = 1, runtime = fleet."),
        (["--out", tmp_path / "other"], "A run is resumed in its own folder: leave out --out."),
    ):
        answer = covey_command("fleet", "up", "--resume", run.folder, *flags)
        assert answer.code == 2
        assert said in " ".join(answer.err.split())


def test_on_a_fleet_with_data_of_its_own_nothing_is_said_of_the_truth(own_data, covey_command, tmp_path):
    """A job on demand: neither targets, nor figures, are made of the blanks that stand for the sites' samples."""
    fleet = own_data(test=True)
    assert covey_command("fleet", "run", fleet.folder).code == 0
    base = fleet.folder / "run"
    asked: dict[str, Any] = {"estimator": "analytic", "rounds": 1, "insight_dp": "4,1e-5"}
    job = covey.ondemand(base, "ok=0.7,worn=0.3", **asked, out=tmp_path / "job")
    assert job.composed.estimates.seen.tolist() == [3, 3, 3]
    assert job.composed.error is None
    assert job.composed.privacy == ()
    (one,) = job.tailored
    assert one.true_mix is None
    assert one.scored.accuracy is not None
    written = json.loads(json.dumps(job.as_mapping(), allow_nan=False))
    assert (written["estimate_error"], written["privacy"]) == (None, [])
    assert (written["targets"][0]["true_mix"], written["targets"][0]["true_distance"]) == (None, None)
    page = job.draw(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "truly" not in page
    assert "off by (n·MAE)" not in page
    with pytest.raises(Refusal, match="There is no target 'local:0' here: what clients hold is known to themselves"):
        covey.ondemand(base, "local:0", estimator="analytic", out=tmp_path / "other")
    with pytest.raises(Refusal, match="choose another estimator than ground-truth"):
        covey.ondemand(base, "td1", estimator="ground-truth", out=tmp_path / "other")
    flags = ["--fleet", fleet.folder, "--estimator", "analytic", "--rounds", 1, "--out", tmp_path / "command"]
    answer = covey_command("ondemand", base, "--target", "ok=0.7,worn=0.3", *flags)
    assert answer.code == 0, answer.err
    assert "off by" not in answer.out
    assert not (tmp_path / "other").exists()


def test_a_simulated_base_run_says_nothing_of_sites_with_data_of_their_own(own_data, tmp_path):
    """A model can be fine-tuned on other clients than it was trained on; the truth about those is not that of these."""
    fleet = own_data(test=True)
    dataset = {"name": "synthetic", "shape": (6,), "classes": 3, "train": 90, "test": 30}
    simulated = {"clients": 3, "environment": "iid", "dataset": dataset, "runtime": "local", "workers": 1}
    base = covey.run({**fleet.run, **simulated}, out=tmp_path / "base")
    job = covey.ondemand(base, "td1", estimator="analytic", rounds=1, runtime="fleet", out=tmp_path / "job")
    assert job.composed.error is None
    with pytest.raises(Refusal, match="There is no target 'local:0' here"):
        covey.ondemand(base, "local:0", estimator="analytic", rounds=1, runtime="fleet", out=tmp_path / "other")


def test_without_test_samples_nothing_is_scored_on_blanks(own_data, covey_command, tmp_path):
    fleet = own_data()
    assert covey_command("fleet", "run", fleet.folder).code == 0
    with pytest.raises(Refusal, match="the server has no test samples"):
        covey.ondemand(fleet.folder / "run", "td1", estimator="analytic", out=tmp_path / "job")
    with pytest.raises(Refusal, match="the server has no test samples"):
        covey.Run.open(fleet.folder / "run").evaluate()
    with pytest.raises(Refusal, match="What clients hold is known to themselves alone"):
        describe(run_settings(fleet))
    analysis = covey.analyze(run_settings(fleet), rounds=1)
    assert analysis.truth is None
    assert analysis.samples.tolist() == [48, 49, 50]


def test_a_fleets_run_is_evaluated_without_clients_own_mixes(own_data, covey_command):
    fleet = own_data(test=True)
    assert covey_command("fleet", "run", fleet.folder).code == 0
    found = covey.Run.open(fleet.folder / "run").evaluate()
    assert found["own_accuracy"] is None
    assert found["accuracy"] == read_metrics(fleet.folder / "run")[-1]["accuracy"]


def own_models(grid: InProcessGrid) -> torch.Tensor:
    """The models that clients trained last."""
    found = [Memory(context.state, "one run").own() for context in grid.contexts.values()]
    return torch.stack([model for model in found if model is not None])


def held(place: Path) -> str:
    """Return the note in a site's memory, or "nothing"."""
    context = a_site(place)
    recall(context, place)
    return str(context.state.config_records["note"]["of"]) if len(context.state) else "nothing"


def a_site(place: Path) -> Context:
    return Context(1, 1, {"memory": str(place)}, RecordDict(), {})


def note(context: Context, of: str) -> None:
    context.state["note"] = ConfigRecord({"of": of})
    context.state["arrays"] = ArrayRecord([np.zeros(200_000)])


def test_an_order_that_ends_late_does_not_bring_back_what_a_site_held_before_the_next_one(tmp_path):
    place = tmp_path / "memory"
    late, next_ = a_site(place), a_site(place)
    first, second = recall(late, place), recall(next_, place)
    note(next_, "the next order")
    remember(next_, place, second)
    note(late, "the late order")
    remember(late, place, first)
    assert held(place) == "the next order"
    # A later order resumes from what is stored, whatever its node passes to it.
    after = a_site(place)
    note(after, "an order before")
    number = recall(after, place)
    assert after.state.config_records["note"]["of"] == "the next order"
    note(after, "after")
    remember(after, place, number)
    assert held(place) == "after"


def test_orders_that_end_at_once_leave_one_whole_memory(tmp_path):
    place = tmp_path / "memory"

    def answer(number: int) -> None:
        for turn in range(20):
            context = a_site(place)
            ticket = recall(context, place)
            note(context, f"{number}, {turn}")
            remember(context, place, ticket)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(answer, number) for number in range(4)]:
            done.result()
    assert held(place).endswith(", 19")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_up_leaves_no_process_and_no_port_behind_after_ctrl_c(tmp_path):
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "covey.cli.main",
        "fleet",
        "up",
        "--clients",
        "2",
        "--rounds",
        "500",
        "--out",
        str(out),
    ]
    shell = subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: len(read_metrics(out)) >= 1)
        descendants = [*_children(shell.pid)]
        (port,) = {int(match) for match in re.findall(r"address = \"127\.0\.0\.1:(\d+)\"", _fleet_toml(tmp_path))}
        assert len(descendants) >= 6
        shell.send_signal(signal.SIGINT)
        _, wrong = shell.communicate(timeout=240)
    finally:
        shell.kill()
    assert shell.returncode == 130, wrong
    assert "Stopped after round" in wrong
    assert not [process for process in descendants if Path(f"/proc/{process}").exists()]
    assert not listens(port)
    assert not list(tmp_path.glob("covey-fleet-*"))
    assert (out / "logs" / "superlink.log").exists()


def _fleet_toml(place: Path) -> str:
    (found,) = place.glob("covey-fleet-*/fleet/fleet.toml")
    return found.read_text()


def _children(process: int) -> Iterator[int]:
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in path.read_text().split():
            yield int(child)
            yield from _children(int(child))


def test_a_fleet_is_never_written_over_and_says_what_it_lacks(covey_command, tmp_path):
    (tmp_path / "something").write_text("here")
    given = ("--sites", "a,b", "--shape", "4", "--classes", "2")
    assert "not empty" in covey_command("fleet", "init", tmp_path, *given).err
    assert "samples look like" in covey_command("fleet", "init", tmp_path / "x", "--sites", "a").err
    assert "cannot be a site's name" in covey_command("fleet", "init", tmp_path / "x", "--sites", "a/b", *given[2:]).err
    assert "A fleet needs sites" in covey_command("fleet", "init", tmp_path / "x", "--sites", ",", *given[2:]).err
    assert "no fleet.toml" in covey_command("fleet", "status", tmp_path).err
    assert covey_command("fleet", "init", tmp_path / "x", *given, "--address", f"127.0.0.1:{free_port()}").code == 0
    assert "cannot be reached" in covey_command("fleet", "status", tmp_path / "x").err
    text = json.dumps(Fleet.read(tmp_path / "x").as_mapping())
    assert "BEGIN" not in text
