"""What is typed wrong is answered with one sentence that says what was meant."""

import pytest

import covey
from covey.cli.catalogue import build_catalogue, settings_list
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
        (["compare"], "Missing option '--methods'. See: covey compare --help"),
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
