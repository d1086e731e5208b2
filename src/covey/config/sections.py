"""Sections of a configuration: local training, the clients' devices, alterations of their data, guard and attack.

Those about the server's optimiser and averages are in `server_sections`.
"""

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from covey.config.server_sections import Averaging, ServerStep
from covey.errors import require

AttackKind = Literal["none", "flip", "scale", "count", "count-flip", "noise", "collude", "lie", "labels"]


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
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """SGD; Adam as in `torch.optim.Adam`; or AdamW, whose weight decay is apart from the gradient. Moments start from
    zero in every round."""
    clip: float = 0.0
    """Greatest norm of a step's gradient over all parameters; 0 switches clipping off."""
    schedule: Literal["constant", "cosine", "step"] = "constant"
    """How the rate changes over rounds, beside `decay`: not at all; along half a cosine, down to nearly 0; or by
    `schedule_factor` after every `schedule_rounds` rounds."""
    schedule_rounds: int = 0
    """Rounds of the cosine, with the warm-up, or between two steps. A cosine's 0 becomes `rounds` when the run is
    configured and then stays; in later rounds the rate is that of the cosine's last."""
    schedule_factor: float = 0.1
    """Share of the rate that a step leaves."""
    warmup: int = 0
    """Rounds at the start with a lower rate: round t has t/(warmup + 1) of it."""

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"local.epochs must be at least 1, not {self.epochs}.")
        require(self.batch >= 0, f"local.batch must be at least 1, or 0 for all samples at once, not {self.batch}.")
        require(self.rate > 0, f"local.rate must be above 0, not {self.rate:g}.")
        require(0 < self.decay <= 1, f"local.decay is a fraction in (0, 1], not {self.decay:g}.")
        require(0 <= self.momentum < 1, f"local.momentum must be in [0, 1), not {self.momentum:g}.")
        require(self.weight_decay >= 0, f"local.weight_decay must not be negative, not {self.weight_decay:g}.")
        require(self.proximal >= 0, f"local.proximal must not be negative, not {self.proximal:g}.")
        require(self.crop >= 0, f"local.crop must not be negative, not {self.crop}.")
        require(
            self.optimizer in ("sgd", "adam", "adamw"),
            f"local.optimizer is sgd, adam or adamw, not '{self.optimizer}'.",
        )
        require(
            self.optimizer == "sgd" or self.momentum == 0,
            f"local.momentum belongs to SGD: with local.optimizer={self.optimizer} it must be 0, not "
            f"{self.momentum:g}.",
        )
        require(self.clip >= 0, f"local.clip must not be negative, not {self.clip:g}; 0 switches clipping off.")
        self._require_schedule()

    def _require_schedule(self) -> None:
        kinds, rounds, warmup = ("constant", "cosine", "step"), self.schedule_rounds, self.warmup
        require(self.schedule in kinds, f"local.schedule is constant, cosine or step, not '{self.schedule}'.")
        require(rounds >= 0, f"local.schedule_rounds must not be negative, not {rounds}.")
        require(warmup >= 0, f"local.warmup must not be negative, not {warmup}; 0 switches it off.")
        require(
            0 < self.schedule_factor < 1,
            f"local.schedule_factor is a share between 0 and 1, not {self.schedule_factor:g}.",
        )
        if self.schedule == "constant":
            return
        require(
            rounds >= 1,
            f"local.schedule={self.schedule} needs local.schedule_rounds, the rounds "
            f"{'until it ends' if self.schedule == 'cosine' else 'between two steps'}.",
        )
        require(
            warmup < rounds,
            f"local.warmup must be below local.schedule_rounds ({rounds}), not {warmup}: the rate would fall before "
            "it has risen.",
        )

    def rate_at(self, t: int, epoch: int) -> float:
        """Return the learning rate in local epoch `epoch` (from 0) of round `t` (from 1)."""
        rate = self.rate * self.decay ** ((t - 1) * self.epochs + epoch)
        if self.schedule == "constant" and not self.warmup:
            return rate
        return max(rate * self._share_at(t), _LEAST_RATE)

    def _share_at(self, t: int) -> float:
        """Return the share of the rate that warm-up and schedule leave in round `t`."""
        if t <= self.warmup:
            return t / (self.warmup + 1)
        if self.schedule == "cosine":
            # (1 + cos(π·k/n))/2 in the k-th of n rounds, from 0, as a square: exact near its end, and never 0.
            n = self.schedule_rounds - self.warmup
            left = self.schedule_rounds - min(t, self.schedule_rounds) + 1
            return math.sin(math.pi / 2 * left / n) ** 2
        return self.schedule_factor ** ((t - 1) // self.schedule_rounds) if self.schedule == "step" else 1.0

    def is_as_written(self, written: Mapping[str, Any]) -> bool:
        """Return whether settings that were written down, maybe before some of them existed, are these."""
        return {**_ADDED, **written} == vars(self)

    def as_message(self) -> dict[str, Any]:
        """Return the settings as they are sent to clients; those in `_ADDED` only if they are used."""
        return {name: value for name, value in vars(self).items() if name not in _ADDED or value != _ADDED[name]}


_ADDED = {
    "optimizer": "sgd",
    "clip": 0.0,
    "schedule": "constant",
    "schedule_rounds": 0,
    "schedule_factor": 0.1,
    "warmup": 0,
}
"""Settings of `Local` that clients of earlier versions do not know, and what these clients do."""

_LEAST_RATE = 1e-37
"""Rates of a schedule stay above 0, in float32 too: a rate of 0 says that there is no step."""


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


@dataclass(frozen=True, kw_only=True)
class GuardLimits:
    """How far clients' claims may go. The limits lie far beyond what honest clients differ by."""

    on: bool = True
    """False takes updates and sample counts as they come."""
    norm: float = 50.0
    """An update that is this many times as large as the cohort's and earlier ones is dropped; 0 drops none."""
    count: float = 10_000.0
    """A client that claims more than this many times the median number of samples counts as the median client; 0
    believes all."""
    invitations: float = 0.0
    """A client is invited at most this many times as often as the mean client, such as 1.5; 0 sets no bound."""

    def __post_init__(self) -> None:
        require(self.norm == 0 or self.norm > 1, f"guard.norm is above 1, or 0 for no bound, not {self.norm:g}.")
        require(
            self.count == 0 or self.count >= 1, f"guard.count is at least 1, or 0 for no bound, not {self.count:g}."
        )
        require(
            self.invitations == 0 or self.invitations >= 1,
            f"guard.invitations is at least 1, or 0 for no bound, not {self.invitations:g}.",
        )


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Hostile clients, to see what a method is worth against them; in simulations alone."""

    kind: AttackKind = "none"
    """What they send: flip the update turned round; scale it much enlarged; count a billion samples; count-flip both;
    noise a random update of the same size; collude all the same turned update; lie a high loss, and the mean insight;
    labels honest updates from wrong labels (as altered.poison)."""
    attackers: float = 0.1
    """Share of the clients that are hostile."""
    factor: float = 0.0
    """Factor on the size of hostile updates (of flip, scale, noise, collude); 0 is 1000 for scale and 1 otherwise."""

    def __post_init__(self) -> None:
        kinds = typing.get_args(AttackKind)
        require(self.kind in kinds, f"attack.kind is one of {', '.join(kinds)}, not '{self.kind}'.")
        require(0 <= self.attackers < 1, f"attack.attackers is a share in [0, 1), not {self.attackers:g}.")
        require(self.factor >= 0, f"attack.factor must not be negative, not {self.factor:g}.")

    def __bool__(self) -> bool:
        """True if clients reply otherwise than they should; wrong labels are an alteration of their data."""
        return self.kind not in ("none", "labels") and self.attackers > 0

    @property
    def size(self) -> float:
        """The factor on the size of hostile updates."""
        return self.factor or (1000.0 if self.kind == "scale" else 1.0)


Section = Local | Alterations | Devices | GuardLimits | Attack | ServerStep | Averaging

SECTIONS: dict[str, type[Section]] = {
    "local": Local,
    "altered": Alterations,
    "devices": Devices,
    "guard": GuardLimits,
    "attack": Attack,
    "server": ServerStep,
    "averaging": Averaging,
}
"""Sections of typed values, by their key in a configuration."""
