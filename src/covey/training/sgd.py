"""Plain local training (McMahan et al. 2017, Algorithm 1): w ← w - η·∇loss(w)."""

from covey.core.trainer import Trainer
from covey.registries import trainers


@trainers.add("sgd")
class Sgd(Trainer):
    """Follows the gradient of the cross-entropy, with the optimiser of `local`."""
