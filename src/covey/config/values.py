"""Settings as nested mappings: reading, checking and merging them."""

import difflib
import re
import tomllib
import typing
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from covey.config.sections import SECTIONS, Local
from covey.errors import Refusal, require
from covey.registries import datasets, environments, models
from covey.registry import Registry, coerce
from covey.trust import is_own, paths_in

PARTS = ("dataset", "task", "environment", "model", "selector", "aggregator", "trainer", "many")
"""Keys of the parts that are chosen by name."""

ENDINGS = {
    ".csv": "csv",
    ".npz": "npz",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "parquet",
    ".arrow": "parquet",
}
"""Ending of a file → the data set that reads it."""

_HOLDING_NO_CODE: Mapping[str, Registry[Any]] = {"dataset": datasets, "environment": environments, "model": models}


_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("lr", "learning_rate", "eta", "step_size"), "local.rate"),
    **dict.fromkeys(("batch_size", "batchsize", "bs"), "local.batch"),
    **dict.fromkeys(("local_epochs", "num_epochs", "n_epochs"), "local.epochs"),
    **dict.fromkeys(("mu", "prox", "prox_mu", "proximal_mu"), "local.proximal"),
    **dict.fromkeys(("wd", "l2"), "local.weight_decay"),
    **dict.fromkeys(("num_clients", "n_clients", "num_users", "nodes", "num_supernodes"), "clients"),
    **dict.fromkeys(("num_rounds", "n_rounds", "comm_round", "communication_rounds", "iterations"), "rounds"),
    **dict.fromkeys(
        ("fraction", "frac", "clients_per_round", "fraction_fit", "fraction_train", "participation", "sample_rate"),
        "cohort",
    ),
    **dict.fromkeys(("algorithm", "algo", "strategy"), "method"),
    **dict.fromkeys(("partition", "partitioner", "split", "heterogeneity"), "environment"),
    **dict.fromkeys(("alpha", "dirichlet_alpha", "beta_dirichlet", "concentration"), "environment.alpha"),
    **dict.fromkeys(("network", "net", "arch", "architecture"), "model"),
    **dict.fromkeys(("data", "data_set"), "dataset"),
    **dict.fromkeys(("label", "label_column", "target_column"), "dataset.label"),
    **dict.fromkeys(("client_column", "site_column"), "dataset.client"),
    **dict.fromkeys(("random_seed", "random_state"), "seed"),
    **dict.fromkeys(("gpu", "cuda"), "device"),
    **dict.fromkeys(("num_workers", "n_jobs", "processes"), "workers"),
    **dict.fromkeys(("server_lr", "server_learning_rate"), "server.rate"),
    **dict.fromkeys(("server_momentum",), "server.beta"),
    **dict.fromkeys(("eval_every", "test_every", "eval_interval"), "evaluate_every"),
}
"""Words that people type → the setting that they mean."""


def parse_bytes(text: str, setting: str = "memory_limit") -> int:
    """Parse `8GiB`, `500 MB` or `1e9` as a number of bytes; `setting` is named in a refusal."""
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in units or float(match[1]) <= 0:
        raise Refusal(f"{setting} must be a size such as 8GiB or 500MB, not '{text}'.")
    return int(float(match[1]) * units[match[2].lower()])


def section_values(section: str, given: Any) -> dict[str, Any]:
    """Return a section's values, with keys and types checked."""
    hints = typing.get_type_hints(SECTIONS[section])
    if not isinstance(given, Mapping):
        raise Refusal(f"{section} must be a section with keys such as {section}.{next(iter(hints))}, not {given!r}.")
    values = {}
    for key, value in given.items():
        if key not in hints:
            raise Refusal(unknown_key(f"{section}.{key}", [f"{section}.{name}" for name in hints]))
        values[key] = coerce(value, hints[key], f"{section}.{key}")
    return values


def local_of(prescribed: Mapping[str, Any], given: Any, rounds: int) -> Local:
    """Return the local training of a run: the method's values, and those given.

    A cosine is as long as the run unless its length is given. It is written down with the other settings, so the rates
    stay as they are if more rounds follow.
    """
    values = {**prescribed, **section_values("local", given)}
    if values.get("schedule") == "cosine" and not values.get("schedule_rounds"):
        values["schedule_rounds"] = max(1, rounds)
    return Local(**values)


def chosen(section: str, given: Any) -> tuple[str | None, dict[str, Any]]:
    """Return the name and options of a part given as `"name"` or `{"name": ..., option: value}`."""
    if given is None or isinstance(given, str):
        return given, {}
    if isinstance(given, Mapping):
        options = dict(given)
        name = options.pop("name", None)
        if section == "task" and any(map(callable, options.values())):
            options = import_module("covey.core.given_task").with_places(options)
        return (None if name is None else part_name(section, name)), options
    if section == "task":
        task: tuple[str, dict[str, Any]] = import_module("covey.core.given_task").name_and_options(given)
        return task
    if section in PARTS:
        return part_name(section, given), {}
    raise Refusal(f"{section} must be a name, or a section with a name and options, not {given!r}.")


def by_ending(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings with a data set that is named by its file, such as table.csv, named by its kind."""
    if not isinstance(given.get("dataset"), (str, Mapping)):
        return given
    name, options = chosen("dataset", given["dataset"])
    kind = None if name is None or is_own(name) else ENDINGS.get(Path(name).suffix.lower())
    return given if kind is None else {**given, "dataset": {"name": kind, "path": name, **options}}


def part_name(section: str, given: Any) -> str:
    """Return the name of a part, or of a method, that is given by name or as a class, a function or an instance."""
    if isinstance(given, str):
        return given
    require(section != "many", f"many must be a name, or a section with a name and options, not {given!r}.")
    # Imported late: it knows tasks and models, layers above configuration.
    if section == "task":
        task: str = import_module("covey.core.given_task").name_and_options(given)[0]
        return task
    name: str = import_module("covey.core.given_parts").name_of_part(section, given)
    return name


def own_names(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of code of somebody's own in settings, by their places such as `selector` or `aggregator.inner`.

    Options of Covey's own data sets, environments and models hold no code; columns of a table may look like it.
    """
    found = {}
    if isinstance(method := given.get("method"), str):
        named = method.split("+", 2) if "+" in method else ()
        found = dict(zip(("selector", "aggregator", "trainer"), named, strict=False)) if named else {"method": method}
    for section in PARTS:
        if not isinstance(given.get(section), (str, Mapping)):
            continue
        name, options = chosen(section, given[section])
        found |= {section: name} if name is not None else {}
        registry = _HOLDING_NO_CODE.get(section)
        if registry is not None and name is not None and not is_own(name) and name not in registry.plugin_names():
            continue
        for option, value in options.items():
            for number, path in enumerate(paths_in(value), start=1):
                found[f"{section}.{option}" if number == 1 else f"{section}.{option} ({number})"] = path
    return {where: name for where, name in found.items() if is_own(name)}


def unknown_key(key: str, known: list[str]) -> str:
    """Return the sentence that says that there is no such setting."""
    meant = setting_meant(key)
    close = [meant] if meant and meant != key else difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"There is no setting '{key}'.{hint} Known: {', '.join(known)}; 'covey list settings' explains each."


def setting_meant(word: str) -> str | None:
    """Return the setting that people mean by a word, such as local.rate by lr; None if there is none."""
    last = word.lower().replace("-", "_").rpartition(".")[2]
    if last in _WORDS:
        return _WORDS[last]
    homes = [f"{name}.{last}" for name, section in SECTIONS.items() if last in typing.get_type_hints(section)]
    return homes[0] if homes else None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a configuration file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refusal(f"The configuration file {path} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(f"The configuration file {path} is not valid TOML: {error}.") from error


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`, section by section.

    Parts may be given as objects; here they get names.

    Naming another part (`environment = "iid"` over a section about `dirichlet`) drops the old part's options, and so
    does naming another optimiser of the server.
    """
    merged = dict(base)
    for key, value in over.items():
        if key in (*PARTS, *SECTIONS):
            old_name, old = chosen(key, merged.get(key))
            name, options = chosen(key, value)
            if name is not None and old_name is not None and name != old_name:
                old = {}
            if key == "server" and old.get("optimizer") not in (None, options.get("optimizer", old.get("optimizer"))):
                old = {}
            name = name or old_name
            merged[key] = {**({"name": name} if name else {}), **old, **options}
        else:
            merged[key] = part_name(key, value) if key == "method" and value is not None else value
    return merged


def assignment(text: str) -> dict[str, Any]:
    """Parse `local.rate=0.1` as a nested mapping."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise Refusal(f"'{text}' is not of the form key=value, such as local.rate=0.1.")
    return nested(key, value.strip())


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return `("local.rate", 0.1)` as `{"local": {"rate": 0.1}}`."""
    section, dot, option = key.partition(".")
    return {section: {option: value}} if dot else {section: value}
