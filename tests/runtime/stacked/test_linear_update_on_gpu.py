"""Tests that need a GPU: linear layers moved by one operator, against float64 and against the local runtime."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from covey import Config
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.model import build_model
from covey.model.layout import Layout
from covey.runtime.local import LocalRuntime
from covey.runtime.stacked.autotune import read_cache
from covey.runtime.stacked.lane_step import COMPUTE_DTYPES
from covey.runtime.stacked.linear_update_check import worst_update_error
from covey.runtime.stacked.split_linear import SETTING
from covey.runtime.stacked.stacked_runtime import StackedRuntime
from tests.runtime.stacked.test_linear_update_check import ALL, PLAIN

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SIZES = [(3136, 512, 10), (12544, 128, 10), (70, 33, 7), (129, 16, 1), (784, 200, 400)]


@pytest.mark.parametrize("terms", [PLAIN, ALL, replace(PLAIN, momentum=True), replace(PLAIN, proximal=True)])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize(("inputs", "outputs", "batch"), SIZES)
def test_the_kernel_is_right(monkeypatch, inputs, outputs, batch, precision, terms):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", precision != "fp32")
    device, dtype = torch.device("cuda"), COMPUTE_DTYPES[precision]
    limit = 2e-3 if precision == "tf32" else 1e-5
    assert worst_update_error(nn.Linear(inputs, outputs), batch, dtype, device, terms) <= limit


@pytest.mark.parametrize("work", [{}, {"momentum": 0.9, "weight_decay": 1e-2, "proximal": 0.1}], ids=str)
@pytest.mark.parametrize(("precision", "limit"), [("tf32", 3e-2), ("bf16", 1e-1)])
def test_a_step_that_moves_a_layer_by_one_operator_is_that_of_the_local_runtime(
    tmp_path, monkeypatch, precision, limit, work
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(SETTING, "1")
    # It is taken however long it takes.
    seconds = iter(range(100, 0, -1))
    monkeypatch.setattr("covey.runtime.stacked.autotune.replay_seconds", lambda graph, repeats: next(seconds))
    dataset = {"name": "synthetic", "shape": (1, 16, 16), "train": 40, "test": 20}
    federation = build_federation(Config.of({"dataset": dataset, "environment": "iid", "clients": 4}))
    change = {}
    for name, make in (("local", LocalRuntime), ("stacked", StackedRuntime)):
        module = build_model("mlp", {"hidden": (512,)}, federation.dataset.shape, federation.dataset.classes, 0)
        start = Layout.of(module).read(module)
        more = {"workers": 1} if name == "local" else {"device": "cuda", "precision": precision}
        runtime = make(federation, module, **more)
        order = Order(1, np.arange(4), start, Local(epochs=1, batch=4, rate=0.1, **work))
        change[name] = start - runtime.execute(order).states.cpu()
        runtime.close()
    assert list(read_cache("updates").values()) == [True]
    for mine, theirs in zip(change["local"], change["stacked"], strict=True):
        assert (mine - theirs).norm() / mine.norm() <= limit
