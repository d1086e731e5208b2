"""A Flower ClientApp that answers Covey's orders, from a user's model and data."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from covey.client.learner import Learner, Precision
from covey.data.dataset import Dataset, Samples
from covey.errors import Refusal, require
from covey.flower.exchange import LACKING
from covey.flower.flower_mods import Mod, mods_around
from covey.flower.memory_file import recall, remember
from covey.flower.named_arrays import NamedArrays
from covey.flower.node_kinds import IDENTITY, identity
from covey.flower.node_memory import Memory
from covey.flower.node_work import Client
from covey.flower.protection import Protection
from covey.flower.trainer_memory import require_own_use
from covey.flower.user_model import ModelWithHead, outputs_of, passed
from covey.flower.wire import EVALUATE, REPLY, Missing, NodeTask, order_instructions, unpack_order
from covey.model.dropout import adopt_dropout
from covey.model.factory import are_words
from covey.model.frozen import constants, digest_of
from covey.model.layers import adopt_layers
from covey.model.normalisation import accept_one_sample
from covey.task import Custom, MultiLabel, Regression, Task, labels_as, named_task

Model = nn.Module | Callable[..., nn.Module]
Data = Any
"""A loader of batches (x, y), a pair of tensors, `Samples`, or a function of Flower's context that returns one."""
Train = Callable[[nn.Module, Any, dict[str, Any]], float | None]
"""`train(model, data, settings)`: trains the model in place and returns the mean training loss."""


def client_app(
    model: Model,
    data: Data,
    *,
    test: Data = None,
    train: Train | None = None,
    head: str | None = None,
    protection: Protection | Callable[[Context], Protection] | None = None,
    probes: Collection[str] = (),
    trainers: Collection[str] = (),
    memory: Path | str | None = None,
    threads: int | None = None,
    precision: Precision = "fp32",
    task: Task | str | None = None,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Return a ClientApp that trains, measures and evaluates for any of Covey's methods.

    model: the model, or a function (or class) that makes it; without parameters, or with Flower's context.
    data: the client's samples: a data loader, tensors (x, y), or a function of Flower's context that returns one.
    test: samples to evaluate models on, in the same forms; by default the training samples.
    train: your own training function `train(model, data, settings) -> loss`, with `data` as your function returned it
        and `settings` the round's (`lr`, `epochs`, what the strategy's configuration adds). Without it, Covey's local
        training (SGD, Adam or AdamW) does, as the strategy's `local` says, to the same bits as in a simulation.
    head: name of the last layer, where the model does not end in a linear layer and a method reads it.
    protection: clipping and noise on what the client sends, and its budget; or a function of Flower's context that
        returns them, where several clients share this app: each needs a ledger of its own.
    probes: measurements of your own that the client makes for a server, as `package.module:Name`.
    trainers: trainers of your own that the client trains by for a server, in the same form.
    memory: a folder for what the client keeps between rounds (SCAFFOLD's control variate, its own model), so that it
        survives restarts and a run that goes on in another Flower run. Flower's own state lasts for one of its runs.
    task: what the model learns, the same on every client: a name such as "multilabel", or a task with its options, such
        as `covey.task.Regression(centre=(150.0,), scale=(77.0,))`. By default it follows from the labels, and those of
        regression are taken as they are.
    threads: torch threads; 1 makes results independent of the machine's cores.
    mods: Flower's mods around training, such as `fixedclipping_mod`, as in `@app.train(mods=...)`. They see the model
        that is received and the one that is sent, and no measurement: `protection` covers both.
    """
    app = ClientApp()
    allowed = (*probes, *trainers)

    def prepared(context: Context, source: Data, fit: Train | None = None, message: Message | None = None) -> Client:
        learner, samples, given = learner_and_samples(model, source, context, head, threads, precision, task)
        rules = protection(context) if callable(protection) else protection or Protection()
        own = None if fit is None else _own_fit(learner, given, fit)
        around = mods_around(mods, message, context, arrays_of(learner)) if message is not None and mods else None
        return Client(learner, samples, own, rules, around=around)

    def work(message: Message, context: Context) -> Message:
        place = memory_file(memory, context)
        turn = recall(context, place)
        answer = answered(message, context, lambda: prepared(context, data, train, message), allowed=allowed)
        remember(context, place, turn)
        return answer

    def score(message: Message, context: Context) -> Message:
        recall(context, memory_file(memory, context))
        return answered(message, context, lambda: prepared(context, data if test is None else test), allowed=allowed)

    register(app, work, score)
    return app


def learner_and_samples(
    model: Model,
    source: Data,
    context: Context,
    head: str | None,
    threads: int | None,
    precision: Precision = "fp32",
    task: Task | str | None = None,
) -> tuple[Learner, Samples, Any]:
    """Return a client's model ready to train, its samples, and these as the user's function returned them."""
    if threads is not None:
        torch.set_num_threads(threads)
    made, given = _made(model, context), _made_data(source, context)
    samples = as_samples(given)
    module = passed(made, tuple(samples.x.shape[1:]), words=are_words(samples.x), head=head)
    adopt_layers(module)
    adopt_dropout(module)
    accept_one_sample(module)
    dataset = _as_dataset(module, samples, task)
    return Learner(module, dataset, precision), Samples(dataset.x, dataset.y), given


def arrays_of(learner: Learner) -> NamedArrays:
    """Return the arrays of a user's model, by the names that it has for them."""
    return NamedArrays.of(ArrayRecord(cast(ModelWithHead, learner.module).model.state_dict()), learner.layout)


def memory_file(folder: Path | str | None, context: Context) -> Path | None:
    """Return the file of a client's memory; several clients may share an app and its folder."""
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    name = str(identity(context).config_records[IDENTITY]["name"])
    return Path(folder) / hashlib.sha256(name.encode()).hexdigest()[:32]


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
    require_own_use(instructions)
    memory = Memory(context.state, instructions["run"])
    try:
        task = unpack_order(message.content, memory.find, allowed, instructions)
        worker = client()
        require_same_constants(worker.learner, instructions.get("constants", ""))
        if message.metadata.message_type == EVALUATE:
            content = RecordDict({REPLY: MetricRecord(worker.scores(worker.used_model(task, memory)))})
        else:
            content = worker.answer(task, memory)
    except Missing as lacking:
        content = RecordDict({LACKING: ConfigRecord({"name": str(lacking)})})
    return Message(content, reply_to=message)


def require_same_constants(learner: Learner, digest: str) -> None:
    """Refuse to work on a model whose frozen parts are not the server's: only trained parts travel."""
    require(
        learner.constants == digest,
        "The model's frozen parameters here are not those of the server's model, and they do not travel: freeze the "
        "same parts, of the same weights.",
    )


def digest_in(tensors: Mapping[str, Tensor], module: nn.Module) -> str:
    """Return the digest of the frozen parts of a model in a user's `state_dict`, which clients must have too."""
    held = {name: name.removeprefix("model.") for name in constants(module)}
    lacking = [name for name in held.values() if name not in tensors]
    require(not lacking, f"The initial arrays lack {', '.join(lacking[:5])}: they are of another model.")
    return digest_of({name: tensors[place] for name, place in held.items()})


def _own_fit(learner: Learner, given: Any, train: Train) -> Callable[[NodeTask, Tensor, Samples], tuple[Tensor, float]]:
    def fit(task: NodeTask, received: Tensor, part: Samples) -> tuple[Tensor, float]:
        state = received.clone()
        learner.start(state)
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
    if y.is_floating_point() or (y.dim() == 2 and y.shape[1] > 1):
        return Samples(x.contiguous(), y)
    return Samples(x.contiguous(), y.reshape(-1).to(torch.int64))


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Return x and y of a batch; of one with names (Hugging Face), the image and the label."""
    if isinstance(batch, dict):
        x = next((batch[name] for name in ("image", "img", "x", "input_ids") if name in batch), None)
        y = next((batch[name] for name in ("label", "labels", "y") if name in batch), None)
        if x is None or y is None:
            raise Refusal(f"A batch must have an image and a label; it has: {', '.join(map(str, batch))}.")
        return torch.as_tensor(x), torch.as_tensor(y)
    x, y = batch
    return torch.as_tensor(x), torch.as_tensor(y)


def _as_dataset(module: ModelWithHead, samples: Samples, task: Task | str | None) -> Dataset:
    """Return a data set for a learner: the samples' shape, and a class for each of the model's outputs."""
    wanted = named_task({"name": task}) if isinstance(task, str) else task
    if wanted is None and (samples.y.is_floating_point() or samples.y.dim() == 2):
        wanted = MultiLabel() if samples.y.dim() == 2 and bool(((samples.y == 0) | (samples.y == 1)).all()) else None
        wanted = wanted or Regression()
    if isinstance(wanted, Regression) and not wanted.centre:
        columns = samples.y.reshape(len(samples.y), -1).shape[1]
        wanted = Regression(centre=(0.0,) * columns, scale=(1.0,) * columns)
    names: tuple[str, ...] = ()
    if wanted is None or wanted.has_classes:
        names = tuple(str(number) for number in range(outputs_of(module)))
        return Dataset("client", samples.x, samples.y, samples.x[:1], samples.y[:1], names, task=wanted)
    if isinstance(wanted, Custom) and not samples.y.is_floating_point() and samples.y.dim() == 1:
        names = tuple(str(number) for number in range(outputs_of(module)))
    labels = labels_as(wanted, samples.y, samples.y[:1], names, "The client's data")
    return Dataset("client", samples.x, labels.y, samples.x[:1], labels.test_y, labels.names, task=labels.task)


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
