"""Covey's mod for Flower apps: it answers Covey's questions beside the app's own functions.

    app = ClientApp(mods=[covey.flower.mod(model=Net, data=load_data)])

The app's own functions train and evaluate; the mod makes the measurements that a method asks for (insights, losses,
hashes of the samples) with the model and the samples that it is given. A server without Covey is served as before.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from torch import Tensor

from covey.client.learner import Learner
from covey.core.messages import UNTOLD
from covey.data.dataset import Samples
from covey.errors import Refusal, require
from covey.flower.flower_mods import AppFunction, Mod, call_app
from covey.flower.memory_file import recall, remember
from covey.flower.named_arrays import NamedArrays
from covey.flower.node_app import Data, Model, answered, arrays_of, learner_and_samples, memory_file
from covey.flower.node_kinds import asks_for_mod, identity
from covey.flower.node_work import Client
from covey.flower.plain_messages import SERVER_ROUND, PlainClients, shown
from covey.flower.wire import ORDER, NodeTask

Ask = Callable[[Tensor, Mapping[str, Any]], RecordDict]
"""Calls the app's own function: a model and settings → the content of its reply."""


def mod(
    model: Model,
    data: Data,
    *,
    head: str | None = None,
    probes: Collection[str] = (),
    memory: Path | str | None = None,
    threads: int | None = None,
    messages: PlainClients | None = None,
) -> Mod:
    """Return a mod that answers Covey's questions; the app's own functions go on training and evaluating.

    model: the model that the app trains, as a PyTorch module or a function that makes one. An app of another framework
        gives a module that computes the same, with its arrays in the order of the app's.
    data: the client's samples: a data loader, tensors (x, y), or a function of Flower's context that returns one.
    head, probes, memory, threads: as in `client_app`.
    messages: the names in the app's messages, where they are not those of Flower's quickstarts.

    Put it first in `mods`, before mods that change or count what the app sends.
    """
    names = messages or PlainClients()

    def covey_mod(message: Message, context: Context, call_next: AppFunction) -> Message:
        if asks_for_mod(message):
            return Message(identity(context), reply_to=message)
        if ORDER not in message.content.config_records:
            return call_next(message, context)
        place = memory_file(memory, context)
        turn = recall(context, place)

        def prepared() -> Client:
            learner, samples, _ = learner_and_samples(model, data, context, head, threads)
            arrays = arrays_of(learner)

            def ask(state: Tensor, settings: Mapping[str, Any]) -> RecordDict:
                return call_app(message, context, names.content(arrays.record(state), settings), call_next)

            return AppClient.of(learner, samples, arrays, names, ask)

        answer = answered(message, context, prepared, allowed=tuple(probes))
        remember(context, place, turn)
        return answer

    return covey_mod


@dataclass(frozen=True, eq=False)
class AppClient(Client):
    """A client whose training and evaluation are an app's own functions."""

    names: PlainClients = field(default_factory=PlainClients)
    ask: Ask | None = None
    counts: list[int] = field(default_factory=list)
    """The number of samples that the app reported when it trained."""

    @classmethod
    def of(cls, learner: Learner, samples: Samples, arrays: NamedArrays, names: PlainClients, ask: Ask) -> "AppClient":
        """Return the client of an app that `ask` calls."""
        counts: list[int] = []

        def fit(task: NodeTask, received: Tensor, part: Samples) -> tuple[Tensor, float]:
            require(
                task.holdout == 0,
                "The method keeps samples out of training, which an app's own function does not: it needs "
                "covey.flower.client_app, without train=.",
            )
            record, count, loss = names.trained(ask(received, task.settings))
            counts.append(count)
            return arrays.read(record).to(received.dtype), UNTOLD if loss is None else loss

        return cls(learner, samples, fit, names=names, ask=ask, counts=counts)

    def counted(self, samples: int) -> int:
        return self.counts[-1] if self.counts else samples

    def scores(self, state: Tensor) -> dict[str, Any]:
        assert self.ask is not None
        scored = self.names.scored(self.ask(state, {SERVER_ROUND: 0}))
        if scored.loss is None or scored.accuracy is None:
            raise Refusal(f"The app's evaluation tells no loss and accuracy; its metrics are {shown(scored.metrics)}.")
        return {"samples": scored.samples, "loss": scored.loss, "accuracy": scored.accuracy}
