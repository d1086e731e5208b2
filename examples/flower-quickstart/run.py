"""Run the app as it was (FedAvg, plain Flower), then with Covey, on Flower's simulation engine, and compare accuracies.

python examples/flower-quickstart/run.py              # one seed
python examples/flower-quickstart/run.py --seeds 5 --method fedacs

A SuperLink is started for it on a port of its own, with a home of its own; nothing stays when it ends.
"""

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

from covey.fleet.processes import end_with_parent, environment, free_port, listens

HERE = Path(__file__).resolve().parent
START = 60.0
"""Seconds that the SuperLink has to start."""

_SET_CHILD_SUBREAPER = 36


def main() -> None:
    given = _arguments()
    missing = [name for name in ("flwr", "ray") if find_spec(name) is None]
    if missing:
        sys.exit(f"{sys.executable} has no {' and no '.join(missing)}: pip install -e '.[flower]' in Covey's checkout.")
    adopt()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Ray's sockets lie in the folder too, and the system allows them short paths only.
    short = None if len(tempfile.gettempdir()) <= 20 else "/tmp"
    with tempfile.TemporaryDirectory(prefix="fq-", dir=short) as folder, superlink(Path(folder)) as variables:
        before, after = [], []
        for seed in range(given.seeds):
            config = f"seed={seed} num-server-rounds={given.rounds}"
            before.append(accuracy("before", config, variables))
            after.append(accuracy("after", f"{config} method='{given.method}'", variables))
    print(line("before, FedAvg in plain Flower", before))
    print(line(f"after,  {given.method} of Covey", after))
    print(conclusion(before, after))


def _arguments() -> argparse.Namespace:
    words = argparse.ArgumentParser(description="The Flower quickstart before and after Covey.")
    words.add_argument("--method", default="covey", help="any of `covey list methods` (default: covey)")
    words.add_argument("--seeds", type=int, default=1, help="splits of the data and first models (default: 1)")
    words.add_argument("--rounds", type=int, default=30, help="rounds of each run (default: 30)")
    given = words.parse_args()
    if given.seeds < 1 or given.rounds < 1:
        words.error(f"--seeds and --rounds are at least 1, not {given.seeds} and {given.rounds}.")
    return given


@contextmanager
def superlink(folder: Path) -> Iterator[dict[str, str]]:
    """Start Flower's SuperLink for simulations; yield the environment in which `flwr run APP here` finds it."""
    port = free_port()
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    # It has Flower use the packages that are here instead of installing the apps' dependencies.
    variables = {**environment(folder), "RAY_TMPDIR": str(folder)}
    command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "superlink.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=output, preexec_fn=end_with_parent
        )
    try:
        end = time.monotonic() + START
        while not listens(port):
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"Flower's SuperLink did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)
        yield variables
    finally:
        process.terminate()
        process.wait()
        end_adopted()


def adopt() -> None:
    """Become the parent of programs whose parent ends, as Flower starts some in sessions of their own (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)


def end_adopted(grace: float = 10.0) -> None:
    """Wait until all programs that were started here are gone; end them by force after a grace."""
    limit = time.monotonic() + grace
    with suppress(ChildProcessError):
        while True:
            gone, _ = os.waitpid(-1, os.WNOHANG)
            if not gone and time.monotonic() > limit:
                for child in _children():
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
            if not gone:
                time.sleep(0.05)


def _children() -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(place.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(place.parent.name))
    return found


def accuracy(app: str, config: str, variables: dict[str, str]) -> float:
    """Run an app; return the accuracy of its last model over all clients' test samples."""
    command = ["flwr", "run", str(HERE / app), "here", "--stream", "--run-config", config]
    command += ["--federation-config", "num-supernodes=20 client-resources-num-cpus=1"]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = re.findall(r"'accuracy': '([\d.e+-]+)'", done.stdout)
    if done.returncode or "Strategy execution finished" not in done.stdout or not found:
        sys.exit(f"'{' '.join(command)}' failed:\n{done.stdout}")
    print(f"{app}, {config}: accuracy {float(found[-1]):.1%}", file=sys.stderr)
    return float(found[-1])


def line(name: str, accuracies: list[float]) -> str:
    """Return a line with the mean over seeds, and each seed's accuracy."""
    each = ", ".join(f"{one:.1%}" for one in accuracies)
    return f"{name + ':':32}{mean(accuracies):6.1%}" + (f"  (seeds: {each})" if len(accuracies) > 1 else "")


def conclusion(before: list[float], after: list[float]) -> str:
    """Return what the accuracies say, and no more."""
    gains = [new - old for old, new in zip(before, after, strict=True)]
    points = f"{100 * mean(gains):+.1f} points with Covey"
    if len(gains) == 1:
        return f"{points}, on one seed: --seeds 5 says whether it holds on others."
    won, each = sum(gain > 0 for gain in gains), ", ".join(f"{100 * gain:+.1f}" for gain in gains)
    return f"{points} on average; higher on {won} of {len(gains)} seeds ({each})."


if __name__ == "__main__":
    main()
