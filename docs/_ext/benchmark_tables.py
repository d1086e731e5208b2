"""Tables of the benchmarks, made from the measured rows in `results/`."""

import json

from page_text import ROOT, table


def gpu() -> str:
    """Return the rows of `results/gpu.jsonl`: a line for each workload and contender."""
    lines = (ROOT / "results" / "gpu.jsonl").read_text(encoding="utf-8").splitlines()
    found = {row["row"]: row for row in map(json.loads, lines) if "samples_per_second" in row}
    rows = []
    for name, row in sorted(found.items(), key=lambda one: (one[0].split("-")[1], one[1]["samples_per_second"])):
        contender, workload, *how = name.split("-")
        runs = f"{how[1]} run{'s in lockstep' if how[1] != '1' else ''}" if len(how) > 1 else ""
        shown = ", ".join(filter(None, [contender, how[0] if how else "", runs, *how[2:]]))
        peer = found.get(f"plain-{workload}")
        times = f"{row['samples_per_second'] / peer['samples_per_second']:,.1f}" if peer else ""
        rows.append([workload, shown, f"{row['samples_per_second']:,.0f}", times, row["device"], row["commit"][:10]])
    head = ["workload", "contender", "samples per second", "times the plain loop", "device", "commit"]
    return table(head, rows) + "\nFrom `results/gpu.jsonl`. What has not been measured has no row.\n"


def cpu() -> str:
    """Return the rows of `results/cpu.json`."""
    stored = json.loads((ROOT / "results" / "cpu.json").read_text(encoding="utf-8"))
    plain = {row["workload"]: row["rate"] for row in stored["rows"] if row["contender"] == "plain"}
    rows = [
        [row["workload"], row["contender"], f"{row['rate']:,.0f}", f"{row['rate'] / plain[row['workload']]:.2f}"]
        for row in stored["rows"]
        if row["failure"] is None
    ]
    head = ["workload", "contender", "samples per second", "times the plain loop"]
    about = f"{stored['processor']}, {stored['cores']} cores, commit {stored['commit'][:10]}"
    return table(head, rows) + f"\nFrom `results/cpu.json`: {about}, PyTorch {stored['versions']['torch']}.\n"
