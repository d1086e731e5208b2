"""A Flower ClientApp that answers Covey's orders, from a user's model and data."""

from collections.abc import Callable, Collection, Iterable
from inspect import signature
from typing import Any, cast

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from covey.client.learner import Learner, Precision
from covey.data.dataset import Dataset, Samples
from covey.errors import Refusal, require
from covey.flower.exchange import LACKING
from covey.flower.node_memory import Memory
from covey.flower.node_work import Client
from covey.flower.protection import Protection
from covey.flower.roster import identity
from covey.flower.wire import EVALUATE, REPLY, Missing, NodeTask, order_instructions, unpack_order
from covey.model.dropout import adopt_dropout

Model = nn.Module | Callable[..., nn.Module]
Data = Any
"""A loader of batches (x, y), a pair of tensors, `Samples`, or a function of Flower's context that returns one."""
Train = Callable[[nn.Module, Any, dict[str, Any]], float | None]
"""`train(model, data, settings)`: trains the model in place and returns the mean training loss."""


class ModelWithHead(nn.Module):
    """A user's model with the name of its last layer (`head`), which insights are about."""

    def __init__(self, model: nn.Module, head: str | None = None) -> None:
        super().__init__()
        self.model = model
        self.head = f"model.{head or last_layer(model)}"
        if hasattr(model, "tokens"):
            self.tokens = model.tokens

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out


def last_layer(model: nn.Module) -> str:
    """Return the name of a model's last layer: its attribute `head`, or else its last linear layer."""
    stated = getattr(model, "head", None)
    if isinstance(stated, str):
        return str(stated)
    linear: list[str] = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear or not linear[-1]:
        raise Refusal(
            f"The last layer of the model {type(model).__name__} is not known; name it: head='name of the layer'."
        )
    return linear[-1]


def client_app(
    model: Model,
    data: Data,
    *,
    test: Data = None,
    train: Train | None = None,
    head: str | None = None,
    protection: Protection | Callable[[Context], Protection] | None = None,
    probes: Collection[str] = (),
    threads: int | None = None,
    precision: Precision = "fp32",
) -> ClientApp:
    """Return a ClientApp that trains, measures and evaluates for any of Covey's methods.

    model: the model, or a function (or class) that makes it; without parameters, or with Flower's context.
    data: the client's samples: a data loader, tensors (x, y), or a function of Flower's context that returns one.
    test: samples to evaluate models on, in the same forms; by default the training samples.
    train: your own training function `train(model, data, settings) -> loss`, with `data` as your function returned it
        and `settings` the round's (`lr`, `epochs`, what the strategy's configuration adds). Without it, Covey's local
        training (SGD or Adam) does, as the strategy's `local` says, to the same bits as in a simulation.
    head: name of the last layer; the last linear layer where it is not given.
    protection: clipping and noise on what the client sends, and its budget; or a function of Flower's context that
        returns them, where several clients share this app: each needs a ledger of its own.
    probes: measurements of your own that the client makes for a server, as `package.module:Name`.
    threads: torch threads; 1 makes results independent of the machine's cores.
    """
    app = ClientApp()

    def prepared(context: Context, source: Data, fit: Train | None = None) -> Client:
        if threads is not None:
            torch.set_num_threads(threads)
        module = ModelWithHead(_made(model, context), head)
        adopt_dropout(module)
        given = _made_data(source, context)
        samples = as_samples(given)
        learner = Learner(module, _as_dataset(module, samples), precision)
        rules = protection(context) if callable(protection) else protection or Protection()
        return Client(learner, samples, None if fit is None else _own_fit(learner, given, fit), rules)

    def work(message: Message, context: Context) -> Message:
        return answered(message, context, lambda: prepared(context, data, train), allowed=probes)

    def score(message: Message, context: Context) -> Message:
        return answered(message, context, lambda: prepared(context, data if test is None else test), allowed=probes)

    register(app, work, score)
    return app


Handler = Callable[[Message, Context], Message]


def register(app: ClientApp, work: Handler, score: Handler) -> None:
    """Register the handlers of Covey's message types."""
    app.train()(work)
    app.query()(work)
    app.evaluate()(score)
    app.query("who")(who)


def who(message: Message, context: Context) -> Message:
    """Answer with the node's name."""
    return Message(identity(context), reply_to=message)


def answered(
    message: Message, context: Context, client: Callable[[], Client], allowed: Collection[str] | None
) -> Message:
    """Return the reply to an order, or one that names the arrays that the client lacks."""
    instructions = order_instructions(message.content)
    memory = Memory(context.state, instructions["run"])
    try:
        task = unpack_order(message.content, memory.find, allowed, instructions)
        worker = client()
        if message.metadata.message_type == EVALUATE:
            state = memory.own() if task.own else task.start
            if state is None:
                raise Missing("own")
            content = RecordDict({REPLY: MetricRecord(worker.scores(state))})
        else:
            content = worker.answer(task, memory)
    except Missing as lacking:
        content = RecordDict({LACKING: ConfigRecord({"name": str(lacking)})})
    return Message(content, reply_to=message)


def _own_fit(learner: Learner, given: Any, train: Train) -> Callable[[NodeTask, Tensor, Samples], tuple[Tensor, float]]:
    def fit(task: NodeTask, received: Tensor, part: Samples) -> tuple[Tensor, float]:
        state = received.clone()
        learner.layout.bind(learner.module, state)
        learner.module.train()
        work = task.work
        settings = {
            "round": task.round,
            "lr": work.rate_at(task.round, 0),
            "epochs": work.epochs,
            "batch": work.batch,
            "momentum": work.momentum,
            "weight_decay": work.weight_decay,
            "proximal": work.proximal,
            "optimizer": work.optimizer,
            "clip": work.clip,
            **task.settings,
        }
        module = cast(ModelWithHead, learner.module)
        # The function must not see samples that a method holds out of training.
        data = (part.x, part.y) if task.holdout else given
        loss = train(module.model, data, settings)
        return learner.layout.read(module), 0.0 if loss is None else float(loss)

    return fit


def as_samples(given: Any) -> Samples:
    """Return a client's samples from a loader of batches, a pair of tensors or arrays, or `Samples`."""
    if isinstance(given, Samples):
        return given
    if isinstance(given, (tuple, list)) and len(given) == 2 and hasattr(given[0], "__len__"):
        x, y = (torch.as_tensor(part) for part in given)
    elif isinstance(given, Iterable):
        pairs = [_pair(batch) for batch in given]
        require(bool(pairs), "The client's data has no batches.")
        x = torch.cat([pair[0] for pair in pairs])
        y = torch.cat([pair[1] for pair in pairs])
    else:
        raise Refusal(f"data must be a loader of batches, or a pair of tensors (x, y), not {type(given).__name__}.")
    require(len(x) == len(y), f"The client has {len(x)} samples but {len(y)} labels.")
    require(len(x) > 0, "The client has no samples.")
    return Samples(x.contiguous(), y.reshape(-1).to(torch.int64))


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Return x and y of a batch; of one with names (Hugging Face), the image and the label."""
    if isinstance(batch, dict):
        x = next((batch[name] for name in ("image", "img", "x", "input_ids") if name in batch), None)
        y = next((batch[name] for name in ("label", "labels", "y") if name in batch), None)
        if x is None or y is None:
            raise Refusal(f"A batch must have an image and a label; it has: {', '.join(map(str, batch))}.")
        return torch.as_tensor(x), torch.as_tensor(y).reshape(-1)
    x, y = batch
    return torch.as_tensor(x), torch.as_tensor(y).reshape(-1)


def _as_dataset(module: nn.Module, samples: Samples) -> Dataset:
    """Return a data set for a learner: the samples' shape, and a class for each output of the last layer."""
    head = module.get_submodule(str(module.head))
    outputs = next(iter(head.parameters())).shape[0]
    names = tuple(str(number) for number in range(outputs))
    return Dataset("client", samples.x, samples.y, samples.x[:1], samples.y[:1], names)


def _made(model: Model, context: Context) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    made = model(context) if _takes_context(model) else model()
    require(isinstance(made, nn.Module), f"model must make an nn.Module, not a {type(made).__name__}.")
    return made


def _made_data(source: Data, context: Context) -> Any:
    if callable(source) and not isinstance(source, Samples):
        return source(context) if _takes_context(source) else source()
    return source


def _takes_context(function: Callable[..., Any]) -> bool:
    parameters = signature(function).parameters.values()
    required = [
        one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    return len(required) == 1
