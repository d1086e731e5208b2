"""FedProx (Li et al. 2020): clients are pulled towards the model that they received."""

from covey.core.trainer import Batch, LocalClient, Net, Trainer, Values
from covey.errors import require
from covey.model.trees import Tree, map_tree
from covey.registries import trainers


@trainers.add("fedprox")
class FedProx(Trainer):
    """Adds a proximal term to the local objective: (μ/2)·‖w - w⁰‖².

    mu: μ, the strength of the pull towards the received model w⁰.
    """

    def __init__(self, *, mu: float = 0.01) -> None:
        require(mu >= 0, f"trainer.mu must not be negative, not {mu:g}.")
        self.mu = mu

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        gradient = net.gradient(w, batch)
        # Equation 2: ∇h(w; w⁰) = ∇F(w) + μ(w - w⁰).
        return map_tree(lambda g, w, start: g + self.mu * (w - start), gradient, w, client.received), carry
