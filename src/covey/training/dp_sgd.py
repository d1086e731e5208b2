"""DP-SGD (Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1), on every client."""

import math

import numpy as np
from torch import Tensor

from covey.arrays import IntArray, State
from covey.client.trainer_fit import NO_SINGLE_SAMPLES
from covey.core.interfaces import Setting
from covey.core.trainer import Batch, LocalClient, Net, Trainer, Values
from covey.errors import require
from covey.model.trees import Tree, map_tree
from covey.probe.class_query import composed_epsilon
from covey.registries import trainers


@trainers.add("dp-sgd")
class DPSGD(Trainer):
    """Clips each sample's gradient and adds Gaussian noise, so that models tell little about any one sample.

        g ← (1/b)·(Σ_i g_i·min(1, C/‖g_i‖) + N(0, (z·C)²)),     g_i the gradient of sample i, b samples in a batch.

    Clients add the noise themselves, so this holds against the server, too, as long as it orders it; on real clients
    the noise comes from the operating system. Not covered: losses that clients report, what they measure, scores on
    their samples, and the numbers of their samples.

    Records tell ε of the client that was invited most often: of everything that its models told in all rounds, where
    any one of its samples is replaced by another. Batches are shuffled and not drawn by themselves, so nothing is
    amplified by sampling: a sample is in one batch of an epoch, and its gradient moves that batch's sum by 2C at most.
    An epoch is one Gaussian mechanism of sensitivity 2C and deviation z·C, and E epochs in each of v rounds compose to
    one of E·v. An invitation counts even if the reply was lost.

    noise: z, the standard deviation of the noise on the sum of a batch's gradients, as a multiple of C.
    clip: C, the longest gradient of a sample.
    delta: δ for which ε is recorded; none records no ε, and needs no dp-accounting.
    """

    private = True

    def __init__(self, *, noise: float = 1.0, clip: float = 1.0, delta: float | None = 1e-5) -> None:
        require(0 < noise < math.inf, f"trainer.noise must be above 0 and finite, not {noise:g}.")
        require(0 < clip < math.inf, f"trainer.clip must be above 0 and finite, not {clip:g}.")
        require(delta is None or 0 < delta < 1, f"trainer.delta must be between 0 and 1, or none, not {delta}.")
        self.noise, self.clip, self.delta = noise, clip, delta

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        clipped = net.clipped_gradient(w, batch, self.clip)
        # Padding has weight 0, and real samples 1/b.
        deviation = self.noise * self.clip * batch.weight.amax()

        def noisy(g: Tensor, normal: Tensor) -> Tensor:
            return g + deviation * normal

        return map_tree(noisy, clipped, net.noise(w, batch)), carry

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        require(not setting.layout.buffers, f"The trainer dp-sgd does not go with this model. {NO_SINGLE_SAMPLES}")
        self._epochs: IntArray = np.zeros(setting.clients, dtype=np.int64)
        """Passes over its samples that each client has been ordered to make."""
        # Real clients may have trained in a round that was cut off, and do so again with other noise.
        self._repeated = setting.work.epochs if setting.resumed and setting.live else 0
        # A missing package is reported before the first round.
        self.epsilon(1)

    def invited(self, t: int, cohort: IntArray) -> None:
        self._epochs[cohort] += self.setting.work.epochs

    def epsilon(self, epochs: int) -> float | None:
        """Return ε of a client's models after so many passes over its samples, of all rounds; None without δ."""
        return None if self.delta is None else composed_epsilon(epochs * (2 / self.noise) ** 2, self.delta)

    def figures(self) -> dict[str, object]:
        epsilon = self.epsilon(int(self._epochs.max()))
        return {} if epsilon is None else {"epsilon": epsilon, "delta": self.delta, "protects": "sample"}

    def state_dict(self) -> State:
        return {"epochs": self._epochs.copy()}

    def load_state_dict(self, state: State) -> None:
        # A model that is taken back has been told all the same.
        self._epochs = np.maximum(self._epochs, np.asarray(state["epochs"]) + self._repeated)
        self._repeated = 0
