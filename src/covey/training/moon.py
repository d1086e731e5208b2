"""MOON (Li et al. 2021): contrastive learning between a client's model, its last one, and the global one."""

import torch.nn.functional as F
from torch import Tensor

from covey.core.trainer import MODEL, Batch, LocalClient, Net, Output, Trainer, Values
from covey.errors import require
from covey.model.trees import Tree
from covey.registries import trainers


@trainers.add("moon")
class Moon(Trainer):
    """Pulls features towards the global model's and away from those of the client's last model.

    Features are the inputs of the model's last layer. The paper's networks have a projection head of two layers there,
    which is left to the model that you give. On a first visit there is no last model, and no contrast.

    mu: μ, the weight of the contrastive loss.
    temperature: τ, by which similarities are divided.
    """

    kept = {"model": MODEL}
    uses_features = True

    def __init__(self, *, mu: float = 1.0, temperature: float = 0.5) -> None:
        require(mu >= 0, f"trainer.mu must not be negative, not {mu:g}.")
        require(temperature > 0, f"trainer.temperature must be above 0, not {temperature:g}.")
        self.mu, self.temperature = mu, temperature

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        shared, last = net.features(client.received, batch), net.features(client.kept["model"], batch)
        # On a first visit there is no last model, and nothing to contrast with.
        weight = self.mu * (client.age > 0).to(shared.dtype)

        def contrastive(output: Output, y: Tensor) -> Tensor:
            assert output.features is not None
            alike, unlike = (F.cosine_similarity(output.features, other, dim=1) for other in (shared, last))
            # Equation 3: -log(exp(alike/τ) / (exp(alike/τ) + exp(unlike/τ))).
            contrast = F.softplus((unlike - alike) / self.temperature)
            # Equation 4: ℓ = ℓ_sup + μ·ℓ_con.
            return net.losses(output, y) + weight * contrast

        return net.gradient(w, batch, contrastive), carry

    def client_final(self, w: Tree, client: LocalClient, carry: Values) -> tuple[Values, Values]:
        return {}, {"model": w}
