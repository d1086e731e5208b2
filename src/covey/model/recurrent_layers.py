"""PyTorch's recurrent layers (`nn.GRU`, `nn.LSTM`, `nn.RNN`) for a stack of models, and with dropout from a key.

One model is run by PyTorch's own operation, layer by layer. In a stack, where that has no rule, steps are written out:
a GRU as one operator (`gated_recurrence`), the others step by step. Names and shapes of parameters stay.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from covey.errors import require
from covey.model.dropout import Dropout
from covey.model.gated_recurrence import gated_scan


class _Recurrent(nn.RNNBase):
    """A recurrent layer as PyTorch's, of any number of layers and directions."""

    in_stack = False
    """True in a stack of models."""
    drops: nn.ModuleList
    """Dropout after each layer but the last; empty without dropout."""

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        require(
            not isinstance(input, PackedSequence),
            f"The layer nn.{self.mode.partition('_')[0]} takes padded sequences here, not packed ones.",
        )
        batched = input.dim() == 3
        x = input if batched else input[:, None]
        x = x.transpose(0, 1) if self.batch_first and batched else x
        directions = 2 if self.bidirectional else 1
        begin = self._begin(x, hx, batched)
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                row = layer * directions + direction
                suffix = f"_l{layer}{'_reverse' if direction else ''}"
                of = {name: getattr(self, name + suffix, None) for name in _NAMES}
                out, end = self._layer(x.flip(0) if direction else x, tuple(one[row] for one in begin), of)
                outputs.append(out.flip(0) if direction else out)
                ends.append(end)
            x = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
            if layer < self.num_layers - 1 and len(self.drops):
                # Samples first, so that masks do not depend on the batch size.
                x = self.drops[layer](x.transpose(0, 1)).transpose(0, 1)
        last = tuple(torch.stack(one) for one in zip(*ends, strict=True))
        if not batched:
            return x[:, 0], self._answer(tuple(one[:, 0] for one in last))
        return (x.transpose(0, 1) if self.batch_first else x), self._answer(last)

    def _begin(self, x: Tensor, hx: Any, batched: bool) -> tuple[Tensor, ...]:
        """Return the states to begin with, `[layers * directions, n, hidden]`: zeros unless they are given."""
        if hx is not None:
            given = hx if isinstance(hx, tuple) else (hx,)
            return tuple(one if batched else one[:, None] for one in given)
        rows = self.num_layers * (2 if self.bidirectional else 1)
        widths = [self.proj_size or self.hidden_size, self.hidden_size][: 2 if self.mode == "LSTM" else 1]
        return tuple(x.new_zeros(rows, x.shape[1], width) for width in widths)

    def _answer(self, last: tuple[Tensor, ...]) -> Any:
        return last if self.mode == "LSTM" else last[0]

    def _layer(
        self, x: Tensor, begin: tuple[Tensor, ...], of: dict[str, Tensor | None]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer in one direction; return its outputs `[steps, n, hidden]` and its last states."""
        if self.in_stack:
            return self._steps(x, begin, of)
        weights = [one for one in of.values() if one is not None]
        run: Any = getattr(torch._VF, self.mode.lower())
        states = [one[None].contiguous() for one in begin]
        held = tuple(states) if self.mode == "LSTM" else states[0]
        out, *ends = run(x, held, weights, self.bias, 1, 0.0, self.training, False, False)
        return out, tuple(one[0] for one in ends)

    def _steps(
        self, x: Tensor, begin: tuple[Tensor, ...], of: dict[str, Tensor | None]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        raise NotImplementedError


_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


class GRU(_Recurrent, nn.GRU):  # type: ignore[misc]
    """`nn.GRU`."""

    def _steps(
        self, x: Tensor, begin: tuple[Tensor, ...], of: dict[str, Tensor | None]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight_ih, weight_hh, bias_hh = of["weight_ih"], of["weight_hh"], of["bias_hh"]
        assert weight_ih is not None and weight_hh is not None
        bias = weight_hh.new_zeros(len(weight_hh)) if bias_hh is None else bias_hh
        out = gated_scan(F.linear(x, weight_ih, of["bias_ih"]), weight_hh, bias, begin[0])
        return out, (out[-1],)


class LSTM(_Recurrent, nn.LSTM):  # type: ignore[misc]
    """`nn.LSTM`."""

    def _steps(
        self, x: Tensor, begin: tuple[Tensor, ...], of: dict[str, Tensor | None]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight_ih, weight_hh = of["weight_ih"], of["weight_hh"]
        assert weight_ih is not None and weight_hh is not None
        h, c = begin
        outputs = []
        for inputs in F.linear(x, weight_ih, of["bias_ih"]).unbind(0):
            i, f, g, o = (inputs + F.linear(h, weight_hh, of["bias_hh"])).chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            h = h if of["weight_hr"] is None else F.linear(h, of["weight_hr"])
            outputs.append(h)
        return torch.stack(outputs), (h, c)


class RNN(_Recurrent, nn.RNN):  # type: ignore[misc]
    """`nn.RNN`."""

    def _steps(
        self, x: Tensor, begin: tuple[Tensor, ...], of: dict[str, Tensor | None]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight_ih, weight_hh = of["weight_ih"], of["weight_hh"]
        assert weight_ih is not None and weight_hh is not None
        h, outputs = begin[0], []
        squash = torch.tanh if self.mode == "RNN_TANH" else torch.relu
        for inputs in F.linear(x, weight_ih, of["bias_ih"]).unbind(0):
            h = squash(inputs + F.linear(h, weight_hh, of["bias_hh"]))
            outputs.append(h)
        return torch.stack(outputs), (h,)


_OWN: dict[type[nn.Module], type[_Recurrent]] = {nn.GRU: GRU, nn.LSTM: LSTM, nn.RNN: RNN}


def adopt_recurrent(module: nn.Module) -> None:
    """Turn PyTorch's recurrent layers into ours, in place."""
    for layer in list(module.modules()):
        if type(layer) in _OWN:
            assert isinstance(layer, nn.RNNBase)
            layer.__class__ = _OWN[type(layer)]
            layer.drops = nn.ModuleList(Dropout(layer.dropout) for _ in range(layer.num_layers - 1) if layer.dropout)
            layer.drops.train(layer.training)
            layer.dropout = 0.0


def for_stacks(module: nn.Module) -> nn.Module:
    """Have recurrent layers written out step by step; return the module."""
    for layer in module.modules():
        if isinstance(layer, _Recurrent):
            layer.in_stack = True
    return module
