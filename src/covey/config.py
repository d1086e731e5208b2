"""Configuration: one typed, validated object, whether it came from flags, a TOML file or a Python call.

A configuration is given as a nested mapping. Parts are named, with their options beside the name:

    {"method": "fedavg", "rounds": 100,
     "environment": {"name": "dirichlet", "alpha": 0.1},   # or just "dirichlet"
     "local": {"rate": 0.05, "epochs": 1}}

Values come in three layers, later ones winning: defaults, what the method prescribes (FedProx its
proximal term), what the user gave.
"""

import difflib
import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from covey.environments.alterations import Alterations
from covey.errors import Refusal, require
from covey.registry import coerce


@dataclass(frozen=True, kw_only=True)
class Local:
    """Local SGD, as every client of a round runs it."""

    epochs: int = 5
    """Passes over the client's samples."""
    batch: int = 10
    """Samples per step; 0 takes all of the client's samples in one step."""
    rate: float = 0.1
    """Learning rate of the first epoch of the first round."""
    decay: float = 1.0
    """Factor on the rate after every local epoch, carried over rounds."""
    momentum: float = 0.0
    """Heavy-ball momentum; starts from zero in every round."""
    weight_decay: float = 0.0
    """L2 penalty on the parameters."""
    proximal: float = 0.0
    """FedProx's μ: pull towards the model that was received."""
    crop: int = 0
    """Random crop after padding by this many pixels; 0 switches it off."""
    flip: bool = False
    """Random horizontal flip."""

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"local.epochs must be at least 1, not {self.epochs}.")
        require(self.batch >= 0, f"local.batch must be at least 1, or 0 for all samples at once, not {self.batch}.")
        require(self.rate > 0, f"local.rate must be above 0, not {self.rate:g}.")
        require(0 < self.decay <= 1, f"local.decay is a fraction in (0, 1], not {self.decay:g}.")
        require(0 <= self.momentum < 1, f"local.momentum must be in [0, 1), not {self.momentum:g}.")
        require(self.weight_decay >= 0, f"local.weight_decay must not be negative, not {self.weight_decay:g}.")
        require(self.proximal >= 0, f"local.proximal must not be negative, not {self.proximal:g}.")
        require(self.crop >= 0, f"local.crop must not be negative, not {self.crop}.")

    def rate_at(self, round: int, epoch: int) -> float:
        """The learning rate in local epoch `epoch` (from 0) of round `round` (from 1)."""
        return self.rate * self.decay ** ((round - 1) * self.epochs + epoch)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What clients run on. The defaults are equal clients that are always there."""

    speed: float = 1000.0
    """Samples that the median client trains on in a second."""
    bandwidth: float = 1e6
    """Bytes that the median client sends or receives in a second."""
    spread: float = 0.0
    """Standard deviation of the logarithm of speed and bandwidth over clients; 1 puts 1 in 20 at 7 times slower."""
    availability: float = 1.0
    """Share of the clients that can be reached in a round, drawn anew every round."""
    dropout: float = 0.0
    """Probability that an invited client does not answer."""
    deadline: float = 0.0
    """Seconds after which the server stops waiting; later replies are lost. 0 waits for everyone."""

    def __post_init__(self) -> None:
        require(self.speed > 0, f"devices.speed must be above 0, not {self.speed:g}.")
        require(self.bandwidth > 0, f"devices.bandwidth must be above 0, not {self.bandwidth:g}.")
        require(self.spread >= 0, f"devices.spread must not be negative, not {self.spread:g}.")
        require(0 < self.availability <= 1, f"devices.availability is a fraction in (0, 1], not {self.availability:g}.")
        require(0 <= self.dropout < 1, f"devices.dropout must be in [0, 1), not {self.dropout:g}.")
        require(self.deadline >= 0, f"devices.deadline must not be negative, not {self.deadline:g}.")


SECTIONS: dict[str, type[Local] | type[Alterations] | type[Devices]] = {
    "local": Local,
    "altered": Alterations,
    "devices": Devices,
}
"""Sections of typed values, beside the parts that are chosen by name."""


@dataclass(frozen=True)
class Choice:
    """A part chosen by name, with all of its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_mapping(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}


_PARTS = ("dataset", "environment", "model", "selector", "aggregator", "many")

_ASIDE = ("workers", "data_dir")
"""Settings that change no result."""

_NAMED = 3
"""Settings that a refusal names."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides what a run computes. Made by `Config.of`; all values are resolved."""

    method: str
    dataset: Choice
    environment: Choice
    model: Choice
    selector: Choice | None
    aggregator: Choice | None
    many: Choice | None
    local: Local
    altered: Alterations = field(default_factory=Alterations)
    """Clients whose images look different, or whose labels are wrong."""
    devices: Devices = field(default_factory=Devices)
    """How fast clients are, when they can be reached, whether they answer."""
    clients: int = 60
    """Number of clients in the federation."""
    cohort: int = 6
    """Clients invited each round: a count, or a fraction of the clients such as 0.1."""
    rounds: int = 50
    """Rounds to run."""
    seed: int = 0
    """Decides data split, initialisation and every draw."""
    evaluate_every: int = 1
    """Rounds between evaluations on the test set; the last round is always evaluated."""
    runtime: str = "local"
    """What executes the clients' work."""
    workers: int = 0
    """Worker processes of the local runtime; 0 is one per core. Never changes a result."""
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    """Arithmetic of client work; bf16 keeps an fp32 master copy, tf32 is a GPU's faster fp32 (fp32 on a CPU)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the stacked runtime computes; auto is a GPU, or else the local runtime in its place."""
    memory_limit: str | None = None
    """Device memory that the stacked runtime may use, such as 8GiB; larger cohorts are split."""
    data_dir: str | None = None
    """Folder with data sets; COVEY_DATA where it is not given."""

    @property
    def memory_bytes(self) -> int:
        """The memory limit in bytes; 0 is none."""
        return parse_bytes(self.memory_limit) if self.memory_limit else 0

    @classmethod
    def of(cls, given: Mapping[str, Any] | None = None, /, **more: Any) -> "Config":
        """The configuration that a mapping describes, checked in full."""
        from covey.resolution import resolve

        return resolve({**(given or {}), **more})

    @classmethod
    def stored(cls, mapping: Mapping[str, Any]) -> "Config":
        """The configuration of a run folder; its selector, aggregator and method need not be here."""
        from covey.resolution import resolve

        return resolve(mapping, stored=True)

    def as_mapping(self) -> dict[str, Any]:
        """A mapping that `Config.of` turns into this configuration again."""
        mapping: dict[str, Any] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Choice):
                mapping[spec.name] = value.as_mapping()
            elif spec.name in SECTIONS:
                mapping[spec.name] = asdict(value)
            elif value is not None:
                mapping[spec.name] = value
        return mapping


def parse_bytes(text: str) -> int:
    """`8GiB`, `500 MB` or `1e9` as a number of bytes."""
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in units or float(match[1]) <= 0:
        raise Refusal(f"memory_limit must be a size such as 8GiB or 500MB, not '{text}'.")
    return int(float(match[1]) * units[match[2].lower()])


def plain_fields() -> dict[str, Any]:
    """Name and type of the configuration's plain values (all but parts and sections)."""
    hints = typing.get_type_hints(Config)
    hints["cohort"] = int | float
    return {name: hint for name, hint in hints.items() if name not in (*_PARTS, *SECTIONS, "method")}


def known_keys() -> list[str]:
    """Top-level keys of a configuration."""
    return ["method", *_PARTS, *SECTIONS, *plain_fields()]


def section_values(section: str, given: Any) -> dict[str, Any]:
    """A section's values, its keys and types checked."""
    hints = typing.get_type_hints(SECTIONS[section])
    if not isinstance(given, Mapping):
        raise Refusal(f"{section} must be a section with keys such as {section}.{next(iter(hints))}, not {given!r}.")
    values = {}
    for key, value in given.items():
        if key not in hints:
            raise Refusal(unknown_key(f"{section}.{key}", [f"{section}.{name}" for name in hints]))
        values[key] = coerce(value, hints[key], f"{section}.{key}")
    return values


def chosen(section: str, given: Any) -> tuple[str | None, dict[str, Any]]:
    """Name and options of a part given as `"name"` or `{"name": ..., option: value}`."""
    if given is None or isinstance(given, str):
        return given, {}
    if isinstance(given, Mapping):
        options = dict(given)
        name = options.pop("name", None)
        return (None if name is None else str(name)), options
    raise Refusal(f"{section} must be a name, or a section with a name and options, not {given!r}.")


def require_same(before: Config, now: Config, run: str, instead: str) -> None:
    """Refuse to go on with a run under other settings than it was begun with; `instead` is what else can be done."""
    was, given = (_flat(config.as_mapping()) for config in (before, now))
    others = [key for key in {**was, **given} if key not in _ASIDE and was.get(key) != given.get(key)]
    begun, wanted = (
        ", ".join(f"{key} = {values.get(key, 'nothing')}" for key in others[:_NAMED]) for values in (was, given)
    )
    more = f" ({len(others) - _NAMED} more settings differ)" if len(others) > _NAMED else ""
    require(
        not others,
        f"{run} was begun with {begun}, and is now given {wanted}{more}. A run keeps its settings: put them back, or "
        f"{instead}.",
    )


def _flat(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


def unknown_key(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"There is no setting '{key}'.{hint} Known: {', '.join(known)}."


def read_toml(path: Path) -> dict[str, Any]:
    """A configuration file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refusal(f"The configuration file {path} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refusal(f"The configuration file {path} is not valid TOML: {error}.") from error


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, section by section.

    Naming another part (`environment = "iid"` over a section about `dirichlet`) drops the old part's options.
    """
    merged = dict(base)
    for key, value in over.items():
        if key in (*_PARTS, *SECTIONS):
            old_name, old = chosen(key, merged.get(key))
            name, options = chosen(key, value)
            if name is not None and old_name is not None and name != old_name:
                old = {}
            name = name or old_name
            merged[key] = {**({"name": name} if name else {}), **old, **options}
        else:
            merged[key] = value
    return merged


def assignment(text: str) -> dict[str, Any]:
    """`local.rate=0.1` as a nested mapping."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise Refusal(f"'{text}' is not of the form key=value, such as local.rate=0.1.")
    return nested(key, value.strip())


def nested(key: str, value: Any) -> dict[str, Any]:
    """`("local.rate", 0.1)` as `{"local": {"rate": 0.1}}`."""
    section, dot, option = key.partition(".")
    return {section: {option: value}} if dot else {section: value}
