"""Fields of forms: what the command line's flags are to pages, and what a filled form means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.config.values import assignment, nested, overlay
from covey.errors import Refusal, require
from covey.serve.job_request import JobRequest, analysis_request, comparison_request, ondemand_request, run_request
from covey.serve.served_folder import ServedFolder


@dataclass(frozen=True)
class FormField:
    """A flag of a command as a field of a form."""

    name: str
    """Name of the parameter, such as `insight_dp`."""
    flag: str
    metavar: str
    help: str
    panel: str = ""
    switch: bool = False
    """True for a flag without a value."""
    repeated: bool = False
    """True if the flag may be given several times: a line each."""
    needed: bool = False
    default: str = ""
    suggestions: tuple[str, ...] = ()


def filled_request(kind: str, fields: Sequence[FormField], form: Mapping[str, str], folder: ServedFolder) -> JobRequest:
    """Return the request that a filled form stands for."""
    given = _values(fields, form)
    if kind == "comparison":
        own = {key: given.pop(key, None) for key in ("methods", "seeds", "vary", "target", "fairness")}
        return comparison_request(
            [name.strip() for name in str(own["methods"] or "").split(",") if name.strip()],
            _seeds(str(own["seeds"] or "3")),
            _vary(own["vary"] or []),
            None if own["target"] is None else _number(own["target"], "target"),
            bool(own["fairness"]),
            _settings(given),
        )
    if kind == "analysis":
        own = {key: given.pop(key, None) for key in ("insight", "rounds", "level", "from_")}
        rounds = None if own["rounds"] is None else int(_number(own["rounds"], "rounds"))
        level = _number(own["level"] or "0.05", "level")
        return analysis_request(own["from_"], str(own["insight"] or "head"), rounds, level, _settings(given))
    if kind == "ondemand":
        names = ("estimator", "rounds", "pairing", "survey", "insight_dp", "continued", "without")
        own = {key: given.pop(key, None) for key in names}
        require("base" in given, "Say which run the model begins at.")
        base, target = str(given.pop("base")), str(given.pop("target", ""))
        require(bool(target), "Say what mix the model is for, such as 0=0.5,3=0.3,7=0.2.")
        own["rounds"] = int(_number(own["rounds"] or "50", "rounds"))
        return ondemand_request(folder, base, target, **own, settings=_settings(given))
    return run_request(_settings(given))


def _values(fields: Sequence[FormField], form: Mapping[str, str]) -> dict[str, Any]:
    """Return what was filled in, by the names of the fields; empty fields count as not given."""
    known = {field.name: field for field in fields}
    given: dict[str, Any] = {}
    for name, text in form.items():
        if name not in known or not text.strip():
            continue
        if known[name].switch:
            given[name] = True
        elif known[name].repeated:
            given[name] = [line.strip() for line in text.splitlines() if line.strip()]
        else:
            given[name] = text.strip()
    return given


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as the command line reads its flags: --poison, --attack and --attackers are short for others."""
    chosen = dict(given)
    more = chosen.pop("set_", [])
    if "poison" in chosen:
        chosen["altered"] = {"poison": chosen.pop("poison")}
    require("attackers" not in chosen or "attack" in chosen, "attackers goes with attack, such as flip.")
    if "attack" in chosen:
        attackers = {"attackers": chosen.pop("attackers")} if "attackers" in chosen else {}
        chosen["attack"] = {"kind": chosen["attack"], **attackers}
    settings: dict[str, Any] = {}
    for key, value in chosen.items():
        settings = overlay(settings, nested(key, value))
    for text in more:
        settings = overlay(settings, assignment(text))
    return settings


def _seeds(text: str) -> int | list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()] if "," in text else int(text)
    except ValueError:
        raise Refusal(f"seeds is a number such as 3, or a list such as 0,4,7, not '{text[:40]}'.") from None


def _vary(lines: Sequence[str]) -> dict[str, list[str]]:
    sweep = {}
    for text in lines:
        key, equals, values = text.partition("=")
        require(bool(equals and values), f"'{text[:80]}' is not of the form key=value1,value2.")
        sweep[key.strip()] = [value.strip() for value in values.split(",") if value.strip()]
    return sweep


def _number(text: Any, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refusal(f"{name} must be a number, not '{str(text)[:40]}'.") from None
