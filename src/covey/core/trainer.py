"""The third role of a method: what a client does with the model that it receives.

Any trainer goes with any selector and aggregator, on any runtime. To write one, subclass `Trainer` in a file of its
own, and name it as package.module:Class or register it. `docs/trainer.md` teaches it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.core.interfaces import Part, Setting
from covey.core.replies import TRAINER, Replies
from covey.errors import Refusal, require
from covey.model.layout import Layout, Slot
from covey.model.trees import Tree
from covey.registries import trainers

MODEL: Literal["model"] = "model"
"""The shape of a field that has one number for each parameter: a tree on clients, a vector `[p]` on the server."""

Slots = Callable[[Layout], tuple[Slot, ...]]
"""Chooses tensors of a model, parameters or buffers. A field of this shape is a tree of these on clients."""

Shape = tuple[int, ...] | Literal["model"] | Slots

Fields = Mapping[str, Shape]
"""Name → shape of the tensors that are sent, kept or replied."""

KEPT = "kept"
"""What a client's kept tensors are filed under, packed as one vector."""

Values = dict[str, Any]
"""Values by name: trees and tensors."""


class LocalClient(NamedTuple):
    """A client in one round; all of it is constant while it trains."""

    received: Tree
    """The model that it starts from."""
    sent: dict[str, Any]
    """Tensors that came with the order, by the names in `Trainer.sent`: a tree for `MODEL`, a tensor otherwise."""
    kept: dict[str, Any]
    """What it kept when it trained last, by the names in `Trainer.kept`; zeros on its first visit."""
    age: Tensor
    """Rounds since it trained last; 0 on its first visit."""
    samples: Tensor
    """Number of samples that it trains on."""
    steps: Tensor
    """Number of its steps."""
    length: Tensor
    """Σ rate over its steps, with momentum as it adds up: a constant gradient g moves the model by -length·g (SGD)."""
    class_counts: Tensor
    """`[classes]`: its training samples of each class; empty where there are no classes."""


class Batch(NamedTuple):
    """The samples of one step."""

    x: Tensor
    """`[b, ...]`: inputs of the model."""
    y: Tensor
    """`[b]`: labels; `[b, targets]` where there are no classes."""
    weight: Tensor
    """`[b]`: 1/b, or 0 where a batch is padded."""
    rate: Tensor
    """Learning rate of the step."""
    epoch: Tensor
    """Local epoch, from 0."""
    key: Tensor
    """Random key of the step, int64."""


class Output(NamedTuple):
    """What a model computes for a batch."""

    logits: Tensor
    """`[b, outputs]`: one for each class or target."""
    features: Tensor | None = None
    """`[b, f]`: inputs of the last layer; None unless the trainer says `uses_features`."""


Loss = Callable[[Output, Tensor], Tensor]
"""Output and labels `[b]` → the loss of each sample `[b]`."""


class Net(Protocol):
    """The model as a trainer uses it. Precision, padding, dropout and batch norm are its business."""

    def gradient(self, w: Tree, batch: Batch, loss: Loss | None = None) -> Tree:
        """Return the gradient of the mean loss of a batch at `w`; by default of the task's loss.

        A step's first call also moves batch-norm statistics, and its loss is the one that is reported.
        """
        ...

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Return the task's loss of each sample `[b]`, for a loss of your own that adds to it."""
        ...

    def features(self, w: Tree, batch: Batch) -> Tensor:
        """Return the inputs of the last layer at `w`, `[b, f]`; no gradient flows through them."""
        ...

    def clipped_gradient(self, w: Tree, batch: Batch, bound: float) -> Tree:
        """Return the mean over a batch of each sample's gradient, scaled down to the norm `bound` if it is longer.

        A gradient that is not finite counts as 0.
        """
        ...

    def noise(self, w: Tree, batch: Batch) -> Tree:
        """Return standard normal numbers, one for each parameter, the same at every call in a step.

        In a simulation they follow from the batch's key. Real clients draw them from their operating system, so that
        nobody who knows the seed can subtract them.
        """
        ...


class Trainer(Part):
    """What a client does in a round: three functions of tensors that run on the client, and a server's half.

    A client calls `client_init` once, `client_step` on every batch, and `client_final` once. They are pure: they change
    no tensor in place, keep nothing in `self`, and branch on no tensor's value, so that many clients can run as one.
    The optimiser of the configuration (`local.optimizer`, momentum, weight decay, clipping) follows the gradient that
    `client_step` returns.

    The server calls `invited` and `send` for each order, `prepare` on the replies before they are aggregated, and
    `finish` on the aggregated model.
    """

    sent: Fields = {}
    """Tensors that the server sends with the model."""
    kept: Fields = {}
    """Tensors that stay on the client until its next visit. The server never sees them."""
    personal: str = ""
    """Name of the kept field, chosen by `Slots`, that is a part of the model: a client starts with its own values of
    it, keeps the trained ones, and never sends them. It starts with the server's on its first visit."""
    own_models: bool = False
    """True if clients use models of their own, so that it belongs to a method with many models."""
    replied: Fields = {}
    """Tensors that the client sends with its model."""
    uses_features: bool = False
    """True if its loss uses the inputs of the last layer."""
    aggregators: tuple[str, ...] = ()
    """The aggregators that it works with; empty: any."""
    private: bool = False
    """True if what a client trains is differentially private with respect to its samples."""
    needs_length: bool = False
    """True if it uses `LocalClient.length`, which is known for SGD without clipping alone."""

    def client_init(self, client: LocalClient) -> Values:
        """Return what is carried from step to step: tensors and trees by name; by default nothing."""
        return {}

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        """Return the gradient to follow from `w` on a batch, and what is carried to the next step."""
        return net.gradient(w, batch), carry

    def client_final(self, w: Tree, client: LocalClient, carry: Values) -> tuple[Values, Values]:
        """Return the values of `replied` and those of `kept` (but `personal`), given the trained parameters."""
        return {}, {}

    def invited(self, t: int, cohort: IntArray) -> None:
        """Learn which clients are ordered to train in round `t`; not all of them may reply."""

    def client_model(self, model: Tensor, kept: Mapping[str, Tensor], layout: Layout) -> Tensor:
        """Return the model `[d]` that a client uses, given the shared one and what it kept; a `MODEL` is a vector."""
        return with_personal(self, model, kept, layout)

    def send(self, t: int, model: Tensor) -> dict[str, Tensor]:
        """Return the values of `sent` for the clients of round `t`; a `MODEL` is a vector `[p]`."""
        return {}

    def prepare(self, t: int, model: Tensor, replies: Replies) -> Replies:
        """Return a round's replies as they are aggregated; `answers(replies)` has the values of `replied`."""
        return replies

    def finish(self, t: int, model: Tensor, found: Tensor, replies: Replies) -> Tensor:
        """Return the next model `[d]`, given the current one, the aggregated one and the replies as they came."""
        return found

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        work, name = setting.work, type(self).__name__
        if self.uses_features:
            setting.layout.require_head(f"The loss of the trainer {name}")
        require(
            not self.needs_length or (work.optimizer == "sgd" and not work.clip),
            f"The trainer {name} computes with the length of clients' steps, which is known for SGD without clipping: "
            "it goes with local.optimizer=sgd and local.clip=0.",
        )


def answers(replies: Replies) -> Mapping[str, Tensor]:
    """Return what clients replied for the trainer: field → `[k, ...]`."""
    return replies.probes.get(TRAINER, {})


@dataclass(frozen=True)
class TrainerRef:
    """A trainer by its name and options: how orders carry it, and what equal trainers have in common."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def part(self) -> Trainer:
        """The trainer, for its client's half."""
        return _made(self)


@lru_cache(maxsize=64)
def _made(ref: TrainerRef) -> Trainer:
    made = trainers.make(ref.name, dict(ref.options))
    require_trainer(made)
    return made  # type: ignore[no-any-return]


def require_trainer(part: object) -> None:
    """Refuse a part that is no trainer."""
    require(
        isinstance(part, Trainer), f"{type(part).__name__} is no trainer: one of your own derives from covey.Trainer."
    )
    cls = type(part)
    for name in sorted(set(dir(cls)) - set(dir(Trainer))):
        require(
            not (name.startswith("client_") and callable(getattr(cls, name))),
            f"The trainer {cls.__name__} has '{name}', which nothing calls: clients call client_init, client_step and "
            "client_final. A function of your own needs a name that begins otherwise.",
        )


@dataclass(frozen=True, eq=False)
class KeptRow:
    """What a client kept: in a simulation its values, packed; on a real client they are named by their round."""

    t: int
    """The round in which it kept them."""
    values: Tensor
    """`[n]`; of a real client the round alone."""


@dataclass(frozen=True, eq=False)
class TrainerOrder:
    """A trainer's part of an order."""

    ref: TrainerRef
    sent: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[int, KeptRow] = field(default_factory=dict)
    """Client → what it kept; clients on their first visit have none."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Field → shape of what clients reply."""
    shared: Tensor | None = None
    """`[s]`: places of a state that are sent and returned, if a part of it stays with clients; None: all of it."""


class Packing:
    """Packs fields as one vector, and back."""

    def __init__(self, fields: Fields, layout: Layout) -> None:
        self.layout = layout
        self.fields = fields
        self.sizes = {name: _size(shape, layout) for name, shape in fields.items()}
        self.size = sum(self.sizes.values())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Field → shape on the server."""
        return {name: shape if isinstance(shape, tuple) else (self.sizes[name],) for name, shape in self.fields.items()}

    def pack(self, values: Mapping[str, Any], lead: tuple[int, ...] = ()) -> Tensor:
        """Return all fields as `[*lead, size]`."""
        require(
            set(values) == set(self.fields),
            f"A trainer gave values for {_listed(values)} and declares {_listed(self.fields)}.",
        )
        parts = []
        for name, size in self.sizes.items():
            value = values[name]
            if isinstance(value, Mapping):
                slots = self._slots(self.fields[name])
                flat = torch.cat([value[slot.name].reshape(*lead, -1) for slot in slots], dim=-1)
            else:
                flat = torch.as_tensor(value).reshape(*lead, -1)
            require(flat.shape[-1] == size, f"A trainer's '{name}' has {flat.shape[-1]:,} numbers and not {size:,}.")
            parts.append(flat)
        return torch.cat(parts, dim=-1) if parts else torch.zeros(*lead, 0)

    def flat(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the fields of `[..., size]`; a `MODEL` stays a vector `[..., p]`."""
        found: dict[str, Tensor] = {}
        at = 0
        for name, size in self.sizes.items():
            part, shape = vector[..., at : at + size], self.fields[name]
            found[name] = part.reshape((*vector.shape[:-1], *shape)) if isinstance(shape, tuple) else part
            at += size
        return found

    def trees(self, vector: Tensor) -> dict[str, Any]:
        """Return the fields of `[..., size]` as clients see them: those that are tensors of a model are trees."""
        return {
            name: value if isinstance(shape := self.fields[name], tuple) else _tree(value, self._slots(shape))
            for name, value in self.flat(vector).items()
        }

    def _slots(self, shape: Shape) -> tuple[Slot, ...]:
        """Return the tensors of the model that a field has."""
        return shape(self.layout) if callable(shape) else self.layout.parameters


def _tree(vector: Tensor, slots: Iterable[Slot]) -> Tree:
    """Return tensors packed one after another as `[..., n]` by name, as views."""
    found, at = {}, 0
    for slot in slots:
        found[slot.name] = vector[..., at : at + slot.size].reshape((*vector.shape[:-1], *slot.shape))
        at += slot.size
    return found


def parameter_tree(vector: Tensor, layout: Layout) -> Tree:
    """Return the parameters of vectors `[..., p]` or states `[..., d]` by name, as views."""
    return {slot.name: slot.of(vector) for slot in layout.parameters}


def personal_places(trainer: Trainer, layout: Layout) -> Tensor | None:
    """Return the places `[n]` of a state that stay with clients, in the order of their slots; None if none does."""
    if not trainer.personal:
        return None
    chosen = trainer.kept[trainer.personal]
    assert callable(chosen)
    return _places(chosen(layout))


@lru_cache(maxsize=16)
def _places(slots: tuple[Slot, ...]) -> Tensor:
    return torch.cat([torch.arange(slot.start, slot.start + slot.size) for slot in slots])


def shared_places(trainer: Trainer, layout: Layout) -> Tensor | None:
    """Return the places `[s]` of a state that are exchanged, ascending; None if all are."""
    places = personal_places(trainer, layout)
    if places is None:
        return None
    shared = torch.ones(layout.size, dtype=torch.bool)
    shared[places] = False
    return shared.nonzero().flatten()


def with_personal(trainer: Trainer, model: Tensor, kept: Mapping[str, Tensor], layout: Layout) -> Tensor:
    """Return a model `[d]` with a client's own values where a part of it stays with clients."""
    places = personal_places(trainer, layout)
    if places is None:
        return model
    return model.index_copy(0, places.to(model.device), kept[trainer.personal].to(model))


def _size(shape: Shape, layout: Layout) -> int:
    if shape == MODEL:
        return layout.trainable
    if callable(shape):
        return sum(slot.size for slot in shape(layout))
    require(
        isinstance(shape, tuple) and all(isinstance(length, int) and length > 0 for length in shape),
        f"A trainer's field has a shape such as (), (10,) or MODEL, not {shape!r}.",
    )
    size = 1
    for length in shape:
        assert isinstance(length, int)
        size *= length
    return size


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def ref_of(name: str, options: Mapping[str, Any]) -> TrainerRef:
    """Return the reference to a trainer; its options travel, so they are plain values.

    Those that are none by default travel only if they are given: clients of earlier versions may not know them.
    """
    for option, value in options.items():
        if not isinstance(value, (bool, int, float, str, tuple, type(None))):
            raise Refusal(f"trainer.{option} is a {type(value).__name__}, which cannot be sent to a client.")
    known = trainers[name].options
    unsaid = {one for one, value in options.items() if value is None and one in known and known[one].default is None}
    said = {one: value for one, value in options.items() if one not in unsaid}
    return TrainerRef(name, tuple(sorted(said.items())))
