"""Sections of a configuration about the server: its optimiser, and averaging over rounds."""

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from covey.errors import require

OptimizerName = Literal["none", "momentum", "adam", "yogi", "adagrad"]

_DEFAULTS: Mapping[OptimizerName, Mapping[str, float]] = {
    "none": {},
    "momentum": {"rate": 1.0, "beta": 0.9, "halving": 0.0},
    "adam": {"rate": 0.01, "beta": 0.9, "beta2": 0.99, "tau": 0.001, "halving": 0.0},
    "yogi": {"rate": 0.01, "beta": 0.9, "beta2": 0.99, "tau": 0.001, "halving": 0.0},
    "adagrad": {"rate": 0.1, "beta": 0.0, "tau": 0.001, "halving": 0.0},
}
"""The settings that an optimiser has, with their defaults; any other is refused."""


@dataclass(frozen=True, kw_only=True)
class ServerStep:
    """The server's optimiser: the aggregator's result minus the model is its gradient, with the sign turned.

    The defaults of β₁, β₂ and τ are those of Reddi et al.; they choose rates for each task.
    """

    optimizer: OptimizerName = "none"
    """none takes the aggregator's result; momentum (Hsu et al. 2019); adam, yogi, adagrad (Reddi et al. 2021)."""
    rate: float | None = None
    """Factor on the step; by default 1 with momentum, 0.01 with adam and yogi, 0.1 with adagrad."""
    beta: float | None = None
    """Decay of the momentum, β or β₁; by default 0.9, with adagrad 0."""
    beta2: float | None = None
    """Decay of the mean square, β₂, of adam and yogi; by default 0.99."""
    tau: float | None = None
    """Added to the root of the mean square by adam, yogi and adagrad; by default 0.001."""
    halving: float | None = None
    """The rate halves for good when the clients' mean training loss, and the median client's, is this many times as
    high as it has been, such as 2; by default 0, never."""

    def __post_init__(self) -> None:
        names = typing.get_args(OptimizerName)
        require(self.optimizer in names, f"server.optimizer is one of {', '.join(names)}, not '{self.optimizer}'.")
        defaults = _DEFAULTS[self.optimizer]
        for name in ("rate", "beta", "beta2", "tau", "halving"):
            given = getattr(self, name)
            if given is None:
                object.__setattr__(self, name, defaults.get(name))
            else:
                having = [one for one in names if name in _DEFAULTS[one]]
                require(
                    name in defaults,
                    f"server.{name} has no effect with server.optimizer={self.optimizer}: leave it out, or choose "
                    f"{', '.join(having[:-1])} or {having[-1]}.",
                )
        require(self.rate is None or self.rate > 0, f"server.rate must be above 0, not {self.rate}.")
        require(self.beta is None or 0 <= self.beta < 1, f"server.beta must be in [0, 1), not {self.beta}.")
        require(self.beta2 is None or 0 <= self.beta2 < 1, f"server.beta2 must be in [0, 1), not {self.beta2}.")
        require(self.tau is None or self.tau > 0, f"server.tau must be above 0, not {self.tau}.")
        require(not self.halving or self.halving > 1, f"server.halving is above 1, or 0 for never, not {self.halving}.")

    def __bool__(self) -> bool:
        """True if there is an optimiser."""
        return self.optimizer != "none"


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """The average over rounds that is evaluated, exported and reported; training goes on from the model itself."""

    ema: float = 0.0
    """Weights the model of n rounds ago by this to the power n, such as 0.95; 0 is off."""
    swa: int = 0
    """Averages the models of so many last rounds, which are all kept in memory and in the checkpoint; 0 is off."""

    def __post_init__(self) -> None:
        require(0 <= self.ema < 1, f"averaging.ema must be in [0, 1), not {self.ema:g}; 0 switches it off.")
        require(
            self.swa == 0 or self.swa >= 2,
            f"averaging.swa is a number of rounds from 2, or 0 for no averaging, not {self.swa}.",
        )
        require(
            not (self.ema and self.swa), "averaging.ema and averaging.swa are two ways to average: choose one of them."
        )

    def __bool__(self) -> bool:
        """True if models are averaged."""
        return bool(self.ema or self.swa)
