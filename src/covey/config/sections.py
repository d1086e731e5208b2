"""Sections of a configuration: local training, the clients' devices, alterations of their data."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from covey.errors import require


@dataclass(frozen=True, kw_only=True)
class Local:
    """Local training, as every client of a round runs it."""

    epochs: int = 5
    """Passes over the client's samples."""
    batch: int = 10
    """Samples per step; 0 takes all of the client's samples in one step."""
    rate: float = 0.1
    """Learning rate of the first epoch of the first round."""
    decay: float = 1.0
    """Factor on the rate after every local epoch, carried over rounds."""
    momentum: float = 0.0
    """Heavy-ball momentum; starts from zero in every round."""
    weight_decay: float = 0.0
    """L2 penalty on the parameters."""
    proximal: float = 0.0
    """FedProx's μ: pull towards the received model."""
    crop: int = 0
    """Random crop after padding by this many pixels; 0 switches it off."""
    flip: bool = False
    """Random horizontal flip."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD, or Adam as in `torch.optim.Adam`; Adam's moments start from zero in every round."""
    clip: float = 0.0
    """Greatest norm of a step's gradient over all parameters; 0 switches clipping off."""

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"local.epochs must be at least 1, not {self.epochs}.")
        require(self.batch >= 0, f"local.batch must be at least 1, or 0 for all samples at once, not {self.batch}.")
        require(self.rate > 0, f"local.rate must be above 0, not {self.rate:g}.")
        require(0 < self.decay <= 1, f"local.decay is a fraction in (0, 1], not {self.decay:g}.")
        require(0 <= self.momentum < 1, f"local.momentum must be in [0, 1), not {self.momentum:g}.")
        require(self.weight_decay >= 0, f"local.weight_decay must not be negative, not {self.weight_decay:g}.")
        require(self.proximal >= 0, f"local.proximal must not be negative, not {self.proximal:g}.")
        require(self.crop >= 0, f"local.crop must not be negative, not {self.crop}.")
        require(self.optimizer in ("sgd", "adam"), f"local.optimizer is sgd or adam, not '{self.optimizer}'.")
        require(
            self.optimizer == "sgd" or self.momentum == 0,
            f"local.momentum belongs to SGD: with local.optimizer=adam it must be 0, not {self.momentum:g}.",
        )
        require(self.clip >= 0, f"local.clip must not be negative, not {self.clip:g}; 0 switches clipping off.")

    def rate_at(self, t: int, epoch: int) -> float:
        """Return the learning rate in local epoch `epoch` (from 0) of round `t` (from 1)."""
        return self.rate * self.decay ** ((t - 1) * self.epochs + epoch)

    def as_message(self) -> dict[str, Any]:
        """Return the settings as they are sent to clients; those in `_ADDED` only if they are used."""
        return {name: value for name, value in asdict(self).items() if name not in _ADDED or value != _ADDED[name]}


_ADDED = {"optimizer": "sgd", "clip": 0.0}
"""Settings of `Local` that clients of earlier versions do not know, and what these clients do."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Simulated devices of the clients. By default all are equal and always reachable."""

    speed: float = 1000.0
    """Samples per second that the median client trains on."""
    bandwidth: float = 1e6
    """Bytes per second that the median client sends or receives."""
    spread: float = 0.0
    """Standard deviation of the logarithm of speed and bandwidth over clients; 1 puts 1 in 20 at 7 times slower."""
    availability: float = 1.0
    """Share of the clients that can be reached in a round, drawn anew every round."""
    dropout: float = 0.0
    """Probability that an invited client does not reply."""
    deadline: float = 0.0
    """Seconds after which the server stops waiting; later replies are lost. 0 waits for everyone."""

    def __post_init__(self) -> None:
        require(self.speed > 0, f"devices.speed must be above 0, not {self.speed:g}.")
        require(self.bandwidth > 0, f"devices.bandwidth must be above 0, not {self.bandwidth:g}.")
        require(self.spread >= 0, f"devices.spread must not be negative, not {self.spread:g}.")
        require(0 < self.availability <= 1, f"devices.availability is a fraction in (0, 1], not {self.availability:g}.")
        require(0 <= self.dropout < 1, f"devices.dropout must be in [0, 1), not {self.dropout:g}.")
        require(self.deadline >= 0, f"devices.deadline must not be negative, not {self.deadline:g}.")


@dataclass(frozen=True, kw_only=True)
class Alterations:
    """Altered clients and labels, as shares from 0 to 1."""

    shifted: float = 0.0
    """Share of clients whose images are moved right and down by an eighth."""
    blurred: float = 0.0
    """Share of clients whose images are blurred."""
    inverted: float = 0.0
    """Share of clients whose images are negatives."""
    noise: float = 0.0
    """Share of every client's labels that are replaced by another class at random."""
    poison: float = 0.0
    """Share of clients whose labels are all wrong: y becomes y + 1, the last class the first."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            share = getattr(self, spec.name)
            require(0 <= share <= 1, f"altered.{spec.name} must be a share from 0 to 1, not {share:g}.")
        total = self.shifted + self.blurred + self.inverted
        require(
            total <= 1 + 1e-9,
            f"altered.shifted, .blurred and .inverted are different clients: their shares sum to {total:g}, above 1.",
        )

    def __bool__(self) -> bool:
        """True if anything is altered."""
        return any(getattr(self, spec.name) > 0 for spec in fields(self))


SECTIONS: dict[str, type[Local] | type[Alterations] | type[Devices]] = {
    "local": Local,
    "altered": Alterations,
    "devices": Devices,
}
"""Sections of typed values, by their key in a configuration."""
