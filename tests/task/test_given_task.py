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


class Mine(Regression):
    pass


@pytest.mark.parametrize(
    ("given", "says"),
    [(Mine, "not Mine"), (Mine(), "not a Mine"), (nn.Linear(1, 1), "not a Linear"), (3, "not a int")],
)
def test_other_objects_are_no_task(given, says):
    with pytest.raises(covey.Refusal, match=f"task must be a name, .*{says}; a loss of your own is"):
        Config.of(task=given)
