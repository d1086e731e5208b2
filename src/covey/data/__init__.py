"""Data sets: training and test samples in memory, not yet split among clients."""

from covey.data.arrow_table import parquet
from covey.data.cifar import cifar10, cifar100
from covey.data.dataset import Dataset, DatasetLoader, Samples
from covey.data.digits import digits
from covey.data.files import download
from covey.data.given import given
from covey.data.idx import fashion_mnist, mnist
from covey.data.own_arrays import from_arrays, npy, npz
from covey.data.synthetic import synthetic
from covey.data.table import csv
from covey.data.text import blogs, text, tweets

__all__ = [
    "Dataset",
    "DatasetLoader",
    "Samples",
    "blogs",
    "cifar10",
    "cifar100",
    "csv",
    "digits",
    "download",
    "fashion_mnist",
    "from_arrays",
    "given",
    "mnist",
    "npy",
    "npz",
    "parquet",
    "synthetic",
    "text",
    "tweets",
]
