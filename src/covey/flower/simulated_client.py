"""A federation as files for simulated nodes: a folder with the model's description and a file of samples per client.

A node reads no file but its own, as a real client would.
"""

import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from safetensors.torch import load_file, save_file

from covey.client.learner import Learner
from covey.config.schema import Config
from covey.data.dataset import Dataset, Samples
from covey.environment.federated_data import Federation
from covey.flower.node_app import answered, register
from covey.flower.node_work import Client
from covey.flower.wire import order_instructions
from covey.model.factory import are_words, build_model
from covey.runtime.local import keep_freed_memory
from covey.task.label_kinds import named_task


class SimulationFolder:
    """The folder of one run, removed by `close`. A client's file is written when it is first invited."""

    def __init__(self, federation: Federation, config: Config) -> None:
        self._federation = federation
        self.folder = Path(tempfile.mkdtemp(prefix="covey-flower-"))
        dataset = federation.dataset
        about = {
            "name": dataset.name,
            "class_names": dataset.class_names,
            "mean": dataset.mean,
            "deviation": dataset.deviation,
            "never": dataset.never,
            "stop_words": dataset.stop_words,
            "task": dataset.learns.as_mapping(),
            "model": config.model.name,
            "options": dict(config.model.options),
            "seed": config.seed,
            "precision": config.precision,
        }
        (self.folder / "about.json").write_text(json.dumps(about), encoding="utf-8")

    def place(self, client: int) -> str:
        """Write a client's file if need be, and return the folder."""
        path = _file(self.folder, client)
        if not path.exists():
            samples = self._federation.samples(client)
            save_file({"x": samples.x.contiguous(), "y": samples.y.contiguous()}, path)
        return str(self.folder)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _file(folder: Path, client: int) -> Path:
    return folder / f"client-{client}.safetensors"


@lru_cache(maxsize=4)
def _learner(folder: str, like: int) -> Learner:
    """Return a run's model ready to train; it is the same for all clients."""
    torch.set_num_threads(1)
    keep_freed_memory()
    about = json.loads((Path(folder) / "about.json").read_text(encoding="utf-8"))
    samples = _samples(folder, like)
    dataset = Dataset(
        about["name"],
        samples.x[:1],
        samples.y[:1],
        samples.x[:1],
        samples.y[:1],
        tuple(about["class_names"]),
        tuple(about["mean"]),
        tuple(about["deviation"]),
        never=tuple(about["never"]),
        stop_words=tuple(about["stop_words"]),
        task=named_task(about["task"]),
    )
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in about["options"].items()}
    words = are_words(samples.x)
    module = build_model(about["model"], options, dataset.shape, dataset.outputs, about["seed"], tokens=words)
    return Learner(module, dataset, about["precision"])


_learners: dict[str, int] = {}
"""Folder → the client whose samples its learner was made from."""


def _samples(folder: str, client: int) -> Samples:
    tensors = load_file(_file(Path(folder), client))
    return Samples(tensors["x"], tensors["y"])


def client_of(folder: str, client: int) -> Client:
    """Return a simulated client."""
    torch.set_num_threads(1)
    learner = _learner(folder, _learners.setdefault(folder, client))
    return Client(learner, _samples(folder, client), simulated=True)


def work(message: Message, context: Context) -> Message:
    """Answer an order as the client that the order names."""
    instructions = order_instructions(message.content)
    return answered(message, context, lambda: client_of(instructions["job"], instructions["client"]), allowed=None)


app = ClientApp()
"""The app of every node in Covey's simulations."""
register(app, work, work)
