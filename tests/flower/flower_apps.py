"""Flower apps for tests, written as Flower's quickstarts are: in NumPy alone, and in PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

FEATURES, CLASSES = 6, 3


def held(client: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's samples: 40 and some, odd clients with mostly one class, each with another."""
    rng = np.random.default_rng(client)
    shares = np.roll([0.9, 0.05, 0.05], client) if client % 2 else [0.3, 0.4, 0.3]
    y = rng.choice(CLASSES, size=40 + client, p=shares)
    return rng.normal(size=(len(y), FEATURES)) + 2 * np.eye(CLASSES)[y].repeat(2, axis=1), y


def start_arrays() -> list[np.ndarray]:
    return [np.zeros((FEATURES, CLASSES)), np.zeros(CLASSES)]


def probabilities(model: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    powers = np.exp(x @ model[0] + model[1])
    shares: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return shares


def numpy_trained(model: Sequence[np.ndarray], client: int, lr: float = 0.1) -> list[np.ndarray]:
    (w, b), (x, y) = model, held(client)
    for _ in range(5):
        residual = probabilities([w, b], x) - np.eye(CLASSES)[y]
        w, b = w - lr * x.T @ residual / len(y), b - lr * residual.mean(axis=0)
    return [w, b]


def loss_of(model: Sequence[np.ndarray], client: int) -> float:
    x, y = held(client)
    return float(-np.log(probabilities(model, x)[np.arange(len(y)), y]).mean())


Said = dict[str, Any]


def numpy_app(
    seen: list[tuple[str, int, dict[str, Any]]] | None = None,
    change: Callable[[int, RecordDict], RecordDict] | None = None,
    train_loss: bool = True,
    mods: Any = None,
) -> ClientApp:
    """A softmax regression; `seen` collects kinds of messages, clients and settings, and `change` alters replies."""
    app = ClientApp(mods=mods)

    def replied(message: Message, client: int, content: RecordDict) -> Message:
        return Message(content if change is None else change(client, content), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        config = dict(message.content.config_records["config"])
        if seen is not None:
            seen.append(("train", client, config))
        arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
        model = numpy_trained(arrays, client, float(str(config.get("lr", 0.1))))
        metrics = {"train_loss": loss_of(model, client)} if train_loss else {}
        record = MetricRecord({**metrics, "num-examples": len(held(client)[1])})
        return replied(message, client, RecordDict({"arrays": ArrayRecord(model), "metrics": record}))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        if seen is not None:
            seen.append(("evaluate", client, dict(message.content.config_records["config"])))
        model = message.content.array_records["arrays"].to_numpy_ndarrays()
        x, y = held(client)
        right = float((probabilities(model, x).argmax(axis=1) == y).mean())
        metrics: dict[str, Any] = {"eval_loss": loss_of(model, client), "eval_acc": right, "num-examples": len(y)}
        return replied(message, client, RecordDict({"metrics": MetricRecord(metrics)}))

    return app


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def tensors(client: int) -> tuple[Tensor, Tensor]:
    x, y = held(client)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def of_node(context: Context) -> tuple[Tensor, Tensor]:
    return tensors(int(context.node_config["partition-id"]))


def torch_train(model: nn.Module, data: tuple[Tensor, Tensor], settings: Said) -> float:
    """Five steps on all samples: the same on every call."""
    x, y = data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def torch_app(mods: Any = None, model: Callable[[], nn.Module] = net) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        made, data = model(), of_node(context)
        made.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        loss = torch_train(made, data, {})
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
        return Message(RecordDict({"arrays": ArrayRecord(made.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        made, (x, y) = model(), of_node(context)
        made.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        made.eval()
        with torch.no_grad():
            outputs = made(x)
        loss = nn.functional.cross_entropy(outputs, y).item()
        right = (outputs.argmax(1) == y).float().mean().item()
        metrics = MetricRecord({"eval_loss": loss, "eval_acc": right, "num-examples": len(y)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app
