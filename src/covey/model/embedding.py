"""Word embeddings with a deterministic gradient, on a GPU too.

A word that occurs twice in a batch has two gradients to add. PyTorch's compiled backward pass adds them in the order in
which threads finish, so bits differ from run to run. Here, every occurrence first receives the sum over all occurrences
of its word (a product with the matrix that is 1 where two words are equal); then all of them write the same values.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.model.operators import apart, define, merged, stacked

_MOST_COMPARED = 2048
"""Up to this many words in a batch, all pairs are compared."""


class WordVectors(nn.Embedding):
    """`nn.Embedding` with a deterministic gradient."""

    def forward(self, input: Tensor) -> Tensor:
        vectors: Tensor = torch.ops.covey.word_vectors(self.weight, input)
        return vectors

    def plain(self) -> nn.Module:
        """Return the same layer of torch's own operations, for programs that run elsewhere."""
        words = nn.Embedding(*self.weight.shape)
        words.weight = nn.Parameter(self.weight.detach())
        return words


def _look_up(table: Tensor, words: Tensor) -> Tensor:
    """Look up words `[...]` in a table `[rows, width]` → `[..., width]`; or in every lane's, `[lanes, rows, width]`."""
    if table.dim() == 2:
        return F.embedding(words, table)
    lanes = torch.arange(len(table), device=table.device).view(-1, *(1,) * (words.dim() - 1))
    return table[lanes, words]


def _add_up(gradient: Tensor, words: Tensor, rows: int) -> Tensor:
    """Sum gradients `[..., width]` of words `[...]` into the gradient of the table `[rows, width]`."""
    return _add_up_lanes(*_flat(gradient[None], words[None]), rows)[0]


def _add_up_lanes(gradient: Tensor, words: Tensor, rows: int) -> Tensor:
    """Sum gradients `[lanes, n, width]` of words `[lanes, n]` into `[lanes, rows, width]`."""
    if gradient.is_cuda and words.shape[1] <= _MOST_COMPARED:
        return _by_comparison(gradient, words, rows)
    total = gradient.new_zeros(len(words), rows, gradient.shape[-1])
    lanes = torch.arange(len(words), device=words.device)[:, None].expand_as(words)
    # Deterministic: sorted by index on a GPU, one after another on a CPU.
    return total.index_put_((lanes, words), gradient, accumulate=True)


def _by_comparison(gradient: Tensor, words: Tensor, rows: int) -> Tensor:
    """Sum by comparing all pairs of words: every occurrence writes the sum over all occurrences."""
    total = gradient.new_zeros(len(words), rows, gradient.shape[-1])
    same = (words[:, :, None] == words[:, None, :]).to(gradient.dtype)
    return total.scatter_(1, words[:, :, None].expand_as(gradient), same @ gradient)


def _differentiate(inputs: Sequence[Any], gradient: Tensor, needed: Sequence[bool]) -> tuple[Tensor | None, None]:
    table, words = inputs
    if table.dim() == 2:
        return torch.ops.covey.word_gradients(gradient, words, len(table)), None
    return torch.ops.covey.word_gradients_of_lanes(*_flat(gradient, words), table.shape[1]), None


def _flat(gradient: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten `[lanes, ..., width]` and `[lanes, ...]` to `[lanes, n, width]` and `[lanes, n]`."""
    return gradient.reshape(len(words), -1, gradient.shape[-1]), words.reshape(len(words), -1)


def _look_up_shape(table: Tensor, words: Tensor) -> Tensor:
    return table.new_empty(*words.shape, table.shape[-1])


def _add_up_shape(gradient: Tensor, words: Tensor, rows: int) -> Tensor:
    return gradient.new_empty(rows, gradient.shape[-1])


def _look_up_in_lanes(
    info: Any, dimensions: tuple[int | None, ...], table: Tensor, words: Tensor
) -> tuple[Tensor, int]:
    tables, which = stacked(info, table, dimensions[0]), stacked(info, words, dimensions[1])
    assert tables is not None
    if tables.dim() == 4:
        return apart(info, torch.ops.covey.word_vectors(*merged([tables, which]))), 0
    result: Tensor = torch.ops.covey.word_vectors(tables, which)
    return result, 0


def _add_up_in_lanes(
    info: Any, dimensions: tuple[int | None, ...], gradient: Tensor, words: Tensor, rows: int
) -> tuple[Tensor, int]:
    whole, which = stacked(info, gradient, dimensions[0]), stacked(info, words, dimensions[1])
    assert whole is not None and which is not None
    result: Tensor = torch.ops.covey.word_gradients_of_lanes(*_flat(whole, which), rows)
    return result, 0


def _add_up_lanes_shape(gradient: Tensor, words: Tensor, rows: int) -> Tensor:
    return gradient.new_empty(len(words), rows, gradient.shape[-1])


def _add_up_samples_in_lanes(
    info: Any, dimensions: tuple[int | None, ...], gradient: Tensor, words: Tensor, rows: int
) -> tuple[Tensor, int]:
    whole, which = stacked(info, gradient, dimensions[0]), stacked(info, words, dimensions[1])
    return apart(info, torch.ops.covey.word_gradients_of_lanes(*merged([whole, which]), rows)), 0


define(
    "word_vectors(Tensor table, Tensor words) -> Tensor", _look_up, _look_up_shape, _look_up_in_lanes, _differentiate
)
define("word_gradients(Tensor gradient, Tensor words, int rows) -> Tensor", _add_up, _add_up_shape, _add_up_in_lanes)
define(
    "word_gradients_of_lanes(Tensor gradient, Tensor words, int rows) -> Tensor",
    _add_up_lanes,
    _add_up_lanes_shape,
    _add_up_samples_in_lanes,
)
