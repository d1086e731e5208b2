"""Flower apps that know nothing of Covey, on Flower's simulation engine and on a SuperLink with SuperNodes."""

import contextlib
import difflib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from covey.flower import InProcessGrid, Strategy, roster
from tests.programs import wait_until

APPS = Path(__file__).parents[2] / "examples/flower-any"
FRAMEWORKS = ("pytorch", "sklearn", "numpy")
SHAPES: dict[tuple[int, ...], str] = {(32, 64): "pytorch", (10, 64): "sklearn", (8, 4): "numpy"}
"""The shape of each app's first array."""
RESOURCES: dict[str, Any] = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"},
}

pytestmark = pytest.mark.integration


def settings(framework: str) -> dict[str, Any]:
    described = tomllib.loads((APPS / framework / "pyproject.toml").read_text())
    config: dict[str, Any] = described["tool"]["flwr"]["app"]["config"]
    return config


class AnyApp(ClientApp):
    """Passes messages to the example's app whose model they hold, so that one simulation serves all three."""

    def __call__(self, message: Message, context: Context) -> Message:
        arrays = message.content.array_records.get("arrays")
        first = next(iter(arrays.values())).shape if arrays is not None else (8, 4)
        framework = SHAPES[tuple(first)]
        sys.path.insert(0, str(APPS / framework))
        app: ClientApp = import_module(f"{framework}_app.client_app").app
        own = Context(context.run_id, context.node_id, context.node_config, context.state, settings(framework))
        return app(message, own)


@pytest.fixture
def noted(monkeypatch):
    """Framework → its strategy and what `start` returned."""
    found: dict[str, Any] = {}
    start = Strategy.start

    def noting(self: Strategy, *args: Any, **kwargs: Any) -> Any:
        result = start(self, *args, **kwargs)
        first = next(iter(result.arrays.values()))
        found[SHAPES[tuple(first.shape)]] = self, result
        return result

    monkeypatch.setattr(Strategy, "start", noting)
    return found


def servers(monkeypatch: pytest.MonkeyPatch) -> dict[str, ServerApp]:
    for framework in FRAMEWORKS:
        monkeypatch.syspath_prepend(str(APPS / framework))
    return {framework: import_module(f"{framework}_app.server_app").app for framework in FRAMEWORKS}


def test_three_apps_of_three_frameworks_learn_on_the_simulation_engine(noted, monkeypatch, tmp_path, caplog):
    """The server knows nothing of their frameworks, and the simulation logs no error about its questions."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, logger="flwr")
    apps = servers(monkeypatch)
    every = ServerApp()

    @every.main()
    def main(grid: Grid, context: Context) -> None:
        for framework, app in apps.items():
            app(grid, Context(1, 0, {}, RecordDict(), {**settings(framework), "num-server-rounds": 3}))

    run_simulation(every, AnyApp(), 10, backend_config=RESOURCES)
    assert list(noted) == list(FRAMEWORKS)
    for framework, (strategy, result) in noted.items():
        assert [entry["faults"] for entry in strategy.history] == [[], [], []]
        assert strategy.config.clients == 10
        losses = [float(result.evaluate_metrics_clientapp[t]["loss"]) for t in (1, 3)]
        assert losses[1] < losses[0], framework
    assert noted["pytorch"][0].config.selector.options["insight"] == "update"
    assert {array.dtype for array in noted["sklearn"][1].arrays.values()} == {"float64"}
    assert noted["pytorch"][1].arrays["norm.num_batches_tracked"].numpy() == 0
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert [said for said in errors if "query" in said or "Traceback" in said or "ttl" in said] == []


def test_a_late_answer_to_a_question_is_no_error_in_the_log(monkeypatch, caplog):
    """A simulation's engine starts only when the first question is asked, which can take longer than it stays open."""
    monkeypatch.setattr(roster, "_FIRST", 0.2)
    monkeypatch.syspath_prepend(str(APPS / "numpy"))
    app = import_module("numpy_app.server_app").app
    every = ServerApp()

    @every.main()
    def main(grid: Grid, context: Context) -> None:
        app(grid, Context(1, 0, {}, RecordDict(), {**settings("numpy"), "num-server-rounds": 1}))

    run_simulation(every, AnyApp(), 10, backend_config=RESOURCES)
    assert [record.getMessage() for record in caplog.records if "ttl" in record.getMessage()] == []


def test_nodes_of_a_simulation_are_numbered_as_their_partitions(noted, monkeypatch, tmp_path):
    """So that a run with a seed is the same run whatever numbers Flower gives to nodes: here in one process."""
    monkeypatch.chdir(tmp_path)
    apps = servers(monkeypatch)
    grid = InProcessGrid(AnyApp(), 10)
    apps["numpy"](grid, Context(1, 0, {}, RecordDict(), settings("numpy")))
    strategy, _ = noted["numpy"]
    counts = strategy.method.state_dict()["guard"]["claims"]
    assert {int(client): count for client, count in counts.items()} == {client: 60 + 5 * client for client in range(10)}


def test_one_statement_of_a_quickstarts_server_changes():
    for framework in FRAMEWORKS:
        server = (APPS / framework / f"{framework}_app/server_app.py").read_text()
        before = re.search(r"# In Flower's quickstart: (.*)\n", server)
        assert before
        changed = re.sub(r" *# In Flower's quickstart: .*\n", "", server)
        quickstart = re.sub(r"strategy = covey\.flower\.Strategy\(.*\)", before[1], changed)
        quickstart = quickstart.replace("import covey.flower", "from flwr.serverapp.strategy import FedAvg")
        lines = [line for line in difflib.ndiff(quickstart.splitlines(), changed.splitlines()) if line[:2] == "+ "]
        assert [line.strip("+ ").split("(")[0] for line in lines] == [
            "import covey.flower",
            "strategy = covey.flower.Strategy",
        ]
        client = (APPS / framework / f"{framework}_app/client_app.py").read_text()
        assert "import covey" not in client


# A SuperLink, SuperNodes, and flwr run


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in opened:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in opened]


@pytest.fixture
def start(tmp_path):
    """Start one of Flower's programs with a home of its own; all are killed at the end, with what they started."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    started: list[subprocess.Popen[bytes]] = []

    def call(name: str, *command: object) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=environment,
                cwd=tmp_path,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield call
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> Callable[[], bool]:
    def connects() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    return connects


@pytest.mark.skipif(sys.platform != "linux", reason="process groups are ended as on Linux")
def test_an_unchanged_app_runs_on_a_superlink_with_two_supernodes(start, tmp_path):
    port, *node_ports = free_ports(3)
    superlink = ["flower-superlink", "--insecure", "--port", port, "--disable-runtime-dependency-installation"]
    start("superlink", *superlink)
    wait_until(answers(port), "the SuperLink")
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    for place, own in enumerate(node_ports):
        node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", own]
        start(f"node-{place}", *node, "--node-config", f"partition-id={place} num-partitions=2")
    config = "method='fedavgm' clients=2 num-server-rounds=2"
    run = start("run", "flwr", "run", APPS / "numpy", "--stream", "--run-config", config)
    wait_until(lambda: run.poll() is not None, "flwr run")
    said = re.sub(r"\x1b\[[0-9;]*m", "", (tmp_path / "run.log").read_text())
    assert "Apps without Covey: 0, 1." in said, said
    assert len(re.findall(r"Aggregated MetricRecord: .*'train_loss'", said)) == 2
    assert len(re.findall(r"Aggregated MetricRecord: .*'accuracy'", said)) == 2
    assert "Strategy execution finished" in said
