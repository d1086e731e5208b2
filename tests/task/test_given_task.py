"""A task may be given as a class or an instance, beside its name."""

import pytest
from torch import nn

import covey
from covey.config.schema import Config
from covey.task import Custom, Regression
from covey.task.multilabel import MultiLabel
from tests.task.federations import SETTINGS, diabetes, regression

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (Regression, "regression"),
        (Regression(bins=5), {"name": "regression", "bins": 5}),
        (Regression(centre=(150.0,), scale=(80.0,)), {"name": "regression", "centre": (150.0,), "scale": (80.0,)}),
        ({"name": Regression, "bins": 5}, {"name": "regression", "bins": 5}),
        (MultiLabel(), "multilabel"),
        (Custom(loss="my:loss", better="lower"), {"name": "custom", "loss": "my:loss", "better": "lower"}),
    ],
)
def test_a_task_is_that_of_its_name_and_options(given, named):
    assert Config.of(task=given, dataset="digits").task == Config.of(task=named, dataset="digits").task


def test_a_federation_and_a_run_take_it(tmp_path):
    x, y = diabetes()
    federation = covey.federation(x, y, [row % 4 for row in range(len(y))], task=Regression(bins=5))
    assert federation.dataset.learns.as_mapping()["bins"] == 5
    runs = [
        covey.run({**SETTINGS, "rounds": 1, "task": task}, federation=regression(), out=tmp_path / name)
        for name, task in (("class", Regression), ("name", "regression"))
    ]
    assert runs[0].metrics[-1]["metrics"] == runs[1].metrics[-1]["metrics"]
    assert runs[0].config.as_mapping() == runs[1].config.as_mapping()


def absolute(output, y):
    return (output - y).abs().mean(dim=1)


def fails(output, y):
    return output[:, 7] - y


def test_a_loss_is_given_as_a_function_that_can_be_imported(tmp_path):
    place = f"{__name__}:absolute"
    given = Config.of(task={"name": "custom", "loss": absolute, "metrics": absolute}, dataset="digits").task
    assert (given.options["loss"], given.options["metrics"]) == (place, place)
    x, y = diabetes()
    task = {"name": "custom", "loss": absolute, "better": "lower"}
    federation = covey.federation(x, y, [row % 4 for row in range(len(y))], task=task)
    assert federation.dataset.learns.as_mapping()["loss"] == place
    assert covey.run({**SETTINGS, "rounds": 1}, federation=federation, out=tmp_path / "run").finished
    with pytest.raises(
        covey.Refusal, match=r"task\.loss is a function that other processes cannot import, as a lambda"
    ):
        covey.federation(x, y, [0] * len(y), task={"name": "custom", "loss": lambda output, y: output[:, 0]})


def test_a_loss_that_fails_is_refused_before_the_run(tmp_path):
    x, y = diabetes()
    federation = covey.federation(x, y, [row % 4 for row in range(len(y))], task={"name": "custom", "loss": fails})
    says = (
        r"The loss of the task 'custom' fails on outputs \[2, 1\] and labels \[2, 1\] \(float32\): IndexError: index 7"
    )
    with pytest.raises(covey.Refusal, match=says):
        covey.run(SETTINGS, federation=federation, out=tmp_path / "run")


class Mine(Regression):
    pass


@pytest.mark.parametrize(
    ("given", "says"),
    [(Mine, "not Mine"), (Mine(), "not a Mine"), (nn.Linear(1, 1), "not a Linear"), (3, "not a int")],
)
def test_other_objects_are_no_task(given, says):
    with pytest.raises(covey.Refusal, match=f"task must be a name, .*{says}; a loss of your own is"):
        Config.of(task=given)
