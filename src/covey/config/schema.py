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
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from covey.config.choice import Choice, chosen_part
from covey.config.recipe import Recipe, recipe_of
from covey.config.runtime_choice import AUTO, STORED, gpu_here, require_device, runtime_here
from covey.config.sections import SECTIONS, Alterations, Attack, Devices, GuardLimits, Local
from covey.config.server_sections import Averaging, ServerStep
from covey.config.values import (
    PARTS,
    by_ending,
    chosen,
    local_of,
    overlay,
    own_names,
    parse_bytes,
    part_name,
    section_values,
    unknown_key,
)
from covey.errors import Refusal, require
from covey.registries import (
    aggregators,
    datasets,
    environments,
    manymodels,
    methods,
    models,
    runtimes,
    selectors,
    tasks,
    trainers,
)
from covey.registry import coerce
from covey.trust import Trust, refused_names, require_trusted

NATURAL = "natural"
"""The environment of data sets that name their clients (users, sites)."""

GIVEN = "given"
"""Name of the data set and the environment of a federation that was passed in from Python."""


EARLIER: Mapping[str, Any] = {
    "numbering": "environment",
    "guard": {"on": False},
    "dealing": "in-turn",
    "task": "classification",
    "runtime": STORED,
}
"""Settings added later, with the values that hold in folders written before they existed."""

_ATTACKABLE = ("local", "stacked")
"""Runtimes whose clients can be hostile."""

_MOST_CLIENTS, _MOST_WORKERS = 10_000_000, 1024
"""Most clients of a federation, and most worker processes; more would not fit into memory."""

_MOST_IN_TURN = 50_000
"""Most clients that shared samples are dealt to in turn by default: it takes seconds, and memory for every sample."""


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
    trainer: Choice | None
    local: Local
    task: Choice = field(default_factory=lambda: Choice("auto"))
    """What models learn; auto follows from the labels."""
    altered: Alterations = field(default_factory=Alterations)
    """Clients with altered images or wrong labels."""
    devices: Devices = field(default_factory=Devices)
    """Simulated speed, availability and dropout of the clients."""
    guard: GuardLimits = field(default_factory=GuardLimits)
    """What the server believes of clients' updates and sample counts."""
    attack: Attack = field(default_factory=Attack)
    """Hostile clients."""
    server: ServerStep = field(default_factory=ServerStep)
    """The server's optimiser, after the aggregator."""
    averaging: Averaging = field(default_factory=Averaging)
    """The average over rounds that is evaluated."""
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
    dealing: Literal["in-turn", "keyed"] = "in-turn"
    """How clients that share samples get theirs: dealt in turn from shuffled pools, or drawn by a key of each client's,
    when they are asked for. Above 50,000 clients it is keyed unless said otherwise."""
    evaluate_every: int = 1
    """Rounds between evaluations on the test set; the last round is always evaluated."""
    runtime: str = AUTO
    """Runtime that executes the clients' work. `auto` is stacked where there is a GPU, else local; a run's folder holds
    which, and a resume uses the same."""
    workers: int = 0
    """Worker processes of the local runtime; 0 is one per core. Never changes a result."""
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    """Arithmetic of client work; bf16 keeps an fp32 master copy; tf32 is a GPU's faster fp32 (fp32 on a CPU)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the stacked runtime; auto is a GPU, or the local runtime if there is none. With cpu, the runtime `auto`
    is local; with cuda it is stacked, and refused where there is no GPU."""
    memory_limit: str | None = None
    """Device memory that the stacked runtime may use, such as 8GiB; larger cohorts are split."""
    host_memory_limit: str | None = None
    """Memory for what simulated clients keep, such as 8GiB; the rest lies in the run folder alone. Samples that are
    read where they are used stay in memory if they take at most half of it."""
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

    @property
    def host_memory_bytes(self) -> int:
        """Limit of host memory in bytes; 0 is none."""
        return parse_bytes(self.host_memory_limit, "host_memory_limit") if self.host_memory_limit else 0

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


def resolve(
    given: Mapping[str, Any], *, stored: bool = False, earlier: bool = False, refused: Mapping[str, str] | None = None
) -> Config:
    """Check every key, name, option and bound of `given`, and fill in defaults.

    A `stored` configuration may name selectors, aggregators and methods that are not installed. With `earlier`,
    settings that it lacks have the values that held before they existed. Code that is `refused` is not imported.
    """
    kept = set((refused or {}).values())
    given = by_ending({**EARLIER, **given} if earlier else given)
    if stored:
        # Every folder names its task since there are tasks; before, labels were classes.
        given = {"task": EARLIER["task"], **given}
    for key in given:
        if key not in known_keys():
            raise Refusal(unknown_key(key, known_keys()))
    method, recipe = _recipe(given, stored, kept)
    dataset = chosen_part(datasets, given.get("dataset"), "digits", kept, earlier=earlier)
    environment = chosen_part(environments, given.get("environment"), "uniform", kept, earlier=earlier)
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
    if "dealing" not in plain and plain.get("clients", Config.clients) > _MOST_IN_TURN:
        plain["dealing"] = "keyed"
    plain["runtime"] = runtime_here(plain.get("runtime", AUTO), plain.get("device", "auto"))
    config = Config(
        method=method,
        dataset=dataset,
        environment=environment,
        task=chosen_part(tasks, given.get("task"), "auto", kept, stored, earlier=earlier),
        model=chosen_part(models, given.get("model"), "mlp", kept, earlier=earlier),
        selector=chosen_part(
            selectors, given.get("selector"), recipe.selector, kept, stored, recipe.selecting, earlier=earlier
        ),
        aggregator=chosen_part(
            aggregators, given.get("aggregator"), recipe.aggregator, kept, stored, recipe.weighing, earlier=earlier
        ),
        many=_many(method, recipe, given.get("many"), kept, earlier),
        trainer=_trainer(method, recipe, given.get("trainer"), kept, stored=stored, earlier=earlier),
        local=local_of(recipe.local, given.get("local") or {}, plain.get("rounds", Config.rounds)),
        altered=_alterations(given),
        devices=Devices(**section_values("devices", given.get("devices") or {})),
        guard=GuardLimits(**section_values("guard", given.get("guard") or {})),
        attack=Attack(**section_values("attack", given.get("attack") or {})),
        server=_server(recipe, given.get("server") or {}),
        averaging=_averaging(recipe, given.get("averaging") or {}),
        refused={where: name for where, name in own_names(given).items() if name in kept},
        **{**plain, "cohort": _cohort(plain)},
    )
    require(config.clients >= 1, f"clients must be at least 1, not {config.clients}.")
    require(config.clients <= _MOST_CLIENTS, f"clients must be at most {_MOST_CLIENTS:,}, not {config.clients}.")
    require(config.rounds >= 1, f"rounds must be at least 1, not {config.rounds}.")
    require(0 <= config.seed < 2**63, f"seed must be a whole number from 0 to 2^63 - 1, not {config.seed}.")
    require(config.evaluate_every >= 1, f"evaluate_every must be at least 1, not {config.evaluate_every}.")
    require(0 <= config.workers <= _MOST_WORKERS, f"workers must be 0 (one per core) to 1,024, not {config.workers}.")
    runtimes[config.runtime]
    if config.device == "cuda":
        # Imported late: traits are declared in a layer above configuration.
        uses_device = import_module("covey.core.runtime_traits").traits_of(config.runtime).uses_device
        if stored and not uses_device:
            # A device had no effect there once.
            config = replace(config, device="auto")
        elif not stored:
            require_device(config.runtime, config.device, gpu=gpu_here(), uses_device=uses_device)
    for name, section in (("server.optimizer", config.server), ("averaging", config.averaging)):
        require(
            config.many is None or not section,
            f"The method '{method}' keeps many models, and {name} is for methods with one.",
        )
    require(
        not (recipe.resident and config.server),
        f"With '{method}' models stay with the clients, which train on from their own: server.optimizer has no effect.",
    )
    require(
        config.runtime in _ATTACKABLE or not (config.attack or (config.attack.kind == "labels" and not stored)),
        f"Attacks are simulated on the runtimes {' and '.join(_ATTACKABLE)}, not on '{config.runtime}'."
        + (" Wrong labels alone are altered.poison." if config.attack.kind == "labels" else ""),
    )
    _ = config.memory_bytes, config.host_memory_bytes
    return config


def _server(recipe: Recipe, given: Any) -> ServerStep:
    """Return the server's optimiser: the method's, with the values given."""
    given = section_values("server", given)
    return ServerStep(**overlay({"server": dict(recipe.server)}, {"server": given})["server"])


def _averaging(recipe: Recipe, given: Any) -> Averaging:
    """Return the average over rounds: the method's, with the values given; another way to average replaces it."""
    given = section_values("averaging", given)
    prescribed = {name: value for name, value in recipe.averaging.items() if not any(given.values()) or name in given}
    return Averaging(**{**prescribed, **given})


def _alterations(given: Mapping[str, Any]) -> Alterations:
    """Return the alterations; the attack by labels is one."""
    values, attack = (section_values(name, given.get(name) or {}) for name in ("altered", "attack"))
    if attack.get("kind") == "labels":
        share = Attack(**attack).attackers
        require(
            values.get("poison") in (None, 0, share),
            f"attack.kind=labels gives a share of {share:g} of the clients wrong labels (attack.attackers), and "
            f"altered.poison {values.get('poison')}: leave altered.poison out, or the attack.",
        )
        values["poison"] = share
    return Alterations(**values)


def _recipe(given: Mapping[str, Any], stored: bool, refused: Collection[str]) -> tuple[str, Recipe]:
    """Return the method's name and recipe; a selector or aggregator without a method makes a method of its own."""
    selector, _ = chosen("selector", given.get("selector"))
    aggregator, _ = chosen("aggregator", given.get("aggregator"))
    trainer, _ = chosen("trainer", given.get("trainer"))
    third = "" if trainer in (None, "sgd") else f"+{trainer}"
    name = given.get("method")
    name = name if name is None or isinstance(name, str) else part_name("method", name)
    if name is None:
        parts = f"{selector or 'uniform'}+{aggregator or 'average'}{third}"
        name = parts if selector or aggregator or third else "fedavg"
    if name not in methods.names() and "+" in name and selector and aggregator:
        name = f"{selector}+{aggregator}{third}"
    if stored and name not in methods.names() and selector and aggregator:
        return name, Recipe(
            "A method that is not here.", selector=selector, aggregator=aggregator, trainer=trainer or "sgd"
        )
    if name in refused or methods.lacks(name):
        many, _ = chosen("many", given.get("many"))
        return name, Recipe(
            "A method that is not here.", selector=selector, aggregator=aggregator, trainer=trainer or "sgd", many=many
        )
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


def _trainer(
    method: str, recipe: Recipe, given: Any, refused: Collection[str], *, stored: bool, earlier: bool
) -> Choice | None:
    """Return the trainer that is given, or the recipe's; None for methods with many models, which train as they do."""
    if recipe.many is not None or recipe.resident:
        require(given is None, f"The method '{method}' has a training of its own: it takes no trainer.")
        return None
    name, _ = chosen(trainers.section, given)
    require(
        name is None or recipe.trainer in (name, "sgd"),
        f"The method '{method}' has the trainer '{recipe.trainer}', not '{name}'; to combine other parts, give "
        "--selector, --aggregator and --trainer and leave --method out.",
    )
    choice: Choice | None = chosen_part(
        trainers, given, recipe.trainer, refused, stored, recipe.training, earlier=earlier
    )
    return choice


def _many(method: str, recipe: Recipe, given: Any, refused: Collection[str], earlier: bool) -> Choice | None:
    """Return the recipe's method with many models and its options, or None."""
    name, _ = chosen(manymodels.section, given)
    if given is not None and recipe.many is None:
        raise Refusal(f"The method '{method}' keeps one model; there is nothing to set under many.")
    if name is not None and name != recipe.many:
        raise Refusal(f"The method '{method}' stands for '{recipe.many}' under many, not for '{name}'.")
    choice: Choice | None = chosen_part(manymodels, given, recipe.many, refused, earlier=earlier)
    return choice


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
