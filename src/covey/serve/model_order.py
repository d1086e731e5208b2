"""What an order for a model is about: the base run as it is now, the fleet that is asked, and the class mix."""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from covey.errors import Refusal, require
from covey.job.run_index import kind_of
from covey.serve.served_folder import ServedFolder
from covey.storage import read_json

CHECKPOINT = "checkpoint.safetensors"

_TRIES = 5
"""Times that a base is read that goes on meanwhile."""

_DIGITS = 12
"""Significant digits of a share by which two class mixes are the same."""

NO_PATH = re.compile(r"[^/\\~]*")
"""Texts that cannot be a path."""


def base_run(folder: ServedFolder, base: str) -> Path:
    """Return the run folder of a base: a run, or the run of a live fleet."""
    place = folder.place(base)
    if kind_of(place) == "fleet":
        place = folder.place(f"{base}/run")
    require(kind_of(place) == "run", f"There is no run '{base[:80]}' to make models from.")
    require(
        folder.file(f"{folder.path(place)}/{CHECKPOINT}") is not None,
        f"The run '{base[:80]}' has no finished round to begin at yet.",
    )
    require(
        not needs_fleet(place) or fleet_of(place) is not None,
        f"The run '{base[:80]}' was made by a live fleet, and the fleet's folder is not around it: make models of it "
        "where its fleet.toml is, with covey ondemand --fleet FOLDER.",
    )
    return place


def needs_fleet(run: Path) -> bool:
    """True if a run's clients are sites of a live fleet."""
    return has_sites(settings_of(run).get("runtime"))


def has_sites(runtime: object) -> bool:
    """True if a runtime's clients are sites of a live fleet; told from its name, so that pages need no PyTorch."""
    return runtime == "fleet"


def fleet_of(run: Path) -> Path | None:
    """Return the folder of a run's fleet: the one around it, or the one of COVEY_FLEET."""
    if (run.parent / "fleet.toml").is_file():
        return run.parent
    return fleet_named_here() if needs_fleet(run) else None


def fleet_named_here() -> Path | None:
    """Return the fleet's folder that COVEY_FLEET names; None if it names none."""
    named = os.environ.get("COVEY_FLEET")
    return Path(named) if named else None


def fleet_words(run: Path | None) -> list[str]:
    """Return the flag that names the fleet of a run that lies in a fleet's folder."""
    if run is None or not (run.parent / "fleet.toml").is_file():
        return []
    return ["--fleet", str(run.parent)]


def live_run(folder: ServedFolder, place: Path) -> Path | None:
    """Return the run whose fleet a folder is resumed with: itself, a fleet's run, or the base of an on-demand job."""
    kind = kind_of(place)
    if kind == "fleet":
        return place / "run"
    if kind != "ondemand":
        return place if kind == "run" else None
    try:
        base = Path(read_json((place / "ondemand.json").read_bytes())["plan"]["base"])
        return folder.place(base.relative_to(folder.root).as_posix())
    except (OSError, ValueError, KeyError, TypeError, Refusal):
        return None


def base_facts(place: Path) -> dict[str, Any]:
    """Return what a base run is now: its rounds, and hashes of its settings and of its model."""
    # Imported late: it needs torch, which reading requests does not.
    from covey.core.checkpoint import checkpoint_round

    for _ in range(_TRIES):
        before = _stamp(place / CHECKPOINT)
        found = {
            "base_round": checkpoint_round(place),
            "base_config": config_hash(place),
            "base_model": _hash(place / CHECKPOINT, before),
        }
        if _stamp(place / CHECKPOINT) == before:
            return found
    raise Refusal(f"The run {place.name} goes on too quickly to be read; ask again.")


def config_hash(run: Path) -> str:
    """Return a hash of a run's settings but its number of rounds, which a resume may raise."""
    settings = {key: value for key, value in settings_of(run).items() if key != "rounds"}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def settings_of(run: Path) -> dict[str, Any]:
    """Return a run's settings as its folder holds them."""
    try:
        config = read_json((run / "config.json").read_bytes())["config"]
        require(isinstance(config, dict), f"The run {run.name} is damaged: its config.json holds no settings.")
        return dict(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(f"The run {run.name} is damaged: its config.json cannot be read.") from error


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise Refusal(f"The run {path.parent.name} has no finished round to begin at.") from error
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=512)
def _hash(path: Path, stamp: tuple[int, int, int]) -> str:
    """Return a file's hash; `stamp` is its state, for which the hash is remembered."""
    _ = stamp
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Refusal(f"The model of the run {path.parent.name} cannot be read.") from error


def target_text(target: Mapping[str, float] | str) -> str:
    """Return a class mix as the command line takes it; classes with shares above zero, in a fixed order."""
    if isinstance(target, str):
        require(
            len(target) <= 20_000 and bool(NO_PATH.fullmatch(target)),
            "The target is a class mix such as 0=0.5,3=0.5; over HTTP it is no file.",
        )
        return target.strip()
    require(len(target) > 0, 'The target is empty: say what share of which class, such as {"0": 0.5, "3": 0.5}.')
    for label, share in target.items():
        require("," not in label, f"The class '{label[:40]}' has a comma in its name: give its number instead.")
        require(math.isfinite(share) and share >= 0, f"The share of '{label[:40]}' must be at least 0, not {share}.")
    require(sum(target.values()) > 0, "The target is empty: all of its shares are zero.")
    return ",".join(f"{label.strip()}={share!r}" for label, share in sorted(target.items()) if share > 0)


def mix_asked(text: str) -> Any:
    """Return a target in one form for all ways to write it: class to share of one, or the text if it names a mix."""
    pairs = [part.rpartition("=") for part in text.split(",") if part.strip()]
    shares = {label.strip(): _share(share) for label, _, share in pairs}
    total = math.fsum(shares.values())
    if len(shares) < len(pairs) or not 0 < total < math.inf or min(shares.values()) < 0 or "" in shares:
        # Names of clients may differ in case alone.
        return text if text.lower().startswith("local:") else text.lower()
    return {label: f"{share / total:.{_DIGITS}g}" for label, share in sorted(shares.items()) if share > 0}


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
