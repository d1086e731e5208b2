"""Synthetic texts as a Covey dataset."""

from pathlib import Path

import numpy as np
import torch

from covey.data import Dataset


def made_up_texts(data_dir: Path | None, *, words: int, length: int, train: int, test: int) -> Dataset:
    """Make texts of Zipf-distributed words, in which three of four next words follow from the last one."""
    rng = np.random.default_rng(0)
    popularity = 1 / np.arange(1, words + 1)
    drawn = rng.choice(words, size=(train + test, length + 1), p=popularity / popularity.sum())
    follows = rng.permutation(words)
    next_word = np.where(rng.random(train + test) < 0.75, follows[drawn[:, -2]], drawn[:, -1])
    x, y = torch.from_numpy(drawn[:, :-1].copy()), torch.from_numpy(next_word)
    names = tuple(f"word{number}" for number in range(words))
    return Dataset("made-up texts", x[:train], y[:train], x[train:], y[train:], names)
