import json
import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module

import pytest
import torch

import covey
from benchmarks import cpu, processes, server
from benchmarks.cpu import CONTENDERS, Outcome, rows, table_of, verdict
from benchmarks.laps import Laps
from benchmarks.workloads import WORKLOADS, load, network, prepare
from covey.model import build_model
from tests.programs import wait_until

gpu = import_module("benchmarks.gpu")  # imports peers that need not be installed
W1 = WORKLOADS["W1"]


def outcome(contender, passage, seconds, startup=1.0, peak=None, others=None):
    ends = [100.0]
    for second in seconds:
        ends.append(ends[-1] + second)
    middle = sorted(seconds)[len(seconds) // 2]
    return Outcome.of("W1", contender, passage, 100.0 - startup - middle, ends, peak, loss=1.0, others=others)


@pytest.mark.slow
def test_a_race_of_what_needs_only_covey(tmp_path, capsys):
    """Real processes on the toy workload, and a report that adds up."""
    out = tmp_path / "results" / "toy.json"
    arguments = ["--workloads", "W0", "--contenders", "plain,covey", "--passes", "1", "--seconds", "0.4"]
    assert cpu.main([*arguments, "--out", str(out)]) == 0
    said, text = json.loads(out.read_text()), capsys.readouterr().out
    assert [run["contender"] for run in said["runs"]] == ["plain", "covey"]
    for run, row in zip(said["runs"], said["rows"], strict=True):
        assert sum(run["seconds"]) >= 0.4
        assert 0 < run["startup"] < 60
        assert run["loss"] < math.log(10)
        assert row["rounds"] == len(run["seconds"])
        assert row["rate"] == pytest.approx(4 * 20 * 5 / statistics.median(run["seconds"]))
        assert CONTENDERS[row["contender"]].title in text
        assert f"{row['rate']:,.0f}" in text
        if sys.platform == "linux":
            assert row["peak_bytes"] > 50e6
    assert said["versions"]["torch"] == torch.__version__
    assert said["settings"] == {"seconds": 0.4, "passes": 1, "contenders": ["plain", "covey"]}
    assert said["workloads"]["W0"]["clients"] == 12
    assert {"commit", "uncommitted", "processor", "cores", "python", "peers"} <= set(said)


def test_contenders_run_there_and_back_on_shares_of_the_time(monkeypatch):
    asked = []
    monkeypatch.setattr(cpu, "prepare", lambda workload, folder: None)
    monkeypatch.setattr(
        cpu,
        "_run",
        lambda contender, workload, passage, seconds, folder: asked.append((contender.name, passage, seconds)),
    )
    cpu.race(W1, [CONTENDERS[name] for name in ("plain", "covey", "flower")], 30.0, 2, lambda text: None)
    assert asked == [
        ("plain", 0, 15.0),
        ("covey", 0, 15.0),
        ("flower", 0, 15.0),
        ("flower", 1, 15.0),
        ("covey", 1, 15.0),
        ("plain", 1, 15.0),
    ]


def test_ratios_compare_with_the_peers_that_ran():
    found = rows(
        W1,
        [
            outcome("covey", 0, [1.0, 1.0, 9.0], startup=2.0, peak=300),
            outcome("pfl-2", 0, [2.0, 2.0]),
            outcome("pfl-2", 1, [4.0, 4.0]),
            outcome("covey", 1, [1.25], startup=4.0, peak=500),
        ],
    )
    covey, peer = found
    assert covey.round_seconds == pytest.approx(1.125)
    assert covey.rate == pytest.approx(2500 / 1.125)
    assert covey.passages == pytest.approx((2500, 2000))
    assert (covey.rounds, covey.peak_bytes) == (4, 500)
    assert covey.startup == pytest.approx(3.0)
    assert peer.rate == pytest.approx(2500 / 3)
    assert covey.ratios == {"pfl-2": pytest.approx(3 / 1.125)}
    assert peer.ratios == {"pfl-2": pytest.approx(1.0)}


def test_one_failed_passage_fails_the_contender_and_spoils_no_other():
    failed = Outcome("W1", "flower", 1, failure="failed (exit code 1)\nTraceback")
    found = rows(W1, [outcome("flower", 0, [1.0]), outcome("covey", 0, [1.0]), failed])
    assert [row.failure for row in found] == ["failed (exit code 1)\nTraceback", None]
    assert found[1].ratios == {}
    assert table_of(found).row_count == 2


def test_a_model_that_learned_nothing_is_a_failure():
    assert "learned nothing" in str(Outcome.of("W1", "covey", 0, 0.0, [1.0, 2.0], None, loss=2.31).failure)
    assert "learned nothing" in str(Outcome.of("W1", "covey", 0, 0.0, [1.0, 2.0], None, loss=math.nan).failure)


@pytest.mark.parametrize(
    ("there", "back", "expected"),
    [
        (530, 530, "valid"),
        (900, 880, "valid"),
        (480, 485, "valid"),
        (470, 470, "VOID: the plain loop (first 470, last 470 samples/s) is 11% below the 530"),
        (540, 600, "VOID: the plain loop drifted by 11%"),
    ],
)
def test_figures_are_void_where_the_yardstick_is_slow_or_drifts(there, back, expected):
    found = rows(W1, [outcome("plain", 0, [2500 / there]), outcome("plain", 1, [2500 / back])])
    assert verdict(W1, found).startswith(expected)


def test_figures_are_void_where_something_else_ran_beside_a_contender():
    crowded = outcome("covey", 1, [1.0], others=0.4)
    found = rows(W1, [outcome("plain", 0, [2500 / 530]), outcome("covey", 0, [1.0], others=0.01), crowded])
    assert verdict(W1, found).startswith("VOID: something else used 0.40 cores beside 'Covey, 2 workers'")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what others use")
def test_neighbours_are_all_but_the_program_its_children_and_this_process(monkeypatch):
    def look(**seconds):
        parents = {"us": 1, "program": os.getpid(), "child": 70, "other": 1, "newcomer": 1}
        numbers = {"us": os.getpid(), "program": 70, "child": 71, "other": 80, "newcomer": 81}
        return {
            processes.Process(numbers[name], name): processes.Look(parents[name], used)
            for name, used in seconds.items()
        }

    monkeypatch.setattr(processes, "looks", lambda: look(us=50.0, other=7.0))
    monkeypatch.setattr(processes, "_stolen_seconds", lambda: 0.0)
    neighbours = processes.Neighbours()
    seen = look(us=51.0, program=2.0, child=3.0, other=7.5, newcomer=0.25)
    assert [process.number for process in processes.family(70, seen)] == [70, 71]
    neighbours.look(seen, processes.family(70, seen))
    # A child that outlives its parent still counts as ours; the time of a neighbour that ended still counts.
    neighbours.look(look(us=52.0, child=4.0, other=8.0), [])
    assert neighbours.seconds == pytest.approx(1.0 + 0.25)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what others use")
def test_somebody_who_computes_beside_a_program_is_noticed(tmp_path):
    spin = "import time\nwhile time.process_time() < 30: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as neighbour:
        command = [sys.executable, "-c", "import time; time.sleep(1.5)"]
        ended = processes.run(command, cpu._environment(), tmp_path, tmp_path / "log.txt", limit=30)
        neighbour.kill()
    assert ended.code == 0
    assert ended.others is not None and ended.others > 0.15


def test_laps_leave_out_the_warm_up_round():
    laps = Laps(seconds=3.0, rounds=2)
    for end in (50.0, 51.0):
        laps.ends.append(end)
        assert not laps.enough
    laps.ends.append(52.9)
    assert not laps.enough
    laps.ends.append(53.0)
    assert laps.enough


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8"])
def test_peers_train_the_model_that_covey_trains(name):
    workload = WORKLOADS[name]
    ours = build_model(workload.model, {}, workload.shape, workload.classes, seed=0).eval()
    theirs = network(workload).eval()
    assert sum(tensor.numel() for tensor in theirs.parameters()) == workload.parameters
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.copy_(mine)
        generator = torch.Generator().manual_seed(0)
        if workload.is_text:
            words = torch.randint(workload.classes, (3, *workload.shape), generator=generator)
            # torch's LSTM is one operation with rounding of its own.
            torch.testing.assert_close(ours(words), theirs(words))
        else:
            x = torch.randn(3, *workload.shape, generator=generator)
            assert torch.equal(ours(x), theirs(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W6", "W7", "W8"])
def test_a_small_piece_of_a_workload_trains_a_round_on_a_stack(name, tmp_path):
    """The rows of `benchmarks/gpu.py`, with three clients of two batches each."""
    whole = WORKLOADS[name]
    piece = replace(whole, clients=4, cohort=3, samples=2 * whole.batch, images=8 * whole.batch, epochs=1)
    made = covey.run(gpu.covey_settings(piece, "fp32", "cpu", test=whole.classes), rounds=1, out=tmp_path / "run")
    (row,) = made.metrics
    assert len(row["clients"]) == 3
    assert row["dropped"] == []
    assert 0 < row["train_loss"] < 3 * math.log(whole.classes)
    assert sum(one.numel() for one in made.model().parameters()) == whole.parameters


def test_every_workload_and_the_trainers_that_keep_something_have_rows_on_a_gpu():
    rows = {row.split("-")[1] for row in gpu.ROWS if row.startswith("covey-")}
    assert rows == {*WORKLOADS} - {"W0"}
    for peer in ("plain", "pfl"):
        assert {row.split("-")[1] for row in gpu.ROWS if row.startswith(f"{peer}-")} == rows
    assert {f"covey-W2-bf16-6-{trainer}" for trainer in ("scaffold", "feddyn", "adam")} <= {*gpu.ROWS}


def test_every_client_holds_its_number_of_different_images(tmp_path):
    workload = WORKLOADS["W0"]
    prepare(workload, tmp_path)
    data = load(tmp_path)
    assert data.parts.shape == (12, 20)
    assert sorted(data.parts.flatten().tolist()) == list(range(240))
    x, y = data.client(5)
    assert torch.equal(y, data.y[data.parts[5]])
    assert torch.equal(x, (data.x[data.parts[5]].float() - 128) / 48)


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_stopped_with_its_children(tmp_path):
    child = "import time; time.sleep(600)"
    code = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); print(p.pid, flush=True); "
    )
    command = [sys.executable, "-c", code + "p.wait()"]
    began = time.monotonic()
    ended = processes.run(command, cpu._environment(), tmp_path, tmp_path / "log.txt", limit=8)
    assert ended.code is None
    assert time.monotonic() - began < 50
    if sys.platform == "linux":
        child_number = int(ended.log)
        wait_until(lambda: child_number not in {one.number for one in processes.looks()}, "the child to end")


def test_a_contender_that_breaks_is_reported_with_its_last_words(tmp_path):
    broken = cpu.Contender("covey", "broken", "no_such_module")
    (found,) = [cpu._run(broken, WORKLOADS["W0"], 0, 0.1, tmp_path)]
    assert found.failure is not None
    assert found.failure.startswith("failed (exit code 1)\n")
    assert "no_such_module" in found.failure


def test_unknown_names_are_refused_and_missing_packages_named(capsys):
    with pytest.raises(SystemExit):
        cpu.main(["--workloads", "W9"])
    assert "there is no workload 'W9'; known: W0, W1, W2, W3, W4, W5, W6, W7, W8" in capsys.readouterr().err
    absent = cpu.Contender("flower", "absent", "flower_simulation", needs=("a-package-that-is-not-there",))
    assert absent.missing() == ["a-package-that-is-not-there"]
    assert CONTENDERS["plain"].missing() == []


def test_fedacs_selects_ten_of_a_million_clients_in_a_quarter_of_a_second():
    row = server.measured(server.CASES["fedacs-1m"][1], repeats=3)
    assert row["best_cpu_seconds"] < 0.35, "a quarter of a second where the machine is free"
    assert row["extra_bytes"] < 200e6
