"""A comparison's folder that is asked for more: seeds, methods and rounds are added, all else is refused by name."""

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.config.same_settings import flat
from covey.config.schema import Config
from covey.core.checkpoint import FORMAT
from covey.core.runtime_traits import traits_of
from covey.environment.federated_data import Federation
from covey.errors import Refusal, require
from covey.job.comparison.plan import own_names_of, places_of, variants_of
from covey.job.experiment import Experiment
from covey.job.extension import require_extensible, with_rounds
from covey.job.runs import Run

_NAMED = 4
"""Most settings that a refusal names."""

Difference = tuple[str, Any, Any]
"""A setting, its value in the folder, and the one that is asked for."""


def same(begun: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """True if two plans ask for the same runs, however their settings are written."""
    alike = all(begun[key] == asked[key] for key in ("methods", "seeds"))
    with suppress(Refusal):
        return alike and not differences(begun, asked)
    return False


def with_more_runs(
    folder: Path, begun: Mapping[str, Any], asked: Mapping[str, Any], federation: Federation | None
) -> dict[str, Any]:
    """Return the plan of a folder with the seeds, methods and rounds that are asked for; refuse all else."""
    found = differences(begun, asked)
    longer = _longer(begun, found)
    _require_same(folder, [one for one in found if not (longer and one[0] == "rounds")])
    if longer:
        _require_longer_runs(folder, begun, asked, federation)
    if not longer and all(begun[key] == asked[key] for key in ("methods", "seeds")):
        return dict(begun)
    # Labels name folders, so that values that vary stay as they were written first.
    return {**asked, "format": begun["format"], "vary": begun["vary"]}


def differences(begun: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Difference]:
    """Return what differs for the runs of a folder's plan. More methods and more seeds are no difference."""
    found: list[Difference] = []
    for key in ("methods", "seeds"):
        if not set(begun[key]) <= set(asked[key]):
            found.append((key, _spelled(begun[key]), _spelled(asked[key])))
    code = own_names_of(begun), own_names_of({**asked, "methods": [*begun["methods"]]})
    plain: list[Difference] = [(key, begun.get(key), asked.get(key)) for key in ("target", "fairness")]
    plain += [(where, code[0].get(where), code[1].get(where)) for where in {**code[0], **code[1]}]
    found += [one for one in plain if one[1] != one[2]]
    shapes = [[(key, len(values)) for key, values in plan["vary"].items()] for plan in (begun, asked)]
    if shapes[0] != shapes[1]:
        found.append(("vary", _varied(begun["vary"]), _varied(asked["vary"])))
    # Code that the folder alone names is not imported.
    return found or _differing_settings(begun, asked)


def _differing_settings(begun: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Difference]:
    found: dict[str, Difference] = {}
    for before, now in _pairs(begun, asked):
        was, given = flat(before.as_mapping()), flat(now.as_mapping())
        for key in {**was, **given}:
            if was.get(key) != given.get(key):
                found.setdefault(key, (key, was.get(key), given.get(key)))
    return list(found.values())


def _pairs(begun: Mapping[str, Any], asked: Mapping[str, Any]) -> list[tuple[Config, Config]]:
    """Return the settings of each variant of the folder, as they were and as they are asked for, for one seed."""
    seeds = begun["seeds"][:1]
    was = variants_of({**begun, "seeds": seeds})
    now = variants_of({**asked, "seeds": seeds, "format": begun["format"]})
    by_method = {method: [one.configs[0] for one in now if one.method == method] for method in asked["methods"]}
    return [
        pair
        for method in begun["methods"]
        for pair in zip([one.configs[0] for one in was if one.method == method], by_method[method], strict=True)
    ]


def _longer(begun: Mapping[str, Any], found: Sequence[Difference]) -> bool:
    """True if the comparison is asked for with more rounds."""
    more = next((one for one in found if one[0] == "rounds"), None)
    return more is not None and "rounds" not in begun["vary"] and more[2] > more[1]


def _require_same(folder: Path, found: Sequence[Difference]) -> None:
    told = ", ".join(f"{key} is {_or_none(was)} there and {_or_none(now)} here" for key, was, now in found[:_NAMED])
    more = f", and {len(found) - _NAMED} more settings differ" if len(found) > _NAMED else ""
    require(
        not found,
        f"The folder {folder} holds another comparison: {told}{more}. More seeds, methods and rounds can be added to "
        "it; for anything else choose another --out.",
    )


def _require_longer_runs(
    folder: Path, begun: Mapping[str, Any], asked: Mapping[str, Any], federation: Federation | None
) -> None:
    """Refuse more rounds for runs that would have been others with more rounds, before any of them begins."""
    require(begun["format"] == FORMAT, f"{folder} was made by an earlier version of Covey: more rounds begin it anew.")
    for _, now in _pairs(begun, asked):
        require(not traits_of(now.runtime).live, "Runs on a fleet are not made longer: begin the comparison anew.")
        experiment = Experiment.of(replace(now, runtime="local", workers=1), federation)
        with closing(experiment.runtime):
            require_extensible(experiment.method, now)
    rounds = {label: now.rounds for label, now in _by_label(begun, asked).items()}
    for label, _, place in places_of(folder, begun):
        if (place / "config.json").is_file():
            config = Run.open(place).config
            if config.rounds < rounds[label]:
                with_rounds(config, rounds[label], place)


def _by_label(begun: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Config]:
    labels = [one.label for one in variants_of({**begun, "seeds": begun["seeds"][:1]})]
    return dict(zip(labels, [now for _, now in _pairs(begun, asked)], strict=True))


def _spelled(values: Sequence[Any]) -> str:
    return ",".join(map(str, values))


def _varied(vary: Mapping[str, Sequence[Any]]) -> str | None:
    return " ".join(f"{key}={_spelled(values)}" for key, values in vary.items()) or None


def _or_none(value: Any) -> Any:
    return "nothing" if value is None else value
