"""The server as a program: jobs, kills, events, and folders of strangers."""

import http.client
import json
import os
import shutil
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file

import covey
from covey.serve.job_record import Job
from covey.serve.job_request import JobRequest
from covey.storage import lock_holder
from tests.conftest import without_timings
from tests.integration.served import SMALL_RUN, Server, at_rest
from tests.programs import PATIENCE, start_covey, wait_for_rounds, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    one = Server(tmp_path_factory.mktemp("served") / "runs", "--workers", 2)
    yield one
    assert "Traceback" not in one.close()


@pytest.fixture(scope="module")
def client(server):
    return covey.Client(server.address)


@pytest.fixture(scope="module")
def base(server, client):
    """The path of a base run that the server has made."""
    client.wait(client.run(name="base", **SMALL_RUN, rounds=4)["id"])
    return "base"


def targets(count):
    """Return so many different class mixes."""
    return [{str(n % 10): 0.5 + n / 1000, str((n + 3) % 10): 0.5 - n / 1000} for n in range(count)]


def direct(folder, base, target, rounds=2):
    """Return what a direct call answers: clients, accuracy, and the model."""
    text = ",".join(f"{label}={share!r}" for label, share in sorted(target.items()))
    job = covey.ondemand(base, text, estimator="analytic", rounds=rounds, out=folder)
    one = job.as_mapping()["targets"][0]
    return (one["clients"], one["composed_mix"], one["accuracy"]), load_file(folder / "target-1" / "model.safetensors")


def same(one, other):
    """True if two models have the same tensors to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def done_once(server, job):
    """Assert that a job was done, and once."""
    place = server.folder / ".serve" / "jobs" / job["id"]
    events = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
    assert [one["state"] for one in events if one["event"] == "state"].count("done") == 1
    rounds = [(one["run"], one["round"]) for one in events if one["event"] == "round"]
    assert len(rounds) == len(set(rounds))
    assert json.loads((place / "job.json").read_text())["state"] == "done"


def test_a_run_through_the_server_equals_a_direct_one(server, client, base, tmp_path):
    whole = covey.run(SMALL_RUN, rounds=4, out=tmp_path / "direct")
    made = covey.Run.open(server.folder / base)
    assert without_timings(made.metrics) == without_timings(whole.metrics)
    assert client.run_of(base)["state"] == "finished"


def test_a_model_is_ordered_once_downloaded_and_loaded(server, client, base, tmp_path):
    target = {"0": 0.5, "3": 0.5}
    job = client.order(base, target, rounds=2)
    assert client.order(base, {"3": 0.5, "0": 0.5}, rounds=2)["id"] == job["id"]
    assert client.wait(job["id"])["state"] == "done"
    about = client.download(job["id"], tmp_path / "model.safetensors")
    found, model = direct(tmp_path / "direct", server.folder / base, target)
    assert (about["clients"], about["mix"], about["accuracy"]) == found
    assert same(load_file(tmp_path / "model.safetensors"), model)
    assert about["epsilon"] is about["base_epsilon"] is None and about["base_round"] == 4
    assert about["privacy"].startswith("No differential privacy")
    # The sliders' answer is the composition that the job then uses.
    assert client.nearest(base, target)["clients"] == about["clients"]
    noisy = client.wait(client.order(base, target, rounds=1, insight_dp="2,1e-5")["id"])
    assert noisy["model"]["epsilon"] == 2
    assert noisy["model"]["privacy"].startswith(
        "The base model: no differential privacy, the clients' answers: ε = 2 at"
    )
    # Programs and forms that mean the same get the same model; one that was removed is made again, to the same bits.
    assert client.order(base, "3=1,0=1", rounds=2, settings={"seed": "0"})["id"] != job["id"]
    assert client.order(base, "3=1,0=1", rounds=2)["id"] == job["id"]
    shutil.rmtree(server.folder / job["path"])
    again = client.order(base, target, rounds=2)
    assert again["id"] == job["id"] and again["state"] in ("waiting", "running")
    client.wait(job["id"])
    client.download(job["id"], tmp_path / "again.safetensors")
    assert same(load_file(tmp_path / "again.safetensors"), model)
    # Another run in the base's place is another base, for orders and for sliders.
    replaced = shutil.copytree(server.folder / base, server.folder / "replaced")
    old, seen = client.order("replaced", target, rounds=1), client.nearest("replaced", target)
    client.wait(old["id"])
    shutil.rmtree(replaced)
    covey.run(SMALL_RUN, rounds=4, seed=5, out=replaced)
    new = client.wait(client.order("replaced", target, rounds=1)["id"])
    assert new["id"] != old["id"] and client.nearest("replaced", target)["clients"] == new["model"]["clients"]
    assert new["model"]["clients"] == direct(tmp_path / "new", replaced, target, rounds=1)[0][0]
    assert seen["mix"] != client.nearest("replaced", target)["mix"]


def test_jobs_survive_kills_and_ends_of_the_server_and_are_done_once(tmp_path):
    server = Server(tmp_path / "runs", "--workers", 2)
    client = covey.Client(server.address)
    client.wait(client.run(name="base", **SMALL_RUN, rounds=4)["id"])
    wanted = targets(8)
    with ThreadPoolExecutor(4) as clients:
        jobs = list(clients.map(lambda target: client.order("base", target, rounds=2), [*wanted, *wanted[:3]]))
    ids = [job["id"] for job in jobs]
    assert ids[:3] == ids[8:] and len(set(ids)) == 8
    wait_until(lambda: any(job["state"] == "done" for job in client.jobs()[:-1]), "the first job")
    server.kill()
    server.start()
    for job in jobs[:8]:
        assert client.wait(job["id"])["state"] == "done"
        done_once(server, job)
    for number in range(8):
        found, model = direct(tmp_path / f"direct-{number}", server.folder / "base", wanted[number])
        about = client.download(ids[number], tmp_path / "model.safetensors")
        assert (about["clients"], about["mix"], about["accuracy"]) == found
        assert same(load_file(tmp_path / "model.safetensors"), model)

    # A server that is interrupted lets its jobs end their round; the next one goes on, here for those with its token.
    long = client.run(name="long", **SMALL_RUN, rounds=300)
    wait_for_rounds(server.folder / "long", 2)
    assert "Traceback" not in server.close()
    assert lock_holder(server.folder / "long") is None
    assert len(covey.Run.open(server.folder / "long").metrics) < 300
    server.arguments = ("--host", "0.0.0.0")
    server.start()
    with pytest.raises(covey.Refusal, match="token"):
        client.runs()
    path = server.folder / ".serve" / "token"
    assert path.stat().st_mode & 0o77 == 0
    token = path.read_text().strip()
    admitted = covey.Client(f"http://127.0.0.1:{server.port}", token=token)
    assert admitted.wait(long["id"])["state"] == "done"
    second = start_covey("serve", server.folder, "--port", 0)
    assert "is being written by" in second.communicate()[1]
    assert second.returncode == 2
    assert token not in server.close()


def test_a_job_whose_process_is_killed_goes_on_to_the_same_records(server, client, tmp_path):
    settings = {**SMALL_RUN, "local": {"epochs": 5, "batch": 8, "rate": 0.1}, "rounds": 60}
    job = client.run(name="crashing", **settings)
    wait_for_rounds(server.folder / "crashing", 3)
    holder = lock_holder(server.folder / ".serve" / "jobs" / job["id"])
    assert holder
    os.kill(holder, signal.SIGKILL)
    job = client.wait(job["id"])
    assert (job["starts"], job["crashes"]) == (2, 1)
    whole = covey.run(settings, out=tmp_path / "whole")
    assert without_timings(covey.Run.open(server.folder / "crashing").metrics) == without_timings(whole.metrics)
    done_once(server, job)


def test_a_run_is_stopped_after_its_round_and_resumed(server, client):
    job = client.run(name="halted", **SMALL_RUN, rounds=100_000)
    wait_for_rounds(server.folder / "halted", 2)
    client.stop("halted")
    wait_until(lambda: client.job(job["id"])["state"] == "stopped", "the stop")
    done = client.run_of("halted")["done"]
    assert 2 <= done < 100_000
    again = client.resume("halted")
    assert again["id"] == job["id"]
    wait_for_rounds(server.folder / "halted", done + 2)
    client.cancel(job["id"])
    wait_until(lambda: client.job(job["id"])["state"] == "cancelled", "the cancel")
    assert client.run_of("halted")["state"] == "stopped"


def test_a_run_in_another_process_is_followed_and_stopped(server, client):
    flags = ["--clients", 8, "--cohort", 4, "--workers", 1, "--rounds", 100_000, "--set", "environment.samples=20"]
    program = start_covey("run", *flags, "--out", server.folder / "elsewhere")
    wait_for_rounds(server.folder / "elsewhere", 1)
    seen, ids = [], []
    for id_, kind, data in client.events("/runs/elsewhere/events"):
        if kind == "round":
            seen.append(data["round"])
            ids.append(id_)
        if len(seen) == 4:
            break
    assert seen == [1, 2, 3, 4] and ids == ["1", "2", "3", "4"]
    resumed = client.events("/runs/elsewhere/events", after="2")
    assert next(data["round"] for _, kind, data in resumed if kind == "round") == 3
    assert client.run_of("elsewhere")["state"] == "running"
    client.stop("elsewhere")
    assert program.wait(timeout=PATIENCE) == 130
    program.communicate()
    assert client.run_of("elsewhere")["state"] == "stopped"


def test_the_events_of_a_job_are_resumed_by_their_numbers(client, base):
    job = client.wait(client.order(base, {"1": 1.0}, rounds=3)["id"])
    whole = list(client.events(f"/jobs/{job['id']}/events"))
    assert [kind for _, kind, _ in whole] == ["state", "state", "round", "round", "round", "state", "end"]
    rest = list(client.events(f"/jobs/{job['id']}/events", after="3"))
    assert rest[:-1] == whole[3:-1]


def test_an_event_arrives_soon_after_its_round(server, client, base):
    """Lines are written here, so that the time of writing is known."""
    place = server.folder / "written"
    place.mkdir()
    (place / "config.json").write_bytes((server.folder / base / "config.json").read_bytes())
    line = json.loads((server.folder / base / "metrics.jsonl").read_text().splitlines()[0])
    waits, stream = [], client.events("/runs/written/events")
    assert next(stream)[1] in ("member", "state")
    with (place / "metrics.jsonl").open("a") as file:
        for number in range(1, 21):
            begin = time.monotonic()
            file.write(json.dumps({**line, "round": number}) + "\n")
            file.flush()
            while next(stream)[2].get("round") != number:
                pass
            waits.append(time.monotonic() - begin)
    print(f"an event arrives after {sorted(waits)[len(waits) // 2]:.3f} s (median), {max(waits):.3f} s (latest)")
    # On a busy machine most wait for a processor; each line is a whole pause of the server's away from the one before.
    assert min(waits) < 0.2
    assert sorted(waits)[len(waits) // 2] < 0.2 or not at_rest()


def test_code_that_a_folder_names_is_not_run(server, client, base, tmp_path):
    evil = server.folder / "evil"
    evil.mkdir()
    config = json.loads((server.folder / base / "config.json").read_text())
    config["config"] |= {"method": "evil_part:Evil+average", "selector": {"name": "evil_part:Evil"}, "rounds": 9}
    (evil / "config.json").write_text(json.dumps(config))
    for name in ("metrics.jsonl", "checkpoint.safetensors"):
        (evil / name).write_bytes((server.folder / base / name).read_bytes())
    mark = tmp_path / "ran"
    for place in (evil, server.folder):
        (place / "evil_part.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    (evil / "report.html").write_text("<script>alert(1)</script>")
    job = client.resume("evil")
    wait_until(lambda: client.job(job["id"])["state"] == "failed", "the refusal")
    assert "evil_part:Evil" in client.job(job["id"])["error"]
    order = client.order("evil", {"0": 1.0}, rounds=1)
    wait_until(lambda: client.job(order["id"])["state"] in ("failed", "done"), "the refusal")
    with pytest.raises(covey.Refusal):
        client.nearest("evil", {"0": 1.0})
    page = client._open("/report?run=evil").read().decode()
    assert "<script>alert(1)" not in page
    assert not mark.exists()


def test_jobs_and_tokens_that_came_with_a_folder_count_for_nothing(server, base, tmp_path):
    """Whoever prepares a folder could put jobs in it that name code, and a token that they know."""
    folder, mark = tmp_path / "strange", tmp_path / "ran"
    content = {"settings": {"method": "evil_part:Evil+average", **SMALL_RUN}}
    request = JobRequest("run", content)
    place = folder / ".serve" / "jobs" / request.identity
    place.mkdir(parents=True)
    (place / "job.json").write_text(
        json.dumps({"format": 1, **Job(request.identity, 1, request.as_mapping()).as_mapping()})
    )
    (folder / ".serve" / "token").write_text("known-to-the-stranger")
    (tmp_path / "evil_part.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, sys.path)])):
        strange = Server(folder, "--host", "0.0.0.0")
    address = f"http://127.0.0.1:{strange.port}"
    with pytest.raises(covey.Refusal, match="token"):
        covey.Client(address, token="known-to-the-stranger").jobs()
    mine = covey.Client(address, token=(folder / ".serve" / "token").read_text().strip())
    assert mine.jobs() == []
    assert "Traceback" not in strange.close()
    assert not mark.exists()
    assert (folder / ".serve-1" / "jobs" / request.identity / "job.json").exists()


def test_headers_without_end_are_refused(server):
    """A header of many megabytes would be held in memory, whoever sends it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        sent = 0
        with suppress(OSError):
            connection.sendall(b"GET /runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ")
            for _ in range(64):
                connection.sendall(b"a" * (1 << 20))
                sent += 1
        assert sent < 64


def test_a_gigabyte_is_refused_while_it_is_sent(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.putrequest("POST", "/runs")
    for name, value in (("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")):
        connection.putheader(name, value)
    connection.endheaders()
    sent = 0
    with suppress(OSError):
        for _ in range(1024):
            connection.send(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
            sent += 1
    assert sent < 100
    # The answer may be lost with the connection that was closed.
    with suppress(OSError):
        assert connection.getresponse().status == 413


def test_who_sends_too_much_is_told_so(client):
    """They send all of it before they listen."""
    for size in (2 << 20, 8 << 20):
        with pytest.raises(covey.Refusal, match="at most 1,048,576 bytes"):
            client.run(name="x" * size)


def test_watching_costs_next_to_nothing(server, client):
    """Processor time of the server while a run is watched, by that of the run where it has a processor to itself."""
    ticks = os.sysconf("SC_CLK_TCK")

    def used(process):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    client.run(name="watched", **{**SMALL_RUN, "local": {"epochs": 50, "batch": 4}}, rounds=900)
    wait_for_rounds(server.folder / "watched", 1)
    runner, own, begin = lock_holder(server.folder / "watched"), used(server.process.pid), time.monotonic()
    theirs = used(runner)
    for _, kind, _data in client.events("/runs/watched/events"):
        if kind == "round" and used(runner) - theirs > 4:
            break
    spent, passed, computed = used(server.process.pid) - own, time.monotonic() - begin, used(runner) - theirs
    client.stop("watched")
    print(f"watching took {spent:.2f} s beside {computed:.2f} s of the run, in {passed:.1f} s")
    # Where others compute as well, the run waits for a processor, and looks for its rounds still go by the clock.
    assert spent < 0.02 * max(computed, 0.9 * passed)


def test_pipes_in_the_place_of_files_block_nobody(server, client, base):
    """Whoever opens a pipe to read waits until somebody writes to it, which may be never."""
    config = (server.folder / base / "config.json").read_bytes()
    for name in ("metrics.jsonl", "environment.json", ".lock"):
        place = server.folder / "pipes" / name.strip(".")
        place.mkdir(parents=True)
        (place / "config.json").write_bytes(config)
        os.mkfifo(place / name)
    listed = {line["path"]: line for line in client.runs()}
    assert listed["pipes/metrics.jsonl"]["fault"] == "metrics.jsonl is no regular file"
    assert {listed[f"pipes/{name}"]["state"] for name in ("environment.json", "lock")} == {"stopped"}
    page = client._open("/live/pipes/metrics.jsonl").read().decode()
    assert "is no regular file" in page
    assert next(client.events("/runs/pipes/metrics.jsonl/events"))[1] == "member"
    for command, code in (("runs", 0), ("show", 2), ("report", 2)):
        place = server.folder / "pipes" / ("" if command == "runs" else "metrics.jsonl")
        program = start_covey(command, place)
        _, said = program.communicate(timeout=PATIENCE)
        assert program.returncode == code, said
    shutil.rmtree(server.folder / "pipes")
