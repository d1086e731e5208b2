"""Tables and figures of the benchmarks, made from the measured rows in `results/`."""

import json
from functools import cache
from typing import Any

from bar_figures import bars
from page_text import ROOT, table

_KINDS = {"plain": "plain", "pfl": "peer", "pfl-2": "peer", "flower": "peer"}
_CPU_NAMES = {
    "plain": "plain loop, 1 thread",
    "flower": "Flower, 2 clients at once",
    "pfl": "pfl-research, 1 process",
    "pfl-2": "pfl-research, 2 processes",
    "covey": "Covey, 2 workers",
    "covey-bf16": "Covey, bf16",
}


@cache
def _gpu_rows() -> dict[str, dict[str, Any]]:
    lines = (ROOT / "results" / "gpu.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["row"]: row for row in map(json.loads, lines) if "samples_per_second" in row}


def _gpu_name(row: str) -> str:
    """Return what was run, of a row's name: contender, workload, precision and number of runs."""
    contender, _, *how = row.split("-")
    if contender != "covey":
        return {"plain": "plain loop", "pfl": "pfl-research"}[contender]
    precision, runs = how
    return f"Covey, {precision}" + ("" if runs == "1" else f", {runs} runs")


def _gpu_workloads() -> dict[str, dict[str, float]]:
    """Return samples per second of each workload, by what was run, from slow to fast."""
    found: dict[str, dict[str, float]] = {}
    for row in sorted(_gpu_rows().values(), key=lambda one: (one["row"].split("-")[1], one["samples_per_second"])):
        found.setdefault(row["row"].split("-")[1], {})[_gpu_name(row["row"])] = row["samples_per_second"]
    return found


def gpu() -> str:
    """Return client-samples per second on a GPU: a line for each workload, a column for each contender."""
    workloads = _gpu_workloads()
    heads = ["plain loop", "pfl-research", "Covey, tf32", "Covey, bf16", "Covey, bf16, 6 runs", "Covey, bf16, 10 runs"]
    rows = [
        [name, *(f"{found[head]:,.0f}" if head in found else "" for head in heads)] for name, found in workloads.items()
    ]
    return table(["", *heads], rows)


def gpu_figure() -> str:
    """Return the speed of each contender on a GPU, in times the plain loop, as a chart."""
    groups = {}
    for name, found in _gpu_workloads().items():
        plain = found["plain loop"]
        groups[name] = [
            (what, _kind(what), rate / plain, f"{rate / plain:.1f}×")
            for what, rate in found.items()
            if what != "plain loop"
        ]
    return bars("Client-samples per second on one GPU, in times the plain loop", groups)


def _kind(what: str) -> str:
    return "many" if "runs" in what else "covey" if what.startswith("Covey") else "peer"


def lead() -> str:
    """Return how many times as fast as the plain loop Covey is, from the least to the most of all workloads."""
    gpu_times = [
        rate / found["plain loop"]
        for found in _gpu_workloads().values()
        for what, rate in found.items()
        if what.startswith("Covey")
    ]
    cpu_times = {
        one: [found[one] / found["plain"] for found in _cpu_rates().values()] for one in ("covey", "covey-bf16")
    }
    ranges = {one: f"{min(times):.1f} to {max(times):.1f} times" for one, times in cpu_times.items()}
    return (
        f"On one GPU Covey is {min(gpu_times):.0f} to {max(gpu_times):.0f} times as fast as a plain PyTorch loop, on "
        f"two CPU cores {ranges['covey']}, and {ranges['covey-bf16']} in bfloat16.\n"
    )


def gpu_rows() -> str:
    """Return every measured row on a GPU with its commit."""
    rows = []
    for row in sorted(_gpu_rows().values(), key=lambda one: (one["row"].split("-")[1], one["samples_per_second"])):
        startup = f"{row['startup_seconds']:.0f}" if "startup_seconds" in row else ""
        training = f"{100 * row['phases']['clients']:.0f}" if "phases" in row else ""
        name = row["row"]
        memory = f"{row['peak_memory'] / 2**30:.1f}"
        rows.append(
            [
                f"`{name}`",
                f"{row['samples_per_second']:,.0f}",
                row["rounds"],
                startup,
                training,
                memory,
                row["device"].removeprefix("NVIDIA "),
                f"`{row['commit'][:10]}`",
            ]
        )
    head = ["row", "samples/s", "rounds", "start-up (s)", "training (% of wall time)", "memory (GiB)", "GPU", "commit"]
    versions = sorted({row["torch"] for row in _gpu_rows().values()})
    return table(head, rows) + f"\nFrom `results/gpu.jsonl`; PyTorch {', '.join(versions)}.\n"


@cache
def _cpu() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((ROOT / "results" / "cpu.json").read_text(encoding="utf-8"))
    return stored


def _cpu_rates() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in _cpu()["rows"]:
        if row["failure"] is None:
            found.setdefault(row["workload"], {})[row["contender"]] = row["rate"]
    return found


def cpu() -> str:
    """Return client-samples per second on a CPU: a line for each workload, a column for each contender."""
    rows = [
        [name, *(f"{found[one]:,.0f}" if one in found else "" for one in _CPU_NAMES)]
        for name, found in _cpu_rates().items()
    ]
    return table(["", *_CPU_NAMES.values()], rows)


def cpu_figure() -> str:
    """Return the speed of each contender on a CPU, in times the plain loop, as a chart."""
    rates = _cpu_rates()
    groups = {
        name: [
            (
                _CPU_NAMES[one],
                _KINDS.get(one, "covey"),
                times[one],
                f"{times[one]:.2f}×",
            )
            for one in _CPU_NAMES
            if one in times
        ]
        for name, found in rates.items()
        for times in [{one: rate / found["plain"] for one, rate in found.items()}]
    }
    return bars("Client-samples per second on two CPU cores, in times the plain loop", groups)


def cpu_rows() -> str:
    """Return every measured row on a CPU, with both passes, and the commit."""
    stored = _cpu()
    rows = [
        [
            row["workload"],
            f"`{row['contender']}`",
            f"{row['rate']:,.0f}",
            ", ".join(f"{one:,.0f}" for one in row["passages"]),
            row["rounds"],
            f"{row['startup']:.1f}",
            f"{row['peak_bytes'] / 2**20:,.0f}",
        ]
        for row in stored["rows"]
        if row["failure"] is None
    ]
    head = ["", "contender", "samples/s", "there, back", "rounds", "start-up (s)", "memory (MiB)"]
    changed = ", with changes that were not committed" if stored["uncommitted"] else ""
    peers = ", ".join(f"{name} {version}" for name, version in stored["peers"].items())
    return (
        table(head, rows) + f"\nFrom `results/cpu.json`: {stored['processor']}, {stored['cores']} cores, commit "
        f"`{stored['commit'][:10]}`{changed}, PyTorch {stored['versions']['torch']}, {peers}.\n"
    )


def limits() -> str:
    """Return what each workload needs at least, the GPU's bounds, and the share that is reached."""
    stored = json.loads((ROOT / "results" / "ceiling.json").read_text(encoding="utf-8"))
    head = ["", "MFLOP a sample", "kB a sample", "bound by memory", "by arithmetic", "without gradients in memory"]
    head += ["µs a kernel at the bound", "one run reaches", "the fastest sweep"]
    rows = []
    for name, found in stored["workloads"].items():
        shares = [f"{found[row] / found['bound']:.0%}" if found[row] else "" for row in ("alone", "fastest")]
        work = [f"{found['operations'] / 1e6:,.1f}", f"{found['bytes'] / 1e3:,.1f}"]
        bounds = [_millions(found[bound]) for bound in ("by_memory", "by_arithmetic", "fused")]
        rows.append([name, *work, *bounds, f"{found['microseconds_per_kernel']:.1f}", *shares])
    gpu = stored["gpu"]
    return (
        table(head, rows)
        + f"\nFrom `results/ceiling.json`: one {gpu['device'].removeprefix('NVIDIA ')}, which copied "
        + f"{gpu['bytes'] / 1e12:.2f} TB/s and multiplied bf16 matrices at {gpu['bf16'] / 1e12:.0f} TFLOP/s.\n"
    )


def _millions(rate: float) -> str:
    return f"{rate / 1e6:,.2f} M"


def host() -> str:
    """Return the host's part of a round before and now."""
    stored = json.loads((ROOT / "results" / "host.json").read_text(encoding="utf-8"))
    parts = ("host", "selection", "clients", "aggregation", "evaluation", "records", "meanwhile")
    rows = [
        [f"{name.split('-')[0]}, {_runs(name)}", version, *(f"{found[part]:.2f}" for part in parts)]
        for name, versions in stored["rows"].items()
        for version, found in versions.items()
    ]
    machine = stored["machine"]
    return (
        table(["", "version", "in all (ms)", *parts[1:]], rows)
        + f"\nFrom `results/host.json`: medians of {stored['repeats']} runs of {stored['rounds']} rounds in turns, "
        + f"PyTorch {machine['torch']}.\n"
    )


def _runs(row: str) -> str:
    runs = int(row.split("-")[1])
    return "alone" if runs == 1 else f"{runs} runs"


_STEP_PARTS = {
    "_image_gradient_kernel": "gradient of the second convolution's inputs",
    "_filter_gradient_kernel": "gradients of filters",
    "_collect_kernel": "gradients of filters",
    "_forward_kernel": "convolutions, pools and ReLUs",
    "triton_": "samples, crops, flips, updates and what else is element by element",
}
"""Kinds of kernels by how their names begin; all others are the dense layers'."""


def step() -> str:
    """Return the time of a step of W2 with convolution, pool and ReLU apart and as one operator."""
    stored = json.loads((ROOT / "results" / "fused.json").read_text(encoding="utf-8"))
    names = {"kernel, slices": "each by itself", "fused, fused": "as one operator"}
    taken = {row["way"]: row for row in stored["steps"]}
    rows = [
        [name, f"{taken[way]['us'] / 1000:.2f}", f"{400 * taken[way]['lanes'] / taken[way]['us']:.1f}"]
        for way, name in names.items()
    ]
    parts: dict[str, float] = {}
    for row in stored["profile"]:
        if row["way"] == "fused, fused":
            known = (name for begin, name in _STEP_PARTS.items() if row["kernel"].startswith(begin))
            part = next(known, "dense layers and the rest")
            parts[part] = parts.get(part, 0.0) + row["us"] / 1000
    shares = [[part, f"{time:.2f}"] for part, time in sorted(parts.items(), key=lambda one: -one[1])]
    return (
        table(["convolution, pool and ReLU", "a step of 100 clients (ms)", "million client-samples/s"], rows)
        + "\nAs one operator, of which:\n\n"
        + table(["part", "ms"], shares)
        + f"\nFrom `results/fused.json`: {stored['device']}, bf16, PyTorch {stored['torch']}, commit "
        f"`{stored['commit'][:10]}`.\n"
    )


def server() -> str:
    """Return the time and memory of the server's own work."""
    stored = json.loads((ROOT / "results" / "server.json").read_text(encoding="utf-8"))
    rows = [
        [row["about"], f"{1000 * row['median_seconds']:,.2f}", f"{row['extra_bytes'] / 2**20:,.1f}"]
        for row in stored["rows"].values()
        if "median_seconds" in row
    ]
    machine = stored["machine"]
    return (
        table(["work", "median (ms)", "memory beyond its state (MiB)"], rows)
        + f"\nFrom `results/server.json`: {machine['cores']} CPU cores, PyTorch {machine['torch']}.\n"
    )


def guard() -> str:
    """Return the guard's share of a round."""
    stored = json.loads((ROOT / "results" / "guard.json").read_text(encoding="utf-8"))
    rows = [
        [
            f"{row['cores']} CPU cores" if row["device"] == "cpu" else row["device"],
            f"{1000 * row['round_seconds']:,.0f}",
            f"{1000 * row['guard_seconds']:,.1f}",
            f"{row['share']:.1%}",
            str(row["rounds"]),
            row["torch"],
        ]
        for row in stored
    ]
    return (
        table(["machine", "round (ms)", "guard (ms)", "share", "rounds", "PyTorch"], rows)
        + f"\n{stored[0]['workload']}: {stored[0]['clients']} clients of {stored[0]['parameters'] / 1e6:.1f} million "
        "parameters; medians. From `results/guard.json`.\n"
    )


def million() -> str:
    """Return the cost of very many clients."""
    stored = json.loads((ROOT / "results" / "million.json").read_text(encoding="utf-8"))
    ordered = sorted(stored["rows"].values(), key=lambda one: (one["method"], one["clients"], one["rounds"]))
    thousand = {one["method"]: one["round_cpu_seconds"] for one in ordered if one["clients"] == 1_000}
    times = [row["round_cpu_seconds"] / thousand[row["method"]] for row in ordered]
    rows = [
        [
            f"`{row['method']}`",
            f"{row['clients']:,}",
            str(row["rounds"]),
            f"{row['start_cpu_seconds']:.2f}",
            f"{row['round_cpu_seconds']:.2f}",
            "-" if row["survey_cpu_seconds"] else f"{factor:.2f}",
            f"{row['survey_cpu_seconds']:,.0f}" if row["survey_cpu_seconds"] else "-",
            f"{(row['peak_bytes'] - row['images_bytes']) / 2**20:,.0f}",
            f"{row['checkpoint_bytes'] / 2**20:,.1f}",
            f"`{row['commit'][:10]}`",
        ]
        for row, factor in zip(ordered, times, strict=True)
    ]
    head = ["method", "clients", "rounds", "start-up (CPU s)", "round (CPU s)", "times that of 1,000 clients"]
    head += ["survey (CPU s)", "memory (MiB)", "checkpoint (MiB)", "commit"]
    most = max(row["clients"] for row in ordered)
    alike = zip(ordered, times, strict=True)
    last = [factor for row, factor in alike if row["clients"] == most and not row["survey_cpu_seconds"]]
    return (
        f"A round with {most:,} clients takes {min(last):.2f} to {max(last):.2f} times one with 1,000.\n\n"
        + table(head, rows)
        + "\nFrom `results/million.json`; a round has 100 clients. NCCB asks every client once, before its first "
        "round: the survey. `nccb-told` is told the answers. Rows with a survey are there for it: their rounds were "
        "measured beside other programs, which makes them longer.\n"
    )


def million_figure() -> str:
    """Return how long a round takes by the number of clients."""
    stored = json.loads((ROOT / "results" / "million.json").read_text(encoding="utf-8"))["rows"].values()
    rounds = min(row["rounds"] for row in stored)
    groups: dict[str, list[tuple[str, str, float, str]]] = {}
    for row in sorted(stored, key=lambda one: (one["method"], one["clients"])):
        if row["rounds"] == rounds and not row["survey_cpu_seconds"]:
            seconds = row["round_cpu_seconds"]
            line = f"{row['clients']:,} clients", "plain", seconds, f"{seconds:.2f}"
            groups.setdefault(row["method"], []).append(line)
    return bars("CPU seconds of a round with 100 of so many clients", groups)


def soak() -> str:
    """Return what a fleet of real processes went through."""
    stored = json.loads((ROOT / "results" / "soak.json").read_text(encoding="utf-8"))
    verdict = stored["verdict"]
    kept = "; ".join(name for name, held in stored["held"].items() if held)
    failed = "; ".join(name for name, held in stored["held"].items() if not held)
    return (
        f"{verdict['rounds']} rounds in {verdict['seconds']} s on a fleet of real processes: {verdict['kills']} nodes "
        f"killed, {verdict['returns']} brought back, {verdict['answers lost']} answers lost. Held: {kept}."
        f"{f' Did not hold: {failed}.' if failed else ''} From `results/soak.json`.\n"
    )


MEASURED = {
    "lead": lead,
    "gpu": gpu,
    "gpu-figure": gpu_figure,
    "gpu-rows": gpu_rows,
    "cpu": cpu,
    "cpu-figure": cpu_figure,
    "cpu-rows": cpu_rows,
    "limits": limits,
    "host": host,
    "step": step,
    "server": server,
    "guard": guard,
    "million-figure": million_figure,
    "million": million,
    "soak": soak,
}
