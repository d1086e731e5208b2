"""FedSAM (Qu et al. 2022, Algorithm 1): clients look for flat minima (SAM, Foret et al. 2021)."""

from covey.core.trainer import Batch, LocalClient, Net, Trainer, Values
from covey.errors import require
from covey.model.trees import Tree, map_tree, tree_norm
from covey.registries import trainers


@trainers.add("fedsam")
class FedSAM(Trainer):
    """Follows the gradient at the worst point nearby, which leads to flat minima; each step costs two gradients.

    rho: ρ, the distance of that point.
    """

    def __init__(self, *, rho: float = 0.05) -> None:
        require(rho > 0, f"trainer.rho must be above 0, not {rho:g}.")
        self.rho = rho

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        gradient = net.gradient(w, batch)
        # Lines 6 to 8: w̃ = w + ρ·g/‖g‖; the step follows the gradient at w̃.
        scale = self.rho / (tree_norm(gradient) + 1e-12)
        return net.gradient(map_tree(lambda w, g: w + scale * g, w, gradient), batch), carry
