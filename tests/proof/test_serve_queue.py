"""Two hundred jobs of twenty clients, and a server that is killed five times."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

from safetensors.torch import load_file

import covey
from tests.integration.served import SMALL_RUN, Server
from tests.integration.test_serve import direct, done_once, same, targets

JOBS, CLIENTS, KILLS = 200, 20, 5


def test_every_job_is_done_once_and_answers_as_a_direct_call(tmp_path):
    server = Server(tmp_path / "runs", "--workers", 2)
    address = server.address
    first = covey.Client(address)
    first.wait(first.run(name="base", **SMALL_RUN, rounds=4)["id"])
    wanted = targets(JOBS)

    def order(target):
        client = covey.Client(address)
        while True:
            try:
                return client.order("base", target, rounds=2)["id"]
            except ConnectionError:
                time.sleep(0.1)

    def counted():
        folder = server.folder / ".serve" / "jobs"
        return sum(json.loads(one.read_text())["state"] == "done" for one in folder.glob("*/job.json"))

    draw = random.Random(5)
    with ThreadPoolExecutor(CLIENTS) as clients:
        # Everything is posted twice, at once, while the server comes and goes.
        orders = [clients.submit(order, target) for target in wanted * 2]
        for kill in range(KILLS):
            while counted() < draw.randrange(15, 35) * (kill + 1):
                time.sleep(0.1)
            server.kill()
            time.sleep(draw.random() * 2)
            server.start()
        ids = [one.result() for one in orders]
    assert ids[:JOBS] == ids[JOBS:] and len(set(ids)) == JOBS
    starts = 0
    for number, id_ in enumerate(ids[:JOBS]):
        job = first.wait(id_)
        starts += job["starts"]
        done_once(server, job)
        found, model = direct(tmp_path / "direct" / str(number), server.folder / "base", wanted[number])
        about = first.download(id_, tmp_path / "model.safetensors")
        assert (about["clients"], about["mix"], about["accuracy"]) == found
        assert same(load_file(tmp_path / "model.safetensors"), model)
    print(f"{JOBS} jobs, {KILLS} kills, {starts} processes begun")
    assert len(list(server.folder.glob("ondemand-*"))) == JOBS
    server.close()
