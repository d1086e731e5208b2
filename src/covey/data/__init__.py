"""Data sets: samples in memory, cut into training and test, not yet dealt to clients."""

from covey.data.dataset import Dataset, DatasetLoader, datasets
from covey.data.digits import digits
from covey.data.synthetic import synthetic

__all__ = ["Dataset", "DatasetLoader", "datasets", "digits", "synthetic"]
