"""Configuration: one typed, validated object, whether it came from flags, a TOML file or a Python call.

A configuration is given as a nested mapping. Parts are named, with their options beside the name:

    {"method": "fedavg", "rounds": 100,
     "environment": {"name": "dirichlet", "alpha": 0.1},   # or just "dirichlet"
     "local": {"rate": 0.05, "epochs": 1}}

Values come in three layers, later ones winning: defaults, the method's prescriptions (FedProx's proximal term), and
the user's values.
"""

import os
import typing
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from covey.config.recipe import Recipe, recipe_of
from covey.config.sections import SECTIONS, Alterations, Attack, Devices, GuardLimits, Local
from covey.config.values import PARTS, chosen, own_names, parse_bytes, section_values, unknown_key
from covey.errors import Refusal, require
from covey.registries import aggregators, datasets, environments, manymodels, methods, models, runtimes, selectors
from covey.registry import Registry, coerce
from covey.trust import Trust, refused_names, require_trusted

NATURAL = "natural"
"""The environment of data sets that name their clients (users, sites)."""

GIVEN = "given"
"""Name of the data set and the environment of a federation that was passed in from Python."""


@dataclass(frozen=True)
class Choice:
    """A part chosen by name, with all of its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_mapping(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}


EARLIER: Mapping[str, Any] = {"numbering": "environment", "guard": {"on": False}}
"""Settings added later, with the values that hold in folders written before they existed."""

_ATTACKABLE = ("local", "stacked")
"""Runtimes whose clients can be hostile."""

_WITHOUT_EFFECT = ("workers", "data_dir")
"""Settings that change no result."""

_MOST_CLIENTS = 10_000_000
"""Most clients of a federation; more would not fit into memory."""

_NAMED = 3
"""Most settings that a refusal names."""


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
    """Clients with altered images or wrong labels."""
    devices: Devices = field(default_factory=Devices)
    """Simulated speed, availability and dropout of the clients."""
    guard: GuardLimits = field(default_factory=GuardLimits)
    """What the server believes of clients' updates and sample counts."""
    attack: Attack = field(default_factory=Attack)
    """Hostile clients."""
    clients: int = 60
    """Number of clients in the federation."""
    cohort: int = 6
    """Clients invited each round: a count, or a fraction of the clients such as 0.1."""
    rounds: int = 50
    """Rounds to run."""
    seed: int = 0
    """Seed of the data split, the initial model and every draw."""
    numbering: Literal["shuffled", "environment"] = "shuffled"
    """How clients are numbered: shuffled by the seed, or in the environment's own order, which may tell what they hold.
    Shuffled also shuffles the places of a cohort in each round."""
    evaluate_every: int = 1
    """Rounds between evaluations on the test set; the last round is always evaluated."""
    runtime: str = "local"
    """Runtime that executes the clients' work."""
    workers: int = 0
    """Worker processes of the local runtime; 0 is one per core. Never changes a result."""
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    """Arithmetic of client work; bf16 keeps an fp32 master copy; tf32 is a GPU's faster fp32 (fp32 on a CPU)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the stacked runtime; auto is a GPU, or the local runtime if there is none."""
    memory_limit: str | None = None
    """Device memory that the stacked runtime may use, such as 8GiB; larger cohorts are split."""
    data_dir: str | None = None
    """Folder with data sets; by default COVEY_DATA."""
    refused: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Code that the folder of this configuration names and that nobody has allowed, by its place; no setting."""

    def require_trusted(self, *sections: str) -> None:
        """Refuse if these sections (by default any) need code that nobody has allowed."""
        if not sections or any(where.partition(".")[0] in sections for where in self.refused):
            require_trusted(self.refused)

    @property
    def memory_bytes(self) -> int:
        """Memory limit in bytes; 0 is none."""
        return parse_bytes(self.memory_limit) if self.memory_limit else 0

    @classmethod
    def of(cls, given: Mapping[str, Any] | None = None, /, **more: Any) -> "Config":
        """Return the configuration that a mapping describes, checked in full."""
        return resolve({**(given or {}), **more})

    @classmethod
    def stored(
        cls, mapping: Mapping[str, Any], *, earlier: bool = True, trust: Trust = False, folder: Path | None = None
    ) -> "Config":
        """Return the configuration of a run folder; its selector, aggregator and method need not be installed.

        Settings that it lacks have the values that held before they existed, or with `earlier=False` their defaults.
        Code of somebody's own that `trust` does not allow is not imported, and refused where it is needed.
        """
        refused = refused_names(own_names(mapping), trust, folder or Path.cwd())
        return resolve(mapping, stored=True, earlier=earlier, refused=refused)

    def as_mapping(self) -> dict[str, Any]:
        """Return a mapping that `Config.of` turns into this configuration again."""
        mapping: dict[str, Any] = {}
        for spec in fields(self):
            if spec.name == "refused":
                continue
            value = getattr(self, spec.name)
            if isinstance(value, Choice):
                mapping[spec.name] = value.as_mapping()
            elif spec.name in SECTIONS:
                mapping[spec.name] = asdict(value)
            elif value is not None:
                mapping[spec.name] = value
        return mapping


def plain_fields() -> dict[str, Any]:
    """Return name and type of the configuration's plain values (all but parts and sections)."""
    hints = typing.get_type_hints(Config)
    hints["cohort"] = int | float
    return {name: hint for name, hint in hints.items() if name not in (*PARTS, *SECTIONS, "method", "refused")}


def known_keys() -> list[str]:
    """Return the top-level keys of a configuration."""
    return ["method", *PARTS, *SECTIONS, *plain_fields()]


def require_same(before: Config, now: Config, run: str, instead: str) -> None:
    """Refuse to resume a run under other settings than it began with; `instead` says what else can be done."""
    was, given = (_flat(config.as_mapping()) for config in (before, now))
    others = [key for key in {**was, **given} if key not in _WITHOUT_EFFECT and was.get(key) != given.get(key)]
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
    """Return settings by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


def resolve(
    given: Mapping[str, Any], *, stored: bool = False, earlier: bool = False, refused: Mapping[str, str] | None = None
) -> Config:
    """Check every key, name, option and bound of `given`, and fill in defaults.

    A `stored` configuration may name selectors, aggregators and methods that are not installed. With `earlier`,
    settings that it lacks have the values that held before they existed. Code that is `refused` is not imported.
    """
    kept = set((refused or {}).values())
    given = {**EARLIER, **given} if earlier else given
    for key in given:
        if key not in known_keys():
            raise Refusal(unknown_key(key, known_keys()))
    method, recipe = _recipe(given, stored)
    dataset = _choice(datasets, given.get("dataset"), "digits", kept, earlier=earlier)
    environment = _choice(environments, given.get("environment"), "uniform", kept, earlier=earlier)
    plain = {
        name: coerce(given[name], hint, name) for name, hint in plain_fields().items() if given.get(name) is not None
    }
    if "data_dir" not in plain and os.environ.get("COVEY_DATA"):
        plain["data_dir"] = os.environ["COVEY_DATA"]
    if environment.name == NATURAL and "clients" not in plain:
        # Imported late: data is a layer above configuration.
        require_trusted({"dataset": dataset.name} if dataset.name in kept else {})
        natural = import_module("covey.environment.natural")
        plain["clients"] = natural.count_clients(dataset.name, plain.get("data_dir"), dict(dataset.options))
    config = Config(
        method=method,
        dataset=dataset,
        environment=environment,
        model=_choice(models, given.get("model"), "mlp", kept, earlier=earlier),
        selector=_choice(
            selectors, given.get("selector"), recipe.selector, kept, stored, recipe.selecting, earlier=earlier
        ),
        aggregator=_choice(
            aggregators, given.get("aggregator"), recipe.aggregator, kept, stored, recipe.weighing, earlier=earlier
        ),
        many=_many(method, recipe, given.get("many"), earlier),
        local=Local(**{**recipe.local, **section_values("local", given.get("local") or {})}),
        altered=_alterations(given),
        devices=Devices(**section_values("devices", given.get("devices") or {})),
        guard=GuardLimits(**section_values("guard", given.get("guard") or {})),
        attack=Attack(**section_values("attack", given.get("attack") or {})),
        refused={where: name for where, name in own_names(given).items() if name in kept},
        **{**plain, "cohort": _cohort(plain)},
    )
    require(config.clients >= 1, f"clients must be at least 1, not {config.clients}.")
    require(config.clients <= _MOST_CLIENTS, f"clients must be at most {_MOST_CLIENTS:,}, not {config.clients}.")
    require(config.rounds >= 1, f"rounds must be at least 1, not {config.rounds}.")
    require(0 <= config.seed < 2**63, f"seed must be a whole number from 0 to 2^63 - 1, not {config.seed}.")
    require(config.evaluate_every >= 1, f"evaluate_every must be at least 1, not {config.evaluate_every}.")
    require(config.workers >= 0, f"workers must be at least 1, or 0 for one per core, not {config.workers}.")
    runtimes[config.runtime]
    require(
        not config.attack or config.runtime in _ATTACKABLE,
        f"Attacks are simulated on the runtimes {' and '.join(_ATTACKABLE)}, not on '{config.runtime}'.",
    )
    _ = config.memory_bytes
    return config


def _alterations(given: Mapping[str, Any]) -> Alterations:
    """Return the alterations; the attack by labels is one."""
    values, attack = (section_values(name, given.get(name) or {}) for name in ("altered", "attack"))
    if attack.get("kind") == "labels":
        values["poison"] = Attack(**attack).attackers
    return Alterations(**values)


def _recipe(given: Mapping[str, Any], stored: bool) -> tuple[str, Recipe]:
    """Return the method's name and recipe; a selector or aggregator without a method makes a method of its own."""
    selector, _ = chosen("selector", given.get("selector"))
    aggregator, _ = chosen("aggregator", given.get("aggregator"))
    name = given.get("method")
    if name is None:
        name = f"{selector or 'uniform'}+{aggregator or 'average'}" if selector or aggregator else "fedavg"
    if not isinstance(name, str):
        raise Refusal(f"method must be a name, not {name!r}.")
    if name not in methods.names() and "+" in name and selector and aggregator:
        name = f"{selector}+{aggregator}"
    if stored and name not in methods.names() and selector and aggregator:
        return name, Recipe("A method that is not here.", selector=selector, aggregator=aggregator)
    recipe = recipe_of(name)
    for section, given_name, own in (
        ("selector", selector, recipe.selector),
        ("aggregator", aggregator, recipe.aggregator),
    ):
        if given.get(section) is not None and own is None:
            raise Refusal(f"The method '{name}' has no {section} to choose or to set options of.")
        if given_name is not None and given_name != own:
            raise Refusal(
                f"The method '{name}' has the {section} '{own}'; to combine other parts, "
                "give --selector and --aggregator and leave --method out."
            )
    return name, recipe


def _many(method: str, recipe: Recipe, given: Any, earlier: bool) -> Choice | None:
    """Return the recipe's method with many models and its options, or None."""
    name, _ = chosen(manymodels.section, given)
    if given is not None and recipe.many is None:
        raise Refusal(f"The method '{method}' keeps one model; there is nothing to set under many.")
    if name is not None and name != recipe.many:
        raise Refusal(f"The method '{method}' stands for '{recipe.many}' under many, not for '{name}'.")
    choice: Choice | None = _choice(manymodels, given, recipe.many, (), earlier=earlier)
    return choice


def _choice(
    registry: Registry[Any],
    given: Any,
    default: str | None,
    refused: Collection[str],
    stored: bool = False,
    prescribed: Mapping[str, Any] | None = None,
    *,
    earlier: bool = False,
) -> Any:
    """Return the chosen part, or the default one, with all of its options; None if there is neither.

    `prescribed` are options of the default part that differ from its own defaults. With `earlier`, options that are
    newer than what was stored have the values that held before they existed.
    """
    name, options = chosen(registry.section, given)
    name = name or default
    if name is None:
        return None
    options = {**(prescribed or {}), **options} if name == default else options
    if name in refused:
        return Choice(name, options)
    try:
        return Choice(name, registry.options(name, options, earlier=earlier))
    except Refusal:
        # The part is gone or has other options by now; resuming the run will refuse.
        if stored:
            return Choice(name, options)
        raise


def _cohort(plain: Mapping[str, Any]) -> int:
    """Return the cohort as a count: given as one, or as a fraction of the clients; by default a tenth."""
    clients: int = plain.get("clients", Config.clients)
    cohort: int | float = plain.get("cohort", 0.1)
    if isinstance(cohort, float):
        require(
            0 < cohort <= 1,
            f"cohort {cohort:g} is neither a whole number of clients nor a fraction in (0, 1].",
        )
        return max(1, round(cohort * clients))
    require(
        1 <= cohort <= clients,
        f"cohort must be from 1 to the number of clients, {clients}, not {cohort}.",
    )
    return cohort
