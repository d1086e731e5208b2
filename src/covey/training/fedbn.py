"""FedBN (Li et al. 2021, Algorithm 1): normalisation layers are local, and the rest of the model is averaged."""

from covey.core.interfaces import Setting
from covey.core.trainer import Trainer
from covey.errors import require
from covey.model.layout import Layout, Slot
from covey.registries import trainers


def norms_of(layout: Layout) -> tuple[Slot, ...]:
    """Return the parameters and statistics of normalisation layers."""
    return layout.norms


@trainers.add("fedbn")
class FedBN(Trainer):
    """Leaves normalisation layers, with their running statistics, with each client; the method `fedbn` uses it."""

    kept = {"norms": norms_of}
    personal = "norms"
    own_models = True

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        require(
            bool(setting.layout.norms),
            "fedbn leaves normalisation layers with clients, and the model has none: choose one with batch, layer or "
            "group norm, such as model.norm=batch of mlp or the model mobilenetv2.",
        )
