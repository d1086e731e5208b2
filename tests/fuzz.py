"""A seeded fuzzer: damaged settings, files and folders. Each runs, or is refused with a sentence; nothing else."""

import copy
import json
import random
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import covey
from covey import Config, Refusal, Run
from covey.aggregation.agent_file import agent_kind
from covey.config.values import read_toml
from covey.core.client_names import read_names
from covey.data.class_mix import parse_targets
from covey.errors import Interrupted
from covey.job.agent_training import train_agent
from covey.job.comparison.execution import resume_comparison
from covey.job.experiment import Experiment
from covey.job.on_demand import read_ondemand, resume_ondemand
from covey.page.html_page import render
from covey.page.run_data import read_report_data
from covey.page.run_report import page_of
from tests.conftest import SMALL

TINY: dict[str, Any] = {**SMALL, "cohort": 3, "rounds": 2, "model": {"name": "mlp", "hidden": [4]}}

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 0.5, -0.5, 1e-300, 1e300, 2**31, 2**63, -(2**63), 10**40,
    float("nan"), float("inf"), "", " ", "x", "0", "1", "-1", "1e9", "nan", "none", "true", "os:system", "a.b:c", ":",
    "fedavg", "uniform", "é\u202e", "y" * 3000, "../..", "/dev/null",
    [], [0], [1, 2], [[1]], ["x", 1], {}, {"name": "mlp"}, {"name": 3}, {"x": {"y": 1}},
)  # fmt: skip
"""Values that take the place of others."""

SIZES = {"clients": 200, "rounds": 50, "local.epochs": 3, "model.hidden": 300, "environment.samples": 300}
"""Settings that only make a run longer, with the most that is run here; larger ones are only resolved."""


class Enough(Exception):
    """Ends a run that goes on as it should."""


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one change somewhere in it."""
    value = copy.deepcopy(value)
    place, holder = value, None
    key: Any = None
    while isinstance(place, (dict, list)) and place and (holder is None or rng.random() < 0.8):
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        holder, place = place, place[key]
    if holder is None:
        return rng.choice(VALUES)
    change = rng.randrange(6)
    if change == 0:
        del holder[key]
    elif change == 1 and isinstance(holder, dict):
        holder[rng.choice(["x", "", "name", "seed", f"{key}."])] = rng.choice(VALUES)
    elif change == 2 and isinstance(holder, list):
        holder.insert(key, rng.choice([place, *VALUES]))
    else:
        holder[key] = rng.choice(VALUES)
    return value


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few of them changed, cut, doubled or put in."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(made) + 1)
        change = rng.randrange(5)
        if change == 0:
            made = made[:place]
        elif change == 1 and place < len(made):
            made[place] = rng.randrange(256)
        elif change == 2:
            made[place:place] = rng.choice((b"\0", b'"', b"{", b"[", b"]]", b",", b"\n", b"=", b"9" * 30, b"\xff\xfe"))
        elif change == 3:
            del made[place : place + rng.randrange(1, 9)]
        else:
            made[place:place] = made[place : place + rng.randrange(1, 40)]
    return bytes(made)


def small(config: Config) -> bool:
    """True if a configuration is small enough to be built and run here."""
    hidden = config.model.options.get("hidden", ())
    widths = hidden if isinstance(hidden, (list, tuple)) else [hidden]
    return (
        config.clients <= SIZES["clients"]
        and config.local.epochs <= SIZES["local.epochs"]
        and config.model.name == "mlp"
        and all(isinstance(width, int) and width <= SIZES["model.hidden"] for width in widths)
        and config.environment.name in ("uniform", "iid", "dirichlet")
        and config.dataset.name in ("digits", "csv", "npz")
        and config.dataset.options.get("upscale", 1) == 1
        and not isinstance(config.environment.options.get("samples"), (str, list, dict))
        and int(config.environment.options.get("samples") or 0) <= SIZES["environment.samples"]
        and config.runtime == "local"
    )


class Fuzzer:
    """Makes cases from a seed, in a folder of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng, self.number = folder, random.Random(seed), 0
        self.failures: list[str] = []
        self.refused = 0
        self.run = covey.run(TINY, out=folder / "run").folder
        (self.run / "names.json").write_text(json.dumps([f"site {client}" for client in range(8)]))
        self.comparison = covey.compare(["fedavg", "fedacs"], 1, given=TINY, out=folder / "comparison").folder
        asked: dict[str, Any] = {"estimator": "ground-truth", "rounds": 1, "continued": True}
        self.job = covey.ondemand(self.run, ["0=1", "td1"], **asked, out=folder / "job").folder
        stopped = {**TINY, "rounds": 6}

        def stop(record: dict[str, Any]) -> None:
            if record["round"] == 2:
                raise Enough

        self.stopped, self.kept = folder / "stopped", folder / "kept"
        for method, place in (("fedacs", self.stopped), ("scaffold", self.kept)):
            with suppress(Enough):
                covey.run(stopped, method=method, out=place, on_round=stop)
        agent = {**TINY, "method": "feddrl", "rounds": 12}
        rounds = agent.pop("rounds")
        self.agent = train_agent(agent, rounds=rounds, workers=2, out=folder / "agent.safetensors")
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 3, 40)
        np.savez(folder / "data.npz", x=x, y=y, client=rng.integers(0, 4, 40))
        np.savez_compressed(folder / "packed.npz", x=x.astype(np.uint8), y=y)
        rows = [f"{one[0]:.3f},{one[1]:.3f},{label},{label}" for one, label in zip(x, y, strict=True)]
        lines = ["a,b,label,client", *rows]
        (folder / "data.csv").write_text("\n".join(lines))
        (folder / "run.toml").write_text(
            'method = "fedavg"\nrounds = 2\ncohort = 0.5\n[environment]\nname = "uniform"\nsamples = 20\n'
            "[local]\nepochs = 1\nrate = 0.1\n[devices]\nspread = 0.5\n[altered]\nnoise = 0.1\n"
        )
        (folder / "labels.csv").write_text("label\n" + "\n".join("0123450"))
        self.kinds: list[tuple[int, Callable[[Path], Iterator[Callable[[], object]]]]] = [
            (30, self.settings), (8, self.toml), (12, self.targets), (8, self.csv), (10, self.npz), (8, self.agents),
            (14, self.run_folders), (8, self.comparisons), (8, self.jobs), (4, self.fleets),
        ]  # fmt: skip

    def cases(self, count: int) -> None:
        """Try so many cases, and note what ended in anything but a result or a sentence."""
        weights = [weight for weight, _ in self.kinds]
        for self.number in range(1, count + 1):
            make = self.rng.choices([kind for _, kind in self.kinds], weights)[0]
            place = self.folder / "case"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for action in make(place):
                self._try(make.__name__, action, place)

    def _try(self, kind: str, action: Callable[[], object], place: Path) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                action()
        except Refusal as refusal:
            self.refused += 1
            sentence = str(refusal)
            if len(sentence) < 10 or "Traceback" in sentence:
                self.failures.append(f"{self.number} {kind}: no sentence: {sentence!r}")
        except (Enough, Interrupted):
            pass
        except Exception:
            self.failures.append(f"{self.number} {kind}: {traceback.format_exc(limit=-6)}")
        left = [path.name for path in place.rglob("*.part")]
        if left:
            self.failures.append(f"{self.number} {kind}: left behind: {left}")

    def _build(self, config: Config) -> None:
        if small(config):
            Experiment.of(config).runtime.close()

    def settings(self, place: Path) -> Iterator[Callable[[], object]]:
        rng = self.rng
        names = [*covey.methods.names(), "uniform+average", "fedacs+feddrl"]
        given: dict[str, Any] = {**TINY, "method": rng.choice(names), "seed": 1}
        whole = Config.of(given).as_mapping() if rng.random() < 0.5 else given
        for _ in range(rng.choice((1, 1, 2, 3))):
            whole = mutated(whole, rng)
            if not isinstance(whole, dict):
                whole = {"clients": whole}
        whole = {str(key): value for key, value in whole.items()}
        yield lambda: self._build(Config.of(whole))

    def toml(self, place: Path) -> Iterator[Callable[[], object]]:
        path = place / "run.toml"
        path.write_bytes(damaged((self.folder / "run.toml").read_bytes(), self.rng))
        yield lambda: self._build(Config.of(read_toml(path)))

    def targets(self, place: Path) -> Iterator[Callable[[], object]]:
        rng, names = self.rng, [str(number) for number in range(10)]
        shares = np.full((8, 10), 0.1)
        text = rng.choice(("0=0.5,3=0.3,7=0.2", "td1", "local:7", "0=1", "td3,0=1"))
        choice: Any = rng.choice(
            (
                damaged(text.encode(), rng).decode(errors="replace"),
                mutated({"0": 0.5, "3": 0.5}, rng),
                mutated([0.1] * 10, rng),
                mutated(["td1", "0=1"], rng),
            )
        )
        yield lambda: parse_targets(choice, names, shares)
        path = place / "labels.csv"
        path.write_bytes(damaged((self.folder / "labels.csv").read_bytes(), rng))
        yield lambda: parse_targets(path, names, None)

    def _data(self, place: Path, name: str, file: str) -> Iterator[Callable[[], object]]:
        path = place / file
        path.write_bytes(damaged((self.folder / file).read_bytes(), self.rng))
        environment = self.rng.choice(("natural", "iid"))
        given: dict[str, Any] = {"dataset": {"name": name, "path": str(path)}, "workers": 1, "cohort": 1}
        given |= {"environment": environment} | ({"clients": 2} if environment == "iid" else {})
        yield lambda: Experiment.of(Config.of({**given, "model": {"name": "mlp", "hidden": [4]}})).runtime.close()

    def csv(self, place: Path) -> Iterator[Callable[[], object]]:
        yield from self._data(place, "csv", "data.csv")

    def npz(self, place: Path) -> Iterator[Callable[[], object]]:
        yield from self._data(place, "npz", self.rng.choice(("data.npz", "packed.npz")))

    def agents(self, place: Path) -> Iterator[Callable[[], object]]:
        path = place / "agent.safetensors"
        path.write_bytes(damaged(self.agent.read_bytes(), self.rng))
        yield lambda: agent_kind(path)
        yield lambda: self._build(Config.of({**TINY, "method": "feddrl", "aggregator": {"agent": str(path)}}))

    def run_folders(self, place: Path) -> Iterator[Callable[[], object]]:
        source = self.rng.choice((self.run, self.stopped, self.kept))
        folder = self._copied(source, place)
        self._damage(folder)
        yield from self._on_run(folder, place)

    def comparisons(self, place: Path) -> Iterator[Callable[[], object]]:
        folder = self._copied(self.comparison, place)
        self._damage(folder)
        yield lambda: covey.Comparison.open(folder).rows
        yield lambda: self._page(folder)
        if self._runnable(folder):
            yield lambda: resume_comparison(folder, on_round=self._some_rounds())

    def jobs(self, place: Path) -> Iterator[Callable[[], object]]:
        folder = self._copied(self.job, place)
        if self.rng.random() < 0.3:
            (folder / "target-1" / "checkpoint.safetensors").unlink()
        self._damage(folder)
        if self._runnable(folder):
            yield lambda: read_ondemand(folder).as_mapping()
            yield lambda: resume_ondemand(folder, on_round=self._some_rounds())

    def fleets(self, place: Path) -> Iterator[Callable[[], object]]:
        from covey.fleet.fleet_folder import Fleet, Site
        from covey.fleet.samples import federation_of, settings

        given = {"method": "fedavg", "model": "mlp", "rounds": 2, "cohort": 2}
        data = {"shape": [4], "classes": 2}
        fleet = mutated({"address": "127.0.0.1:8443", "sites": ["a", "b"], "run": given, "data": data}, self.rng)
        text = _toml(fleet) if isinstance(fleet, dict) else str(fleet)
        raw = damaged(text.encode(), self.rng) if self.rng.random() < 0.4 else text.encode(errors="replace")
        (place / "fleet.toml").write_bytes(raw)
        site = 'name = "a"\nserver = "127.0.0.1:8443"\ndata = "data"\npoll = 3.0\n[node]\nallow = ""\n'
        (place / "site.toml").write_bytes(damaged(site.encode(), self.rng))

        def read() -> None:
            found = Fleet.read(place)
            found.check()
            if len(found.sites) < 100 and not _large(found.data):
                federation_of(found)
                Config.stored(settings(found))

        yield read
        yield lambda: Site.read(place).settings

    def _copied(self, source: Path, place: Path) -> Path:
        return Path(shutil.copytree(source, place / source.name))

    def _damage(self, folder: Path) -> None:
        """Change a file or two of a folder, most often JSON."""
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".html")
        for _ in range(self.rng.choice((1, 1, 2))):
            path = self.rng.choices(files, [4 if path.suffix.startswith(".json") else 1 for path in files])[0]
            if path.exists():
                self._damage_file(path)

    def _damage_file(self, path: Path) -> None:
        """Change JSON as JSON or as bytes, and others as bytes."""
        data, rng = path.read_bytes(), self.rng
        if path.suffix == ".json" and rng.random() < 0.8:
            path.write_text(json.dumps(mutated(_parsed(data), rng)))
        elif path.suffix == ".jsonl" and rng.random() < 0.7:
            lines = data.decode(errors="replace").splitlines() or [""]
            place = rng.randrange(len(lines))
            lines[place] = json.dumps(mutated(_parsed(lines[place]), rng))
            path.write_text("\n".join(lines) + "\n")
        elif rng.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(damaged(data, rng))

    def _runnable(self, folder: Path) -> bool:
        """True if what a folder holds is small enough to be run; refused settings are tried too."""
        for path in folder.rglob("config.json"):
            try:
                if not small(Run.open(path.parent).config):
                    return False
            except Refusal:
                continue
        text = "".join(path.read_text(errors="replace") for path in folder.glob("*.json"))
        return not any(word in text for word in (str(2**31), "1e+300", str(2**63), "99999", "1e9"))

    def _on_run(self, folder: Path, place: Path) -> Iterator[Callable[[], object]]:
        yield lambda: Run.open(folder).finished
        yield lambda: read_names(folder)
        yield lambda: self._page(folder)
        if self._runnable(folder):
            yield lambda: Run.open(folder).evaluate(["0=1"])
            yield lambda: Run.open(folder).export(place / "model.safetensors")
            yield lambda: covey.resume(folder, on_round=self._some_rounds())

    def _some_rounds(self) -> Callable[[dict[str, Any]], None]:
        seen: list[int] = []

        def on_round(record: dict[str, Any]) -> None:
            seen.append(1)
            if len(seen) == 3:
                raise Enough

        return on_round

    def _page(self, folder: Path) -> None:
        """Compute all that a report shows; its page is large, and written by tests of its own."""
        render(page_of(read_report_data([folder])))


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _large(data: Any) -> bool:
    return any(len(word) > 6 for word in str(data).replace("-", "").replace("]", " ").replace(",", " ").split())


def _toml(values: dict[str, Any]) -> str:
    """Return a mapping as TOML, as far as TOML has its values."""
    plain = [f"{key or '_'} = {_word(value)}" for key, value in values.items() if not isinstance(value, dict)]
    parts = [f"[{key}]\n{_toml(value)}" for key, value in values.items() if isinstance(value, dict)]
    return "\n".join([*plain, *parts])


def _word(value: Any) -> str:
    return json.dumps(value).replace("null", '"null"').replace("NaN", "nan").replace("Infinity", "inf")


def assert_all_are_results_or_sentences(folder: Path, seed: int, count: int) -> None:
    """Try so many cases from a seed."""
    torch.set_num_threads(1)
    fuzzer = Fuzzer(folder, seed)
    fuzzer.cases(count)
    assert not fuzzer.failures, f"{len(fuzzer.failures)} of {count}:\n\n" + "\n".join(fuzzer.failures[:10])
    assert fuzzer.refused > count / 4, "a fuzzer whose cases are all well-formed tests nothing"
