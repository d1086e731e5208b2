"""Tests that need a GPU: kernels for many channels against PyTorch in float64, and against the local runtime."""

import numpy as np
import pytest
import torch

from benchmarks.tiles import CHECKED
from covey import Config
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.model import build_model
from covey.model.layout import Layout
from covey.runtime.local import LocalRuntime
from covey.runtime.stacked.autotune import read_cache
from covey.runtime.stacked.lane_step import COMPUTE_DTYPES
from covey.runtime.stacked.pooled_check import TOLERANCES
from covey.runtime.stacked.stacked_runtime import StackedRuntime
from covey.runtime.stacked.tiled_check import SETTING, worst_error

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("number", range(len(CHECKED)))
def test_the_kernels_are_right(monkeypatch, number, precision):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", precision != "fp32")
    layer, image = CHECKED[number]
    dtype = COMPUTE_DTYPES[precision]
    limit = 1e-5 if precision == "fp32" else TOLERANCES[dtype]
    assert worst_error(layer.cuda(), image, dtype, torch.device("cuda"), samples=7) <= limit


@pytest.mark.parametrize(("precision", "limit"), [("tf32", 3e-2), ("bf16", 1e-1)])
def test_a_step_with_tiles_is_that_of_the_local_runtime(tmp_path, monkeypatch, precision, limit):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(SETTING, "1")
    chosen = {"conv1": "kernel", "conv2": "tiles"}
    monkeypatch.setattr(
        "covey.runtime.stacked.graph_capture.candidate_algorithms",
        lambda module, kernels, exact, fused, tiled: [dict(chosen)],
    )
    # Few images: among many, rounding may change which of two nearly equal values a pool takes.
    dataset = {"name": "synthetic", "shape": (3, 32, 32), "train": 24, "test": 20}
    federation = build_federation(Config.of({"dataset": dataset, "environment": "iid", "clients": 4}))
    change = {}
    for name, make in (("local", LocalRuntime), ("stacked", StackedRuntime)):
        module = build_model("pfl-cnn", {}, federation.dataset.shape, federation.dataset.classes, 0)
        start = Layout.of(module).read(module)
        more = {"workers": 1} if name == "local" else {"device": "cuda", "precision": precision}
        runtime = make(federation, module, **more)
        order = Order(1, np.arange(4), start, Local(epochs=1, batch=0, rate=0.1))
        change[name] = start - runtime.execute(order).states.cpu()
        runtime.close()
    assert list(read_cache("tiles").values()) == [chosen]
    for mine, theirs in zip(change["local"], change["stacked"], strict=True):
        assert (mine - theirs).norm() / mine.norm() <= limit
