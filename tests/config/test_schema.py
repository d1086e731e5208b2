import json

import pytest

from covey import Config, Refusal
from covey.config.values import assignment, overlay, read_toml
from covey.job.settings import as_config


def test_flags_file_and_python_make_the_same_configuration(tmp_path, covey_command):
    file = tmp_path / "run.toml"
    file.write_text(
        """
        method = "fedprox"
        clients = 20
        cohort = 0.25
        rounds = 1
        workers = 1
        [environment]
        name = "dirichlet"
        alpha = 0.3
        [local]
        rate = 0.05
        epochs = 1
        """
    )
    from_file = Config.of(read_toml(file))
    from_python = as_config(
        None,
        {
            "method": "fedprox",
            "clients": 20,
            "cohort": 5,
            "rounds": 1,
            "workers": 1,
            "environment": "dirichlet",
            "environment.alpha": 0.3,
            "local": {"rate": 0.05, "epochs": 1},
        },
    )
    flags = "run --method fedprox --clients 20 --cohort 0.25 --rounds 1 --workers 1 --environment dirichlet"
    settings = "--set environment.alpha=0.3 --set local.rate=0.05 --set local.epochs=1"
    assert covey_command(*flags.split(), *settings.split(), "--out", tmp_path / "a").code == 0
    assert covey_command("run", "--config", file, "--out", tmp_path / "b").code == 0
    written = [json.loads((tmp_path / name / "config.json").read_text())["config"] for name in ("a", "b")]
    assert from_file == from_python
    assert written[0] == written[1]
    assert Config.of(written[0]) == from_file
    assert from_file.cohort == 5


def test_flags_win_over_the_file_and_set_wins_over_flags(tmp_path, covey_command):
    file = tmp_path / "run.toml"
    file.write_text('rounds = 9\nclients = 12\n[environment]\nname = "dirichlet"\nalpha = 0.3\n')
    flags = f"run --config {file} --rounds 1 --workers 1 --set clients=10 --out {tmp_path / 'run'}"
    assert covey_command(*flags.split()).code == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (config["rounds"], config["clients"], config["environment"]["alpha"]) == (1, 10, 0.3)


def test_a_resolved_configuration_resolves_to_itself():
    for given in (
        {},
        {"method": "local-only"},
        {"selector": "uniform", "aggregator": {"name": "average", "weighted": False}},
        {"method": "fedprox", "dataset": {"name": "synthetic", "shape": [3, 16, 16]}, "model": "tutorial-cnn"},
    ):
        config = Config.of(given)
        assert Config.of(json.loads(json.dumps(config.as_mapping()))) == config


def test_what_a_method_prescribes_gives_way_to_what_the_user_says():
    assert Config.of(method="fedavg").local.proximal == 0
    assert Config.of(method="fedprox").local.proximal == 0.01
    assert Config.of(method="fedprox", local={"proximal": 0.5}).local.proximal == 0.5


def test_naming_another_part_drops_the_options_of_the_old_one():
    base = {"environment": {"name": "dirichlet", "alpha": 0.1}}
    assert overlay(base, {"environment": "iid"})["environment"] == {"name": "iid"}
    assert overlay(base, {"environment": {"alpha": 1.0}})["environment"] == {"name": "dirichlet", "alpha": 1.0}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"method": "fedagv"}, "There is no method 'fedagv'. Did you mean 'fedavg'?"),
        ({"environment": "dirichlett"}, "Did you mean 'dirichlet'?"),
        ({"dataset": "nothing"}, "There is no dataset 'nothing'."),
        ({"model": "resnet-9000"}, "There is no model 'resnet-9000'."),
        ({"runtime": "abacus"}, "There is no runtime 'abacus'."),
        ({"selector": "best"}, "There is no selector 'best'."),
        ({"roundz": 3}, "There is no setting 'roundz'. Did you mean 'rounds'?"),
        ({"local": {"lr": 0.1}}, "There is no setting 'local.lr'."),
        ({"environment": {"name": "dirichlet", "beta": 1}}, "has no option 'beta'"),
        ({"environment": {"name": "dirichlet", "alpha": "much"}}, "environment.alpha must be a number, not 'much'."),
        ({"model": {"name": "mlp", "hidden": "64,x"}}, "model.hidden must be a whole number, not 'x'."),
        ({"cohort": 0}, "cohort must be from 1 to the number of clients, 60, not 0."),
        ({"clients": 5, "cohort": 6}, "cohort must be from 1 to the number of clients, 5, not 6."),
        ({"cohort": "few"}, "cohort must be a count or a fraction, not 'few'."),
        ({"cohort": 0.0}, "neither a whole number of clients nor a fraction in (0, 1]"),
        ({"cohort": "1.5"}, "neither a whole number of clients nor a fraction in (0, 1]"),
        ({"cohort": "-0.5"}, "neither a whole number of clients nor a fraction in (0, 1]"),
        ({"clients": 0}, "clients must be at least 1, not 0."),
        ({"clients": 2.5}, "clients must be a whole number, not 2.5."),
        ({"rounds": 0}, "rounds must be at least 1, not 0."),
        ({"rounds": "many"}, "rounds must be a whole number, not 'many'."),
        ({"rounds": True}, "rounds must be a whole number, not True."),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"workers": -1}, "workers must be 0 (one per core) to 1,024, not -1"),
        ({"workers": 1025}, "workers must be 0 (one per core) to 1,024, not 1025"),
        ({"precision": "fp8"}, "precision must be one of fp32, tf32, bf16, fp64, not 'fp8'."),
        ({"local": {"rate": -0.1}}, "local.rate must be above 0, not -0.1."),
        ({"local": {"rate": 0}}, "local.rate must be above 0, not 0."),
        ({"local": {"rate": "nan"}}, "local.rate must be a number, not 'nan'."),
        ({"local": {"momentum": 1.0}}, "local.momentum must be in [0, 1), not 1."),
        ({"local": {"optimizer": "rmsprop"}}, "local.optimizer must be one of sgd, adam, adamw, not 'rmsprop'."),
        ({"local": {"clip": -1}}, "local.clip must not be negative, not -1; 0 switches clipping off."),
        (
            {"local": {"optimizer": "adam", "momentum": 0.9}},
            "local.momentum belongs to SGD: with local.optimizer=adam it must be 0, not 0.9.",
        ),
        (
            {"local": {"optimizer": "adamw", "momentum": 0.9}},
            "local.momentum belongs to SGD: with local.optimizer=adamw it must be 0, not 0.9.",
        ),
        ({"local": {"decay": 1.1}}, "local.decay is a fraction in (0, 1], not 1.1."),
        ({"local": {"epochs": 0}}, "local.epochs must be at least 1, not 0."),
        ({"local": {"batch": -1}}, "local.batch must be at least 1"),
        ({"local": {"flip": "maybe"}}, "local.flip must be true or false, not 'maybe'."),
        ({"local": 3}, "local must be a section"),
        ({"method": "local-only", "selector": "uniform"}, "has no selector to choose"),
        ({"method": "fedavg", "selector": "other"}, "leave --method out"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_wrong_settings_are_refused_with_a_sentence(given, sentence):
    with pytest.raises(Refusal) as refusal:
        Config.of(given)
    assert sentence in str(refusal.value)


def test_assignments_need_a_key_and_a_value():
    assert assignment("local.rate=0.1") == {"local": {"rate": "0.1"}}
    with pytest.raises(Refusal, match="not of the form key=value"):
        assignment("local.rate")


def test_broken_toml_is_refused(tmp_path):
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    with pytest.raises(Refusal, match="is not valid TOML"):
        read_toml(tmp_path / "broken.toml")
    with pytest.raises(Refusal, match="cannot be read"):
        read_toml(tmp_path / "absent.toml")


def test_folders_from_before_there_was_adam_mean_sgd_without_clipping():
    mapping = Config.of({"local": {"momentum": 0.5}}).as_mapping()
    del mapping["local"]["optimizer"], mapping["local"]["clip"]
    local = Config.stored(mapping).local
    assert (local.optimizer, local.clip, local.momentum) == ("sgd", 0.0, 0.5)
