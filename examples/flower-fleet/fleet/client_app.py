"""A site: its name and its folder are in the configuration of its node."""

from pathlib import Path

import numpy as np
from flwr.app import Context

import covey.flower
from fleet.model import classifier


def samples(context: Context, part: str):
    file = np.load(Path(str(context.node_config["folder"])) / f"{part}.npz")
    return file["x"], file["y"]


app = covey.flower.client_app(
    model=classifier,
    data=lambda context: samples(context, "train"),
    test=lambda context: samples(context, "test"),
    threads=1,
)
