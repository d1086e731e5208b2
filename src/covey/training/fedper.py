"""FedPer (Arivazhagan et al. 2019): base layers are averaged, and the last layers stay with each client."""

from covey.core.interfaces import Setting
from covey.core.trainer import Trainer
from covey.errors import require
from covey.model.layout import Layout, Slot
from covey.registries import trainers


def last_layers(layout: Layout, count: int) -> tuple[Slot, ...]:
    """Return the tensors of a model's last layers, of those that have parameters; the head is the very last."""
    layers = layers_below(layout)
    chosen = set(layers[len(layers) - (count - 1) :])
    below = [slot for slot in (*layout.parameters, *layout.buffers) if _layer(slot) in chosen]
    return (*layout.head, *(slot for slot in below if slot not in layout.head))


def layers_below(layout: Layout) -> list[str]:
    """Return the names of the layers with parameters, but the head, first to last."""
    return list(dict.fromkeys(_layer(slot) for slot in layout.parameters if slot not in layout.head))


def _layer(slot: Slot) -> str:
    return slot.name.rpartition(".")[0]


@trainers.add("fedper")
class FedPer(Trainer):
    """Leaves the model's last layers with each client and trains all layers together; the method `fedper` uses it.

    layers: number of last layers that stay with a client.
    """

    personal = "last"
    own_models = True

    def __init__(self, *, layers: int = 1) -> None:
        require(layers >= 1, f"many.layers must be at least 1, not {layers}.")
        self.layers = layers
        self.kept = {"last": self.slots}

    def slots(self, layout: Layout) -> tuple[Slot, ...]:
        """Return the tensors that stay with a client."""
        return last_layers(layout, self.layers)

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        setting.layout.require_head("The method 'fedper'")
        below = len(layers_below(setting.layout))
        require(
            self.layers <= below,
            f"many.layers={self.layers} leaves nothing to share: the model has {below + 1} layers with parameters.",
        )
