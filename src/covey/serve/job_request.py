"""Requests for jobs: checked, in one canonical form, with an identity and the command line that they stand for."""

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from covey.config.runtime_choice import AUTO, ON_GPU, runtime_here
from covey.config.schema import Config
from covey.config.values import PARTS
from covey.core.checkpoint import FORMAT
from covey.errors import Refusal, require
from covey.job.comparison.plan import own_names_of, runtime_settled, variants_of
from covey.job.comparison.whose_settings import without_use
from covey.job.run_index import kind_of
from covey.job.typed_settings import typed
from covey.serve.model_order import (
    base_facts,
    base_run,
    config_hash,
    fleet_named_here,
    fleet_of,
    fleet_words,
    live_run,
    mix_asked,
    settings_of,
    target_text,
)
from covey.serve.plain_settings import plain, require_no_code, require_no_paths
from covey.serve.served_folder import ServedFolder
from covey.trust import is_own

JobKind = Literal["run", "comparison", "analysis", "ondemand", "resume", "report", "federation", "shares"]

QUICK = ("report", "federation", "shares")
"""Kinds that a page waits for: they do not queue behind runs, and are not listed."""

_FLAGS = ("method", "clients", "cohort", "rounds", "seed", "runtime", "workers", "precision", "device")
"""Settings with a flag of their name, beside those that choose a part."""

_MOST_VARIANTS = 1000
"""Variants of a comparison; each is resolved before it is taken."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,80}")


@dataclass(frozen=True)
class JobRequest:
    """What is asked for, as JSON values."""

    kind: JobKind
    content: Mapping[str, Any]

    @cached_property
    def identity(self) -> str:
        """Name of the job: equal requests have equal ones."""
        # A mix stands for the target, which can be written in several ways.
        content = {key: value for key, value in self.content.items() if key != "target" or "mix" not in self.content}
        text = json.dumps([self.kind, content], sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @cached_property
    def place(self) -> str | None:
        """Path of the run or job that it writes; None if it writes none."""
        if self.kind == "resume":
            return str(self.content["path"])
        if self.kind not in ("run", "comparison", "ondemand"):
            return None
        if self.content.get("name"):
            return str(self.content["name"])
        return f"{_slug(self.kind, self.content)}-{self.identity[:8]}"

    @property
    def on_device(self) -> bool:
        """True if it may compute on a GPU, where one job runs at a time."""
        if self.kind in QUICK:
            # They are small, and a page waits for them.
            return False
        settings = self.content.get("settings") or {}
        runtime, device = str(settings.get("runtime") or AUTO), str(settings.get("device") or "auto")
        return runtime_here(runtime, device) == ON_GPU and device != "cpu"

    def fleet(self, folder: ServedFolder) -> Path | None:
        """Return the folder of the live fleet whose sites it asks; None if it asks none."""
        runtime = (self.content.get("settings") or {}).get("runtime")
        if runtime not in (None, "fleet"):
            return None
        try:
            if self.kind in ("ondemand", "shares"):
                return fleet_of(folder.place(self.content["base"]))
            if self.kind == "analysis" and self.content["of"]:
                return fleet_of(base_run(folder, self.content["of"]))
            if self.kind == "resume":
                run = live_run(folder, folder.place(self.content["path"]))
                return None if run is None else fleet_of(run)
        except Refusal:
            # What is wrong is said when it begins.
            return None
        return fleet_named_here() if runtime == "fleet" else None

    def require_plain(self) -> None:
        """Refuse a request that a file cannot hold: text that is not Unicode, or numbers that are not finite."""
        try:
            json.dumps(self.content, allow_nan=False, ensure_ascii=False).encode()
        except ValueError:
            raise Refusal("A request holds text in Unicode and finite numbers alone.") from None

    def as_mapping(self) -> dict[str, Any]:
        """Return the request for JSON; `of` reads it."""
        return {"kind": self.kind, **self.content}

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> "JobRequest":
        """Read a request from `as_mapping`'s result."""
        content = dict(mapping)
        return cls(content.pop("kind"), content)

    def arguments(self, folder: ServedFolder, work: Path) -> list[str]:
        """Return the arguments of `covey` that do the job, or what is left of it. `work` is the job's own folder."""
        place = None if self.place is None else folder.place(self.place)
        if place is not None and kind_of(place) is not None:
            return _resuming(folder, place)
        self.require_same_base(folder)
        return self._from_the_start(folder, work)

    def require_same_base(self, folder: ServedFolder) -> None:
        """Refuse to begin if another run lies in the base's place by now."""
        asked = self.content.get("base_config")
        require(
            asked is None or config_hash(base_run(folder, self.content["base"])) == asked,
            f"The run '{self.content.get('base')}' is another one than that which this was asked of; ask again.",
        )

    def _from_the_start(self, folder: ServedFolder, work: Path) -> list[str]:
        content = self.content
        place = None if self.place is None else folder.place(self.place)
        if self.kind == "resume":
            assert place is not None
            return _resuming(folder, place)
        words: list[str] = [*_settings_words(content.get("settings") or {})]
        if self.kind == "run":
            return ["run", *words, "--out", str(place), "--json"]
        if self.kind == "comparison":
            return ["compare", *_comparison_words(content), *words, "--out", str(place), "--json"]
        if self.kind == "ondemand":
            base = folder.place(content["base"])
            given = [str(base), *fleet_words(base), *_ondemand_words(content)]
            return ["ondemand", *given, *words, "--out", str(place), "--json"]
        if self.kind == "analysis":
            run = base_run(folder, content["of"]) if content.get("of") else None
            of = [] if run is None else ["--from", str(run), *fleet_words(run)]
            return ["analyze", *of, *_analysis_words(content), *words, "--draw", str(work / "page.html"), "--json"]
        assert self.kind == "report"
        places = [str(folder.place(path)) for path in content["folders"]]
        return ["report", *places, "--out", str(work / "page.html"), "--json"]

    def command(self, folder: ServedFolder) -> str:
        """Return the command line that does the same, for people."""
        words = self._from_the_start(folder, Path())
        shown = [word for word in words if word != "--json"]
        return shlex.join(["covey", *shown])


def run_request(settings: Mapping[str, Any], name: str | None = None) -> JobRequest:
    """Return the request for a run with these settings."""
    given = plain(settings)
    resolved = Config.of(given).as_mapping()
    return JobRequest("run", {"settings": typed(given, resolved), **_named(name)})


def comparison_request(
    methods: Sequence[str],
    seeds: int | Sequence[int],
    vary: Mapping[str, Sequence[Any]],
    target: float | None,
    fairness: bool,
    settings: Mapping[str, Any],
    name: str | None = None,
) -> JobRequest:
    """Return the request for a comparison; every variant is resolved once, so that impossible ones are refused."""
    given = plain(settings)
    count = seeds if isinstance(seeds, int) else len(seeds)
    require(0 < count <= 1000, f"seeds must be 1 to 1000, not {count}.")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    require(len(set(numbers)) == len(numbers), f"The seeds {numbers} are not all different.")
    require(target is None or 0 < target <= 1, f"target is a fraction in (0, 1], not {target}.")
    require("seed" not in given and "method" not in given, "A comparison takes methods and seeds, not one of each.")
    require(all(values for values in vary.values()), "A setting that varies needs at least one value.")
    variants = len(methods) * math.prod(map(len, vary.values()))
    require(variants <= _MOST_VARIANTS, f"A comparison has at most {_MOST_VARIANTS:,} variants, not {variants:,}.")
    settled = runtime_settled(given)
    plan = {"format": FORMAT, "methods": list(methods), "seeds": numbers[:1], "vary": dict(vary), "given": settled}
    require_no_code(own_names_of(plan))
    require_no_paths({"vary": plan["vary"], "methods": plan["methods"]})
    plan["unvaried"] = without_use(methods, settled, vary)
    found = [one.configs[0].as_mapping() for one in variants_of(plan)]
    resolved = found[0]
    like = {key: next((one for one in (_at(each, key) for each in found) if one is not None), None) for key in vary}
    varied = {key: [typed(value, like[key]) for value in values] for key, values in vary.items()}
    content = {"methods": list(methods), "seeds": numbers, "vary": varied, "settings": typed(given, resolved)}
    return JobRequest("comparison", {**content, "target": target, "fairness": fairness, **_named(name)})


def analysis_request(
    of: str | None, insight: str, rounds: int | None, level: float, settings: Mapping[str, Any]
) -> JobRequest:
    """Return the request for an analysis of a federation, or of a run's (`of`)."""
    given = plain(settings)
    require(not is_own(insight), f"'{insight[:80]}' is code; a request cannot name any.")
    require(rounds is None or rounds >= 1, f"rounds must be at least 1, not {rounds}.")
    require(0 < level < 1, f"level is a fraction between 0 and 1, not {level}.")
    settled = typed(given, Config.of(given).as_mapping())
    return JobRequest("analysis", {"of": of, "insight": insight, "rounds": rounds, "level": level, "settings": settled})


def ondemand_request(folder: ServedFolder, base: str, target: Mapping[str, float] | str, **options: Any) -> JobRequest:
    """Return the request for a model of a class mix. What the base holds now is part of it: more rounds, or another run
    in its place, make another base.

    `options` are those of `covey.ondemand`: estimator, rounds, pairing, survey, insight_dp, continued,
    without and settings.
    """
    place = base_run(folder, base)
    given = typed(plain(options.pop("settings", None) or {}), settings_of(place))
    asked = {key: value for key, value in options.items() if value not in (None, False)}
    text = target_text(target)
    content = {"base": folder.path(place), **base_facts(place), "target": text, "mix": mix_asked(text), **asked}
    return JobRequest("ondemand", {**content, "settings": given})


def resume_request(path: str) -> JobRequest:
    """Return the request to resume what was stopped."""
    return JobRequest("resume", {"path": path})


def report_request(folder: ServedFolder, paths: Sequence[str]) -> JobRequest:
    """Return the request for a report, of the folders as they are now."""
    require(0 < len(paths) <= 200, f"A report is about 1 to 200 runs, not {len(paths)}.")
    stamps = []
    for path in paths:
        place = folder.place(path)
        require(kind_of(place) not in (None, "fleet"), f"There is no run '{path[:80]}' to report on.")
        files = sorted(place.glob("**/metrics.jsonl"))
        stamps.append([[one.stat().st_mtime_ns, one.stat().st_size] for one in files if not one.is_symlink()])
    return JobRequest("report", {"folders": list(paths), "stamps": stamps})


def federation_request(folder: ServedFolder, path: str) -> JobRequest:
    """Return the request for the clients' true class mixes of a simulated run."""
    place = folder.place(path)
    require(kind_of(place) == "run", f"There is no run '{path[:80]}'.")
    text = (place / "config.json").read_bytes()
    return JobRequest("federation", {"path": path, "config": hashlib.sha256(text).hexdigest()})


def shares_request(folder: ServedFolder, base: str) -> JobRequest:
    """Return the request for the clients' class shares by one gradient each, at the base's last round."""
    place = base_run(folder, base)
    return JobRequest("shares", {"base": folder.path(place), **base_facts(place)})


def _at(settings: Mapping[str, Any], key: str) -> Any:
    section, dot, option = key.partition(".")
    value = settings.get(section)
    return (value.get(option) if isinstance(value, Mapping) else None) if dot else value


def _named(name: str | None) -> dict[str, str]:
    require(
        name is None or bool(_NAME.fullmatch(name)),
        f"'{str(name)[:80]}' cannot name a folder: letters, digits and . _ + - alone.",
    )
    return {"name": name} if name else {}


def _slug(kind: str, content: Mapping[str, Any]) -> str:
    settings = content.get("settings") or {}
    if kind == "comparison":
        text = "-".join(["compare", *content["methods"]])
    elif kind == "ondemand":
        text = f"ondemand-{content['base'].rpartition('/')[2]}"
    else:
        environment = settings.get("environment", "uniform")
        environment = environment.get("name", "uniform") if isinstance(environment, Mapping) else environment
        text = f"{settings.get('method', 'run')}-{environment}"
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-.")[:60] or kind


def _pair(flag: str, value: str) -> list[str]:
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]


def _spelled(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_spelled, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings_words(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            rest = dict(value)
            if key in PARTS and key != "many" and "name" in rest:
                yield from _pair(f"--{key}", _spelled(rest.pop("name")))
            for option, one in rest.items():
                yield from _pair("--set", f"{key}.{option}={_spelled(one)}")
        elif value is not None:
            plain = key in _FLAGS or (key in PARTS and key != "many")
            yield from _pair(f"--{key}", _spelled(value)) if plain else _pair("--set", f"{key}={_spelled(value)}")


def _comparison_words(content: Mapping[str, Any]) -> list[str]:
    seeds = content["seeds"]
    counted = seeds == list(range(len(seeds)))
    words = ["--methods", ",".join(content["methods"])]
    words += ["--seeds", str(len(seeds)) if counted else ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")]
    for key, values in content["vary"].items():
        words += ["--vary", f"{key}={','.join(map(_spelled, values))}"]
    words += [] if content["target"] is None else ["--target", str(content["target"])]
    return [*words, *(["--fairness"] if content["fairness"] else [])]


def _ondemand_words(content: Mapping[str, Any]) -> list[str]:
    words = _pair("--target", content["target"])
    for key in ("estimator", "rounds", "pairing", "insight_dp", "without"):
        words += _pair(f"--{key.replace('_', '-')}", str(content[key])) if key in content else []
    return [*words, *(f"--{key}" for key in ("survey", "continued") if content.get(key))]


def _analysis_words(content: Mapping[str, Any]) -> list[str]:
    words = ["--insight", content["insight"], "--level", str(content["level"])]
    return [*words, *([] if content["rounds"] is None else ["--rounds", str(content["rounds"])])]


def _resuming(folder: ServedFolder, place: Path) -> list[str]:
    """Return the arguments that resume a run, or a job of runs; of a fleet, its run."""
    run = place / "run" if kind_of(place) == "fleet" else place
    return ["resume", str(run), *fleet_words(live_run(folder, place)), "--json"]
