"""Layers of users' own models, trained as a stack and one after another, with the same result."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import covey
from covey.model.layers import adopt_layers
from covey.model.layout import Layout
from covey.model.recurrent_layers import for_stacks
from tests.model.own_models import Indexed, InDict, InObject, InTuple, Lora, OnlyTensor, Tied, Transfer

GIVEN: dict[str, Any] = {
    "clients": 3,
    "cohort": 2,
    "rounds": 1,
    "environment": {"name": "dirichlet", "alpha": 1.0},
    "local": {"batch": 200, "epochs": 1, "rate": 0.1},
    "precision": "fp64",
    "workers": 1,
}


class OnRows(nn.Module):
    """A layer between two linear ones, on the eight rows of an image: `[n, 8 rows, 8 numbers]`."""

    def __init__(self, layer: nn.Module, wide: int, *, channels: bool = False) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(8, 8), layer, nn.Linear(wide, 10)
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.first(x.flatten(1).unflatten(1, (8, 8))))
        x = x[0] if isinstance(x, tuple) else x
        out: Tensor = self.last(x.flatten(1))
        return out


class OnImages(nn.Module):
    """Layers on images, and a linear one."""

    def __init__(self, *layers: nn.Module, wide: int) -> None:
        super().__init__()
        self.layers, self.last = nn.Sequential(*layers), nn.Linear(wide, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.layers(x).flatten(1))
        return out


class SelfAttention(nn.Module):
    """Attention with every option, of rows to themselves."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.attention = nn.MultiheadAttention(8, 2, **options)

    def forward(self, x: Tensor) -> Tensor:
        first = self.options.get("batch_first", False)
        x = x if first else x.transpose(0, 1)
        ahead = torch.ones(8, 8, dtype=torch.bool).triu(1)
        padded = torch.zeros(x.shape[0 if first else 1], 8, dtype=torch.bool)
        padded[:, 7] = True
        out, weights = self.attention(x, x, x, attn_mask=ahead, key_padding_mask=padded)
        out = out if first else out.transpose(0, 1)
        return torch.cat([out, weights], dim=-1)


class Fused(nn.Module):
    """PyTorch's fused attention, called as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class FromStart(nn.Module):
    """A recurrent layer with states to begin with, whose last states are used."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.start = nn.Parameter(torch.ones(1, 1, 6) / 2)

    def forward(self, x: Tensor) -> Tensor:
        begin = self.start.expand(1, len(x), 6).contiguous()
        lstm = isinstance(self.layer, nn.LSTM)
        out, last = self.layer(x, (begin, begin) if lstm else begin)
        return torch.cat([out.flatten(1), *(one[0] for one in (last if lstm else (last,)))], dim=1)


class Words(nn.Module):
    """An embedding of an image's shades, and rows of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(4, 3), nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.table(x.flatten(1).sign().long() + 1).flatten(1))
        return out


def encoder(**options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)


LAYERS = {
    "layer-norm": lambda: OnRows(nn.LayerNorm(8), 64),
    "group-norm": lambda: OnImages(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), wide=144),
    "rms-norm": lambda: OnRows(nn.RMSNorm(8), 64),
    "instance-norm": lambda: OnImages(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), wide=144),
    "attention": lambda: OnRows(SelfAttention(dropout=0.2, batch_first=True), 128),
    "attention-options": lambda: OnRows(SelfAttention(bias=False, add_bias_kv=True, add_zero_attn=True), 144),
    "attention-projections": lambda: OnRows(SelfAttention(kdim=8, vdim=8, bias=True), 128),
    "fused-attention": lambda: OnRows(Fused(), 64),
    "transformer": lambda: OnRows(nn.TransformerEncoder(encoder(dropout=0.2), 2), 64),
    "transformer-norm-first": lambda: OnRows(encoder(norm_first=True, activation="gelu"), 64),
    "transposed": lambda: OnImages(nn.ConvTranspose2d(1, 3, 3, stride=2, padding=1), wide=675),
    "transposed-1d": lambda: OnRows(nn.ConvTranspose1d(8, 4, 3), 40),
    "transposed-3d": lambda: OnImages(nn.Unflatten(1, (1, 1)), nn.ConvTranspose3d(1, 2, 2), wide=324),
    "convolution-1d": lambda: OnRows(nn.Conv1d(8, 4, 3, padding=1, padding_mode="circular"), 32),
    "convolution-3d": lambda: OnImages(nn.Unflatten(1, (1, 1)), nn.Conv3d(1, 2, (1, 3, 3)), wide=72),
    "gru": lambda: OnRows(nn.GRU(8, 6, num_layers=2, bidirectional=True, dropout=0.3, batch_first=True), 96),
    "gru-without-bias": lambda: OnRows(FromStart(nn.GRU(8, 6, bias=False, batch_first=True)), 54),
    "lstm": lambda: OnRows(FromStart(nn.LSTM(8, 6, batch_first=True)), 60),
    "rnn": lambda: OnRows(FromStart(nn.RNN(8, 6, nonlinearity="relu", batch_first=True)), 54),
    "embedding": Words,
    "frozen": Transfer,
    "adapter": Lora,
    "tied": lambda: Tied((1, 8, 8), 10),
    "integers": Indexed,
    "dict": lambda: InDict((1, 8, 8), 10),
    "one-tensor": lambda: OnlyTensor((1, 8, 8), 10),
    "tuple": lambda: InTuple((1, 8, 8), 10),
    "object": lambda: InObject((1, 8, 8), 10),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_stack_computes_what_one_model_does(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    module = LAYERS[name]()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*performance drop.*")
        stacked = covey.run(GIVEN, model=module, runtime="stacked", device="cpu", out=tmp_path / "stacked")
    local = covey.run(GIVEN, model=module, out=tmp_path / "local")
    one, other = (Layout.of(run.model()).read(run.model()) for run in (local, stacked))
    assert (one - Layout.of(module).read(module)).norm() > 1e-4 * one.norm()
    assert (one - other).norm() <= 1e-9 * one.norm()
    assert local.metrics[0]["bytes_up"] == stacked.metrics[0]["bytes_up"]
    assert local.metrics[0]["loss"] == pytest.approx(stacked.metrics[0]["loss"], rel=1e-9)


@pytest.mark.parametrize("name", ["attention", "transformer", "gru", "lstm", "rnn"])
def test_layers_in_another_form_compute_what_pytorch_does(name: str) -> None:
    torch.manual_seed(4)
    module = LAYERS[name]().eval()
    x = torch.rand(5, 1, 8, 8)
    expected = module(x)
    names = [one for one, _ in module.named_parameters()]
    adopt_layers(module)
    assert [one for one, _ in module.named_parameters()] == names
    assert torch.allclose(module(x), expected, atol=1e-6)
    assert torch.allclose(for_stacks(module)(x), expected, atol=1e-6)


def test_single_samples_have_gradients_of_their_own_through_a_gru(tmp_path: Path) -> None:
    torch.manual_seed(5)
    given = {**GIVEN, "model": LAYERS["gru"](), "trainer": {"name": "dp-sgd", "noise": 0.1, "clip": 0.5}}
    runs = [
        covey.run(given, out=tmp_path / "local"),
        covey.run(given, runtime="stacked", device="cpu", out=tmp_path / "stacked"),
    ]
    one, other = (Layout.of(run.model()).read(run.model()) for run in runs)
    assert (one - other).norm() <= 1e-9 * one.norm()


def test_the_same_masks_are_drawn_again_in_attention_and_recurrent_layers(tmp_path: Path) -> None:
    for name in ("attention", "gru"):
        torch.manual_seed(6)
        module = LAYERS[name]()
        first, second = (covey.run(GIVEN, model=module, out=tmp_path / f"{name}{turn}") for turn in range(2))
        assert first.metrics[0]["loss"] == second.metrics[0]["loss"]
        for layer in module.modules():
            if isinstance(layer, nn.MultiheadAttention | nn.GRU):
                layer.dropout = 0.0
        without = covey.run(GIVEN, model=module, out=tmp_path / f"{name}-without")
        assert without.metrics[0]["train_loss"] != first.metrics[0]["train_loss"]


def test_instance_norm_with_running_statistics_is_refused_in_a_stack(tmp_path: Path) -> None:
    module = OnImages(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True), wide=144)
    with pytest.raises(covey.Refusal, match=r"layers\.1 is an instance norm with running statistics"):
        covey.run(GIVEN, model=module, runtime="stacked", device="cpu", out=tmp_path / "run")
