"""What is typed wrong is answered with one sentence that says what was meant."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

import covey
from covey.cli.catalogue import build_catalogue, settings_list
from covey.cli.main import app
from covey.config.reference import settings_reference
from covey.config.schema import Config


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (["run", "--lr", "0.1"], "'covey run' has no option --lr. Did you mean --set local.rate=VALUE?"),
        (["run", "--alpha", "1"], "Did you mean --set environment.alpha=VALUE?"),
        (["run", "--num-clients", "9"], "Did you mean --clients?"),
        (["runs", "--sate", "x"], "Did you mean --state?"),
        (["fleet", "up", "--client", "3"], "'covey fleet up' has no option --client. Did you mean --clients?"),
        (["resum"], "There is no command 'covey resum'. Did you mean 'covey resume'? Commands: demo, "),
        (["compare", "fedavg"], "Missing option '--methods'. Example: covey compare --methods fedavg,fedprox,iid"),
        (["run", "mine.csv"], "Did you mean --dataset mine.csv? See: covey run --help"),
        (["run", "fedacs"], "Did you mean --method fedacs?"),
        (["show", "a", "b"], "Got unexpected extra argument (b). See: covey show --help"),
        (["run", "--seeds", "3"], "Did you mean --seed? Several are run by covey compare."),
        (["run", "--label", "x"], "Did you mean --set dataset.label=VALUE?"),
        (["run", "--rounds"], "Option '--rounds' requires an argument."),
        (["resume", "x", "--rounds", "many"], "'many' is not a valid int"),
        (["run", "--set", "lr=0.1"], "There is no setting 'lr'. Did you mean 'local.rate'?"),
        (["run", "--set", "local.learning_rate=0.1"], "Did you mean 'local.rate'?"),
        (["run", "--set", "ema=0.9"], "Did you mean 'averaging.ema'?"),
    ],
)
def test_a_wrong_word_is_answered_with_the_one_that_was_meant(covey_command, typed, sentence) -> None:
    said = covey_command(*typed)
    assert said.code == 2
    assert sentence in said.err
    assert said.err.startswith("covey: ") and said.err.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["fleet"]])
def test_no_command_shows_the_help_and_no_error(covey_command, words) -> None:
    said = covey_command(*words)
    assert "Usage: covey" in said.out
    assert said.err == ""


def test_the_version_is_shown(covey_command) -> None:
    said = covey_command("--version")
    assert (said.code, said.out) == (0, f"covey {covey.__version__}\n")


def test_every_setting_is_listed_with_what_it_means(covey_command) -> None:
    listed = {one["name"]: one for one in settings_list()}
    assert list(listed.values()) == build_catalogue()["settings"]
    assert all(one["summary"] for one in listed.values()), [n for n, one in listed.items() if not one["summary"]]
    config = Config.of({})
    for name, one in listed.items():
        section, _, key = name.rpartition(".")
        if section and one["default"]:
            default = getattr(getattr(config, section), key)
            assert str(default).lower() == one["default"].lower(), name
    assert listed["local.rate"]["default"] == "0.1" and "Learning rate" in listed["local.rate"]["summary"]
    shown = covey_command("list", "settings").out
    assert "server.optimizer" in shown and "averaging.ema" in shown
    assert covey_command("list", "settings", "--json").json == list(listed.values())


_ADDS = {
    *(
        "--config",
        "--set",
        "--vary",
        "--draw",
        "--csv",
        "--tensorboard",
        "--target",
        "--target-csv",
        "--drill",
        "--host",
    ),
    *("--from", "--resume", "--fleet", "--client", "--token-file", "--allow-host", "--method"),
}
"""Flags that do something more when they are given, and nothing when they are not."""


def _options(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, below in getattr(command, "commands", {}).items():
        yield from _options(below, (*path, name))
    for one in command.params:
        if one.param_type_name == "option" and not one.is_flag:
            yield " ".join(path), one


def test_help_says_the_default_of_every_flag_with_a_value():
    silent = [
        f"{command} {one.opts[0]}"
        for command, one in _options(typer.main.get_command(app))
        if one.opts[0] not in _ADDS and one.default is None and not one.required and "default" not in (one.help or "")
    ]
    assert silent == []


def test_the_defaults_that_help_says_are_those_of_the_settings():
    defaults = {one["name"]: one["default"] for one in settings_reference() if "." not in one["name"]}
    said = {}
    for command, one in _options(typer.main.get_command(app)):
        if command != "run":
            continue
        name = one.opts[0].removeprefix("--").replace("-", "_")
        if name in defaults and (found := re.search(r"\(default: ([\w.-]+)", one.help or "")):
            said[name] = found[1]
    assert len(said) > 12
    parts = {"selector": "uniform", "aggregator": "average", "trainer": "the", "data_dir": "the"}
    limits = {"memory_limit": "all", "host_memory_limit": "none"}
    assert said == {name: {**defaults, **parts, **limits}[name] for name in said}
