"""Who is refused: strangers, other sites, large bodies, and paths that lead out."""

import json
import os
import re
import shutil
import sys
import time

import pytest
from starlette.testclient import TestClient

from covey.serve.access import LARGEST
from covey.serve.job_request import run_request
from covey.serve.prometheus import exposition
from covey.serve.round_stream import Counters
from covey.serve.web_app import ServeOptions, create_service
from tests.serve.conftest import client_of

TOKEN = "a-token-that-nobody-guesses"


def detail(answer):
    return answer.json()["detail"]


def test_without_a_token_this_machine_alone_is_answered(served_runs):
    assert client_of(served_runs).get("/runs").status_code == 200
    answer = client_of(served_runs, address="192.0.2.7").get("/runs")
    assert (answer.status_code, "token" in detail(answer)) == (401, True)
    assert client_of(served_runs, address="192.0.2.7").get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize(
    "path", ["/", "/runs", "/metrics", "/openapi.json", "/live/first", "/runs/first/events", "/nowhere"]
)
def test_with_a_token_everything_needs_it_from_everywhere(served_runs, path):
    for address in ("127.0.0.1", "192.0.2.7"):
        client = client_of(served_runs, address=address, token=TOKEN)
        assert client.get(path).status_code == 401
        assert client.get(path, params={"token": TOKEN}).status_code == 401
        for wrong in ("", "x", TOKEN[:-1], TOKEN + "x"):
            assert client.get(path, headers={"Authorization": f"Bearer {wrong}"}).status_code == 401
        if "events" not in path:
            assert client.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code in (200, 404)


def test_the_login_page_is_whole_without_the_token(served_runs):
    client = client_of(served_runs, token=TOKEN)
    parts = re.findall(r'(?:href|src)="(/static/[^"]+)"', client.get("/login").text)
    assert len(parts) == 2 and all(client.get(part).status_code == 200 for part in parts)


def test_the_login_sets_a_cookie_that_no_script_reads_and_that_is_not_the_token(served_runs):
    client = client_of(served_runs, address="192.0.2.7", token=TOKEN)
    page = client.get("/", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (303, "/login")
    assert client.post("/login", data={"token": "wrong"}).status_code == 401
    answer = client.post("/login", data={"token": TOKEN})
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and TOKEN not in cookie
    assert client.get("/").status_code == 200
    forged = {"Cookie": f"covey_session={'0' * 64}"}
    assert client_of(served_runs, token=TOKEN).get("/", headers=forged).status_code == 401


def test_a_forged_host_is_refused(served_runs):
    client = client_of(served_runs)
    for host in ("evil.example", "evil.example:8484", "127.0.0.1.evil.example", "", "localhost@evil.example"):
        assert client.get("/runs", headers={"Host": host}).status_code == 421
    for host in ("localhost:8484", "127.0.0.1", "[::1]:8484"):
        assert client.get("/runs", headers={"Host": host}).status_code == 200
    allowed = client_of(served_runs, allowed=("runs.example",))
    assert allowed.get("/runs", headers={"Host": "runs.example"}).status_code == 200


def test_addresses_that_are_none_are_refused_with_a_sentence(asked):
    for host in ("[", "[::1", "]", "[not-an-address]"):
        assert asked.get("/runs", headers={"Host": host}).status_code == 421
    for origin in ("http://[", "null", "//127.0.0.1", "http://127.0.0.1@evil.example"):
        assert asked.post("/runs", json={}, headers={"Origin": origin}).status_code == 403
    assert asked.get("/jobs").json() == []


def test_the_address_that_a_request_arrived_at_is_a_name_of_the_server(served_runs):
    service = create_service(served_runs, ServeOptions(host="0.0.0.0", token=TOKEN))
    there = TestClient(service.app, base_url="http://192.0.2.9:8484", client=("192.0.2.7", 50_000))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert there.get("/runs", headers=headers).status_code == 200
    for host in ("192.0.2.10:8484", "evil.example", "192.0.2.9.evil.example"):
        assert there.get("/runs", headers={**headers, "Host": host}).status_code == 421


def test_a_login_form_that_cannot_be_read_has_no_token(served_runs):
    client = client_of(served_runs, token=TOKEN)
    form = {f"field-{number}": "x" for number in range(50)}
    assert client.post("/login", data={**form, "token": TOKEN}).status_code == 401


def test_requests_of_other_sites_change_nothing(asked):
    order = {"settings": {"rounds": 2}}
    assert asked.post("/runs", json=order, headers={"Origin": "http://evil.example"}).status_code == 403
    assert asked.post("/runs", json=order, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert asked.post("/runs", content=b'{"settings": {}}', headers={"Content-Type": "text/plain"}).status_code == 415
    assert asked.post("/runs/first/stop").status_code == 415
    form = {"method": "fedavg", "rounds": "2"}
    assert asked.post("/new/run", data=form).status_code == 403
    assert asked.post("/new/run", data={**form, "word": "0" * 64}).status_code == 403
    assert asked.post("/live/first/stop", data={"word": "guess"}).status_code == 403
    assert asked.put("/runs", json=order).status_code == 405
    foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert asked.get("/runs", headers=foreign).status_code == 403
    assert asked.get("/", headers={**foreign, "Sec-Fetch-Mode": "navigate"}).status_code == 200
    for path in ("/mix?base=first", "/report?run=first"):
        assert asked.get(path, headers={**foreign, "Sec-Fetch-Mode": "navigate"}).status_code == 403
    # Another port of this machine is the same site, and another server.
    neighbour = {**foreign, "Sec-Fetch-Site": "same-site"}
    for path in ("/runs", "/runs/first/federation", "/mix?base=first"):
        assert asked.get(path, headers=neighbour).status_code == 403
    assert asked.get("/jobs").json() == []


def test_a_form_of_this_server_is_taken_and_the_same_form_again_is_the_same_job(asked):
    (word,) = re.findall(r'name="word" value="([0-9a-f]{64})"', asked.get("/new/run").text)
    form = {"word": word, "method": "fedavg", "rounds": "2", "set_": "local.epochs=1\nenvironment.samples=20"}
    first = asked.post("/new/run", data=form, headers={"Origin": "http://127.0.0.1"})
    again = asked.post("/new/run", data=form)
    assert first.status_code == again.status_code == 303
    assert first.headers["location"] == again.headers["location"]
    (job,) = asked.get("/jobs").json()
    assert job["state"] == "waiting"
    assert job["command"].startswith("covey run --method fedavg --rounds 2 --set local.epochs=1")
    asked.post(f"/jobs/{job['id']}/cancel", json={})


def test_a_body_that_is_too_large_is_refused(asked):
    headers = {"Content-Type": "application/json"}
    answer = asked.post("/runs", content=b"{}", headers={**headers, "Content-Length": str(1 << 30)})
    assert (answer.status_code, str(f"{LARGEST:,}") in detail(answer)) == (413, True)
    assert asked.post("/runs", content=b" " * (LARGEST + 1), headers=headers).status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        *(
            "..",
            "../first",
            "first/../../etc",
            "deep/../../x",
            "%2e%2e/%2e%2e/etc",
            "/etc",
            "first//x",
            ".serve",
            "first/.lock",
        ),
        *("..%5c..", "first%00", "linked", "linked/first", "a" * 500, ".", "first/%0a"),
    ],
)
def test_no_path_leads_out_of_the_folder(served_runs, path):
    link = served_runs / "linked"
    if not link.is_symlink():
        link.symlink_to(served_runs.parent)
    client = client_of(served_runs)
    # Written out, dots would be taken out of the address by the client already.
    hidden = path.replace(".", "%2e")
    for address in (f"/runs/{hidden}", f"/runs/{hidden}/rounds", f"/live/{hidden}", f"/runs/{hidden}/federation"):
        assert client.get(address).status_code in (404, 422)
    assert client.post("/models", json={"base": path, "target": {"0": 1}}).status_code in (404, 422)
    assert client.post("/mixes", json={"base": path, "target": {"0": 1}}).status_code in (404, 422)
    assert client.post("/reports", json={"folders": [path]}).status_code in (404, 422)


def test_a_checkpoint_that_is_a_link_is_no_base(served_runs, tmp_path):
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_bytes((served_runs / "first" / name).read_bytes())
    (tmp_path / "run" / "checkpoint.safetensors").symlink_to(served_runs / "first" / "checkpoint.safetensors")
    answer = client_of(tmp_path).post("/models", json={"base": "run", "target": {"0": 1}})
    assert (answer.status_code, "link" in detail(answer)) == (422, True)


@pytest.mark.parametrize(
    ("address", "body"),
    [
        ("/runs", r'{"settings": {"method": "\ud800"}}'),
        ("/runs", r'{"name": "\ud800"}'),
        ("/models", r'{"base": "\ud800", "target": {"0": 1}}'),
        ("/models", r'{"base": "first", "target": {"\ud800": 1}}'),
        ("/models", r'{"base": "first", "target": {"0": 1}, "insight_dp": "\ud800"}'),
        ("/mixes", r'{"base": "first\ud800", "target": {"0": 1}}'),
        ("/analyses", r'{"insight": "\ud800"}'),
        ("/analyses", '{"level": NaN}'),
        ("/analyses", '{"level": 7}'),
        ("/comparisons", r'{"methods": ["\ud800"]}'),
        ("/comparisons", '{"methods": ["fedavg"], "seeds": 100000000000000000000}'),
        (
            "/comparisons",
            json.dumps({"methods": ["fedavg"], "vary": {"clients": [*range(2, 999)], "rounds": [*range(1, 999)]}}),
        ),
        ("/comparisons", json.dumps({"methods": ["fedavg"] * 101})),
        ("/reports", r'{"folders": ["\ud800"]}'),
        ("/runs", '{"settings": {"a": ' + "[" * 100_000),
        ("/runs", '{"settings": {"local": ' + '{"a":' * 500 + "1" + "}" * 502),
    ],
)
def test_bodies_that_try_to_break_the_server_are_refused(asked, address, body):
    begin = time.process_time()
    answer = asked.post(address, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 404, 422), answer.text
    assert detail(answer)
    assert time.process_time() - begin < 5
    assert asked.get("/jobs").json() == []


@pytest.mark.parametrize(
    "settings",
    [
        {"selector": "evil_module:Selector"},
        {"method": "evil_module:Selector+average"},
        {"dataset": {"name": "evil_module:load"}},
        {"aggregator": {"name": "norm-bound", "around": "evil_module:Thing"}},
        {"data_dir": "/etc"},
        {"dataset": {"name": "csv", "path": "/etc/passwd"}},
        {"dataset.path": "../secret", "dataset.name": "csv"},
        {"aggregator": {"agent": "~/agent.safetensors"}},
    ],
)
def test_settings_name_neither_code_nor_files(asked, settings):
    for address, content in (
        ("/runs", {"settings": settings}),
        ("/analyses", {"settings": settings}),
        ("/models", {"base": "first", "target": {"0": 1}, "settings": settings}),
    ):
        answer = asked.post(address, json=content)
        assert answer.status_code == 422, answer.text
        assert re.search("code|file|path|data_dir", detail(answer))


def test_refusals_are_sentences(asked):
    assert "no setting 'roundz'" in detail(asked.post("/runs", json={"settings": {"roundz": 3}}))
    assert "no run 'nothing'" in detail(asked.post("/models", json={"base": "nothing", "target": {"0": 1}}))
    assert asked.get("/runs/nothing").status_code == 404
    assert asked.get("/jobs/nothing").status_code == 404
    wrong = asked.post("/models", json={"base": "first", "target": {"0": -1}})
    assert wrong.status_code == 422 and "at least 0" in detail(wrong)
    assert asked.post("/models", json={"base": "first", "target": {"0": 0}}).status_code == 422
    assert asked.post("/models", json={"base": "first", "target": {"0": 1}, "extra": 1}).status_code == 422
    assert asked.post("/models", content=b"{", headers={"Content-Type": "application/json"}).status_code == 422


def test_people_are_told_on_a_page_and_programs_in_json(asked):
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/live/nothing", "/job/nothing", "/new/nothing", "/nowhere", "/live/..%2f"):
        page = asked.get(path, headers=browser)
        assert page.status_code in (404, 422)
        assert "<h1>Not" in page.text and 'class="notice"' in page.text and 'href="/"' in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert asked.get(path).json()["detail"]
    assert "<script>x" not in asked.get("/live/<script>x", headers=browser).text


def test_buttons_of_a_page_that_is_no_longer_true_lead_to_what_is(asked):
    (word,) = re.findall(r'name="word" value="([0-9a-f]{64})"', asked.get("/new/run").text)
    for act in ("stop", "resume"):
        answer = asked.post(f"/live/first/{act}", data={"word": word})
        assert (answer.status_code, answer.headers["location"]) == (303, "/live/first")
        assert asked.post(f"/live/nothing/{act}", data={"word": word}).status_code in (404, 422)
    job = asked.post("/runs", json={"settings": {"rounds": 2}}).json()["id"]
    answer = asked.post(f"/job/{job}/retry", data={"word": word})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/job/{job}")
    asked.post(f"/jobs/{job}/cancel", json={})


def test_an_empty_list_says_what_to_do(asked, tmp_path):
    assert "There is nothing here yet" in client_of(tmp_path).get("/").text
    page = asked.get("/?text=no+such+run").text
    assert "Nothing here is like that" in page and "nothing here yet" not in page


def test_a_job_that_has_no_folder_is_shown_as_it_ended(served_runs):
    service = create_service(served_runs, ServeOptions())
    client = TestClient(service.app, base_url="http://127.0.0.1", client=("127.0.0.1", 50_000))
    job = service.do.queue.submit(run_request({"rounds": 7}))
    for state, error in (("failed", "There is no data."), ("done", "Its folder is no longer there.")):
        job.state, job.error = state, error if state == "failed" else None
        page = client.get(f"/live/{job.meaning.place}").text
        assert f'data-state="{state}"' in page and error in page
        assert '<span id="stop" hidden>' in page and '<span id="resume">' in page


def test_every_page_keeps_to_its_own_script_and_says_so(asked):
    for path in ("/", "/new/run", "/new/ondemand", "/mix", "/queue", "/live/first", "/login"):
        answer = asked.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "<script>" not in answer.text and " onclick" not in answer.text and "style=" not in answer.text


def test_what_a_strangers_folder_says_is_shown_as_text(served_runs, tmp_path):
    strange = tmp_path / "<img src=x onerror=alert(1)>"
    strange.mkdir()
    config = (served_runs / "first" / "config.json").read_text()
    (strange / "config.json").write_text(config.replace('"fedavg"', '"<script>alert(2)</script>"'))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text('{"config": "<script>alert(3)</script>"}')
    client = client_of(tmp_path)
    for path in ("/", "/live/%3Cimg%20src=x%20onerror=alert(1)%3E", "/live/bad"):
        text = client.get(path).text
        assert "<script>alert" not in text and "<img" not in text
    assert "&lt;script&gt;alert(2)" in client.get("/").text


@pytest.mark.skipif(sys.platform != "linux", reason="names of folders are text there")
def test_names_that_are_no_text_break_no_page(served_runs, tmp_path):
    config = (served_runs / "first" / "config.json").read_text()
    strange = tmp_path / os.fsdecode(b"bad\xff\x1b[31m")
    strange.mkdir()
    (strange / "config.json").write_text(config)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(config.replace('"fedavg"', r'"\ud800"'))
    client = client_of(tmp_path)
    for path in ("/", "/mix", "/new/ondemand", "/live/odd", "/metrics"):
        assert client.get(path).status_code == 200
    assert {(line["path"], line["state"]) for line in client.get("/runs").json()} == {
        ("bad", "damaged"),
        ("odd", "stopped"),
    }


def test_records_that_are_none_are_left_out(served_runs, tmp_path):
    shutil.copytree(served_runs / "first", tmp_path / "odd")
    lines = (tmp_path / "odd" / "metrics.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    faults: list[tuple[str, object]] = [("accuracy", "<b>"), ("clients", 3), ("dropped", [1]), ("bytes_up", "x")]
    faults += [("seconds", {"clients": "1"}), ("round", True), ("round", "9"), ("round", None), ("class_accuracy", {})]
    odd = [json.dumps({**first, "round": 9, name: value}) for name, value in faults]
    (tmp_path / "odd" / "metrics.jsonl").write_text("\n".join([*lines[:2], *odd, "[]", "7", *lines[2:], ""]))
    client = client_of(tmp_path)
    assert client.get("/live/odd").status_code == 200
    assert [row["round"] for row in client.get("/runs/odd/rounds").json()[""]] == [1, 2, 3]


def test_a_full_disk_is_told_in_a_sentence(tmp_path, monkeypatch, capsys):
    service = create_service(tmp_path, ServeOptions())
    client = TestClient(service.app, base_url="http://127.0.0.1", client=("127.0.0.1", 50_000))

    def full(job):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(service.do.queue, "_write", full)
    answer = client.post("/runs", json={"settings": {"rounds": 11}})
    said = "The server cannot use its folder: No space left on device."
    assert (answer.status_code, detail(answer)) == (507, said)
    assert said in capsys.readouterr().err
    monkeypatch.undo()
    assert client.post("/runs", json={"settings": {"rounds": 11}}).json()["state"] == "waiting"


def test_what_is_not_running_cannot_be_stopped(asked):
    answer = asked.post("/runs/first/stop", json={})
    assert (answer.status_code, "not running" in detail(answer)) == (422, True)


def test_the_interface_is_described_with_examples(asked):
    paths = asked.get("/openapi.json").json()["paths"]
    order = paths["/models"]["post"]["requestBody"]["content"]["application/json"]
    assert order["examples"]["model"]["value"]["target"] == {"0": 0.5, "3": 0.5}
    bodies = [way["requestBody"] for ways in paths.values() for way in ways.values() if "requestBody" in way]
    assert len(bodies) == 6 and all(body["content"]["application/json"]["examples"] for body in bodies)
    assert {"/runs", "/jobs/{id_}", "/jobs/{id_}/events", "/models/{id_}.safetensors", "/metrics", "/healthz"} <= set(
        paths
    )


def test_figures_for_prometheus_are_well_formed(asked):
    text = asked.get("/metrics").text
    line = re.compile(r'([a-z_]+)(\{([a-z_]+="([^"\\\n]|\\.)*",?)+\})? -?[0-9.e+-]+')
    assert all(line.fullmatch(one) for one in text.splitlines() if not one.startswith("#"))
    assert 'covey_runs{state="finished"} 2' in text
    assert 'covey_run_accuracy{run="deep/second",kind="run",name="fedprox"}' in text
    assert "process_cpu_seconds_total" in text
    own = exposition([], [], Counters(), {"a-job": os.getpid()})
    used = {name: float(value) for name, value in re.findall(r'covey_job_(\w+)\{job="a-job"\} (\S+)', own)}
    assert used["cpu_seconds"] > 0.5 and used["resident_memory_bytes"] > 10 << 20


@pytest.fixture(autouse=True)
def quiet_jobs(served_runs):
    yield
    for path in served_runs.glob(".serve/jobs/*/*"):
        path.unlink()
    for path in served_runs.glob(".serve/jobs/*"):
        path.rmdir()
