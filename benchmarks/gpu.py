"""Benchmark Covey's stacked runtime, a plain PyTorch loop and pfl-research on one GPU.

    python benchmarks/gpu.py --out results/gpu.jsonl            # every row that the file does not hold yet
    python benchmarks/gpu.py --rows plain-W1,pfl-W1,covey-W1-bf16-1 --out results/gpu.jsonl
    python benchmarks/gpu.py --table results/gpu.jsonl
    python benchmarks/gpu.py --rows covey-W2-bf16-6,before-W2-bf16-6 --before EARLIER/src --out results/gpu.jsonl

A row is written as soon as it is measured, so an interrupted benchmark resumes where it stopped. Covey's rows are
`covey compare` as users run it: selection, training, aggregation, evaluation every five rounds, records. Rows named
`before` are measured with the code of an earlier version, which lies in the folder `--before`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.ceiling import bound, has_momentum, measured_ceiling
from benchmarks.gpu_settings import covey_settings
from benchmarks.name_list import names_of
from benchmarks.workloads import WORKLOADS, Workload, network, normalised

TRAINERS = ("scaffold", "feddyn", "fedcm", "fedlc", "adam", "moon", "fedsam", "dp-sgd")
"""Trainers with rows on W2. `adam` is `local.optimizer`, and `sgd` the row without a name, measured once more."""

W2_ROWS = [
    "covey-W2-bf16-6", "before-W2-bf16-6", "covey-W2-bf16-6-sgd", "before-W2-bf16-6-sgd",
    *(f"covey-W2-bf16-6-{trainer}" for trainer in TRAINERS),
    "loop-W2-dp-sgd",
]  # fmt: skip
"""What trainers cost: before, without, and with each."""

TOY_ROWS = [row.replace("W2-bf16-6", "W0-fp32-2").replace("W2", "W0") for row in W2_ROWS]
"""The same in miniature, to test this file on a CPU."""

ROWS = [
    "ceiling",
    "plain-W1", "pfl-W1", "covey-W1-bf16-1", "covey-W1-bf16-10",
    "plain-W2", "pfl-W2", "covey-W2-bf16-6", "covey-W2-bf16-1",
    "plain-W3", "pfl-W3", "covey-W3-bf16-1", "covey-W3-bf16-10",
    "covey-W1-tf32-1", "covey-W2-tf32-1", "covey-W3-tf32-1",
    "plain-W4", "pfl-W4", "covey-W4-bf16-1", "covey-W4-bf16-10",
    "covey-W2-bf16-10", "covey-W4-tf32-1", "covey-W1-tf32-10", "covey-W3-tf32-10", "covey-W2-tf32-10",
    "covey-W4-tf32-10",
    "plain-W5", "pfl-W5", "covey-W5-bf16-1", "covey-W5-bf16-10", "covey-W5-tf32-1", "covey-W5-tf32-10",
    "plain-W6", "pfl-W6", "covey-W6-bf16-1", "covey-W6-bf16-10",
    "plain-W7", "pfl-W7", "covey-W7-bf16-1", "covey-W7-bf16-10",
    "plain-W8", "pfl-W8", "covey-W8-bf16-1",
    *(row for row in W2_ROWS if row.startswith("covey-W2-bf16-6-")), "loop-W2-dp-sgd",
]  # fmt: skip


def federated_data(workload: Workload, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return normalised images (or words) and labels on the GPU, and the clients' samples `[clients, samples]`."""
    generator = torch.Generator(device=device).manual_seed(0)
    values, dtype = (workload.classes, torch.int64) if workload.is_text else (256, torch.uint8)
    whole = (workload.images, *workload.shape)
    x = torch.randint(0, values, whole, dtype=dtype, device=device, generator=generator)
    y = torch.randint(0, workload.classes, (workload.images,), device=device, generator=generator)
    parts = np.random.default_rng(0).integers(workload.images, size=(workload.clients, workload.samples))
    return normalised(x), y, torch.from_numpy(parts).to(device)


def settle() -> None:
    """Wait until the GPU, if there is one, has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(run_round: Any, seconds: float) -> list[float]:
    """Run rounds for about `seconds`; return the seconds of each but the first, which is warm-up."""
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - begin < seconds:
        settle()
        at = time.perf_counter()
        run_round()
        settle()
        taken.append(time.perf_counter() - at)
    return taken[1:]


def plain(workload: Workload, seconds: float) -> dict[str, Any]:
    """Measure a plain FedAvg loop: one client after another, tf32, data on the GPU."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    x, y, parts = federated_data(workload)
    module, server = network(workload).cuda(), network(workload).cuda()

    def run_round() -> None:
        total = {name: torch.zeros_like(value) for name, value in server.state_dict().items()}
        for client in torch.randperm(workload.clients)[: workload.cohort].tolist():
            module.load_state_dict(server.state_dict())
            optimiser = torch.optim.SGD(module.parameters(), lr=workload.rate)
            mine_x, mine_y = x[parts[client]], y[parts[client]]
            for _ in range(workload.epochs):
                order = torch.randperm(workload.samples, device="cuda")
                for at in range(0, workload.samples, workload.batch):
                    batch = order[at : at + workload.batch]
                    optimiser.zero_grad()
                    torch.nn.functional.cross_entropy(module(mine_x[batch]), mine_y[batch]).backward()
                    optimiser.step()
            for name, value in module.state_dict().items():
                total[name] += value / workload.cohort
        server.load_state_dict(total)

    return summary(workload, measure(run_round, seconds))


def pfl(workload: Workload, seconds: float) -> dict[str, Any]:
    """Measure pfl-research in one process, data on the GPU."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    from benchmarks.contenders.pfl_simulation import Task

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    x, y, parts = federated_data(workload)
    task = Task(network(workload).cuda())
    ends: list[float] = []

    class Laps(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            torch.cuda.synchronize()
            ends.append(time.perf_counter())
            return len(ends) > 3 and ends[-1] - ends[0] > seconds, Metrics()

    users = FederatedDataset(
        lambda user: PyTorchTensorDataset((x[parts[user]], y[parts[user]])),
        get_user_sampler("minimize_reuse", list(range(workload.clients))),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1_000_000,
            evaluation_frequency=1_000_000,
            train_cohort_size=workload.cohort,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=PyTorchModel(
            model=task,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(task.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.rate,
            local_batch_size=workload.batch,
        ),
        callbacks=[Laps()],
    )
    return summary(workload, [later - earlier for earlier, later in pairwise(ends[1:])])


def private_loop(workload: Workload, seconds: float, device: str) -> dict[str, Any]:
    """Measure a plain loop over clients that train by DP-SGD: gradients of single samples by `vmap(grad)`, tf32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    x, y, parts = federated_data(workload, device)
    module = network(workload).to(device)
    server = {name: value.detach().clone() for name, value in module.named_parameters()}

    def loss(w: dict[str, torch.Tensor], one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(module, w, (one[None],))
        return torch.nn.functional.cross_entropy(logits, label[None])

    each_gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def trained(client: int) -> dict[str, torch.Tensor]:
        w, mine = dict(server), parts[client]
        for _ in range(workload.epochs):
            order = mine[torch.randperm(workload.samples, device=device)]
            for at in range(0, workload.samples, workload.batch):
                batch = order[at : at + workload.batch]
                each = each_gradient(w, x[batch], y[batch])
                squares = torch.stack([one.flatten(1).square().sum(dim=1) for one in each.values()])
                factors = (1 / squares.sum(dim=0).sqrt().clamp_min(1e-12)).clamp(max=1.0)
                for name, one in each.items():
                    summed = torch.einsum("b,b...->...", factors, one)
                    w[name] = w[name] - workload.rate / len(batch) * (summed + torch.randn_like(summed))
        return w

    def run_round() -> None:
        ends = [trained(client) for client in torch.randperm(workload.clients)[: workload.cohort].tolist()]
        for name in server:
            server[name] = torch.stack([end[name] for end in ends]).mean(dim=0)

    return summary(workload, measure(run_round, seconds))


def covey_compare(
    workload: Workload, precision: str, runs: int, seconds: float, device: str, trainer: str = "sgd"
) -> dict[str, Any]:
    """Measure `covey compare` end to end, over `runs` seeds in lockstep."""
    import covey

    folder = Path(tempfile.mkdtemp())
    ends: list[float] = []
    begin = time.perf_counter()
    toy = workload.name == "W0"
    rounds = 8 if toy else 12
    given = covey_settings(workload, precision, device, trainer)
    method = "fedavg" if "trainer" not in given else f"uniform+average+{trainer}"
    # Two passes: the first compiles and shows how long a round takes.
    for number, wanted in enumerate((rounds, None)):
        if wanted is None:
            each = (ends[-1] - ends[runs * 6 - 1]) / (rounds - 6)
            rounds = 10 if toy else int(min(400, max(20, seconds / each))) // 5 * 5
            ends.clear()
        comparison = covey.compare(
            [method],
            seeds=runs,
            given=given,
            rounds=rounds,
            out=folder / str(number),
            on_round=lambda record: ends.append(time.perf_counter()),
        )
        if number == 0:
            startup = time.perf_counter() - begin
    settled = 5
    wall = ends[-1] - ends[runs * settled - 1]
    phases: dict[str, float] = {}
    for one in comparison.runs[method]:
        for row in one.metrics[settled:]:
            for phase, value in row["seconds"].items():
                phases[phase] = phases.get(phase, 0.0) + value
    shutil.rmtree(folder)
    trained = workload.samples_per_round * runs * (rounds - settled)
    return {
        "samples_per_second": trained / wall,
        "seconds_per_round": wall / (rounds - settled),
        "rounds": rounds,
        "startup_seconds": startup,
        "outside_clients": 1 - phases["clients"] / wall,
        "phases": {phase: value / wall for phase, value in phases.items()},
        "accuracy": comparison.rows[0]["terminal_accuracy"],
        "peak_memory": torch.cuda.max_memory_allocated(),
    }


def summary(workload: Workload, taken: list[float]) -> dict[str, Any]:
    median = float(np.median(taken))
    return {
        "samples_per_second": workload.samples_per_round / median,
        "seconds_per_round": median,
        "rounds": len(taken),
        "peak_memory": torch.cuda.max_memory_allocated(),
    }


def one_row(name: str, seconds: float, device: str) -> dict[str, Any]:
    if name == "ceiling":
        return measured_ceiling()
    contender, workload, *rest = name.split("-")
    if contender == "loop":
        return private_loop(WORKLOADS[workload], seconds, device)
    if contender in ("covey", "before"):
        trainer = "-".join(rest[2:]) or "sgd"
        return covey_compare(WORKLOADS[workload], rest[0], int(rest[1]), seconds, device, trainer)
    return {"plain": plain, "pfl": pfl}[contender](WORKLOADS[workload], seconds)


def settings() -> dict[str, Any]:
    """Return device, PyTorch version and commit."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": device, "torch": torch.__version__, "commit": commit or None}


def read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {row["row"]: row for row in rows}


def surroundings(row: str, before: Path | None) -> dict[str, str]:
    """Return the environment variables of a row's process: `before` rows import an earlier version."""
    if before is None or not row.startswith("before-"):
        return dict(os.environ)
    paths = [str(before.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def table(path: Path) -> None:
    """Print all measured rows, with their ratio to the peers on the same workload."""
    rows = read(path)
    ceiling = rows.pop("ceiling", None)
    heads = f"{'x pfl':>7} {'x plain':>8} {'outside':>8} {'GB':>6} {'of the ceiling':>18}"
    print(f"{'row':27} {'samples/s':>12} {'s/round':>9} {heads}")
    for name in sorted(rows, key=lambda name: (name.split("-")[1], name)):
        row, workload = rows[name], name.split("-")[1]
        ratios = [
            f"{row['samples_per_second'] / rows[f'{peer}-{workload}']['samples_per_second']:.1f}"
            if f"{peer}-{workload}" in rows
            else "-"
            for peer in ("pfl", "plain")
        ]
        share = "-"
        if ceiling and name.startswith("covey") and workload != "W0":
            best, binds = bound(WORKLOADS[workload], name.split("-")[2], has_momentum(WORKLOADS[workload]), ceiling)
            share = f"{row['samples_per_second'] / best:.0%} ({binds})"
        outside = f"{row['outside_clients']:.1%}" if "outside_clients" in row else "-"
        print(
            f"{name:27} {row['samples_per_second']:12,.0f} {row['seconds_per_round']:9.4f} {ratios[0]:>7} "
            f"{ratios[1]:>8} {outside:>8} {row['peak_memory'] / 1e9:6.1f} {share:>18}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), type=names_of([*ROWS, *W2_ROWS, *TOY_ROWS], "row"))
    parser.add_argument("--out", type=Path, default=Path("results/gpu.jsonl"))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--device", default="cuda", help="of Covey's rows and of DP-SGD's loop")
    parser.add_argument("--before", type=Path, help="folder that holds the package covey of an earlier version")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.table:
        table(given.table)
        return
    if given.one:
        row = {"row": given.one, **one_row(given.one, given.seconds, given.device), **settings()}
        with given.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for name in given.rows:
        if name.startswith("before-") and given.before is None:
            print(f"{name}: left out, as there is no --before", flush=True)
        elif name not in read(given.out):
            command = [
                sys.executable,
                __file__,
                "--one",
                name,
                "--out",
                str(given.out),
                "--seconds",
                str(given.seconds),
                "--device",
                given.device,
            ]
            ended = subprocess.run(command, check=False, env=surroundings(name, given.before)).returncode
            print(f"{name}: {'done' if ended == 0 else f'failed ({ended})'}", flush=True)
    table(given.out)


if __name__ == "__main__":
    main()
