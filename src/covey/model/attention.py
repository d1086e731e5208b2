"""Attention in plain products, for one model or a stack of them.

PyTorch's attention is one fused operation, for which `vmap` has no rule, and draws its dropout from torch's global
generator. Here it is written out, with masks that are drawn from a key. Names and shapes of parameters stay.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from covey.model.dropout import Dropout


class Attention(nn.MultiheadAttention):
    """Computes the same as `nn.MultiheadAttention`: softmax(q kᵀ / √d + mask) v for each head, then a product."""

    weight_dropout: Dropout

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend; `is_causal` is a hint beside `attn_mask`, as in `nn.MultiheadAttention`, and changes nothing."""
        batched = query.dim() == 3
        given = [one if batched else one.unsqueeze(0 if self.batch_first else 1) for one in (query, key, value)]
        given = [one if self.batch_first or not batched else one.transpose(0, 1) for one in given]
        if not batched and not self.batch_first:
            given = [one.transpose(0, 1) for one in given]
        q, k, v = self._projected(given)
        padding = key_padding_mask if key_padding_mask is None or batched else key_padding_mask[None]
        k, v, added = self._extended(k, v)
        scores = self._heads(q) @ self._heads(k).transpose(-1, -2) / math.sqrt(self.head_dim)
        scores = _masked(scores, attn_mask, padding, added)
        weights = scores.softmax(dim=-1)
        out = self.weight_dropout(weights) @ self._heads(v)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        out = out if self.batch_first else out.transpose(0, 1)
        if not batched:
            out, weights = out.squeeze(0 if self.batch_first else 1), weights.squeeze(0)
        if not need_weights:
            return out, None
        return out, weights.mean(dim=-3) if average_attn_weights else weights

    def _projected(self, given: list[Tensor]) -> list[Tensor]:
        """Return queries, keys and values `[n, length, width]`."""
        if self.in_proj_weight is None:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        else:
            weights = list(self.in_proj_weight.chunk(3))
        biases = [None] * 3 if self.in_proj_bias is None else list(self.in_proj_bias.chunk(3))
        return [F.linear(*one) for one in zip(given, weights, biases, strict=True)]

    def _extended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return keys and values with a learned one and a zero at their ends, if there are any, and their number."""
        added = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                torch.cat([one, end.expand(len(one), 1, -1)], dim=1)
                for one, end in ((k, self.bias_k), (v, self.bias_v))
            )
            added += 1
        if self.add_zero_attn:
            k, v = (F.pad(one, (0, 0, 0, 1)) for one in (k, v))
            added += 1
        return k, v, added

    def _heads(self, x: Tensor) -> Tensor:
        """`[n, length, width]` → `[n, heads, length, width / heads]`."""
        return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)


def _masked(scores: Tensor, mask: Tensor | None, padding: Tensor | None, added: int) -> Tensor:
    """Apply masks `[length, keys]` or `[n * heads, length, keys]`, and of keys `[n, keys]`: True is left out."""
    if mask is not None:
        mask = F.pad(mask, (0, added)) if added else mask
        scores = _without(scores, mask.view(scores.shape) if mask.dim() == 3 else mask)
    if padding is not None:
        padding = F.pad(padding, (0, added)) if added else padding
        scores = _without(scores, padding[:, None, None, :])
    return scores


def _without(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, -torch.inf, scores) if mask.dtype == torch.bool else scores + mask


class EncoderLayer(nn.TransformerEncoderLayer):
    """`nn.TransformerEncoderLayer` without its fused operation for evaluation."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        if self.norm_first:
            src = src + self._sa_block(self.norm1(src), src_mask, src_key_padding_mask, is_causal)
            return src + self._ff_block(self.norm2(src))
        src = self.norm1(src + self._sa_block(src, src_mask, src_key_padding_mask, is_causal))
        out: Tensor = self.norm2(src + self._ff_block(src))
        return out


class Encoder(nn.TransformerEncoder):
    """`nn.TransformerEncoder` without nested tensors, and without a look at the mask's values."""

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return src if self.norm is None else self.norm(src)


def adopt_attention(module: nn.Module) -> None:
    """Turn PyTorch's attention and transformer encoders into ours, in place."""
    for layer in list(module.modules()):
        if type(layer) is nn.MultiheadAttention:
            layer.__class__ = Attention
            layer.weight_dropout = Dropout(layer.dropout).train(layer.training)
        elif type(layer) is nn.TransformerEncoderLayer:
            layer.__class__ = EncoderLayer
        elif type(layer) is nn.TransformerEncoder:
            layer.__class__ = Encoder


def in_plain_attention(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that has `F.scaled_dot_product_attention` compute in plain products."""

    @functools.wraps(work)
    def run(*given: Any, **named: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return work(*given, **named)

    return run
