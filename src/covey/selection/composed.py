"""On-Demand FL's selection (Jeong and Lee 2024, section 4.1): only clients that together have the target class mix."""

import numpy as np

from covey.arrays import IntArray
from covey.core.interfaces import Selector, Setting
from covey.errors import require
from covey.randomness import generator
from covey.registries import selectors


@selectors.add("composed")
class ComposedSelector(Selector):
    """Invites clients of a given set, uniformly at random without replacement.

    Eq. 10 would sample a share f of the set by the ratios, which is a single client. As in the authors' runs, a round
    invites a full cohort (or the whole set if it is smaller) uniformly, and the ratios weigh the average (`ratios`).
    `covey ondemand` composes the set.

    clients: the composed set S.
    """

    def __init__(self, *, clients: tuple[int, ...] = ()) -> None:
        self.clients = np.array(clients, dtype=np.int64)
        require(len(np.unique(self.clients)) == len(clients), "selector.clients names a client twice.")

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        require(
            len(self.clients) > 0,
            "selector.clients is empty: name the clients to choose from, or have covey ondemand compose them.",
        )
        require(
            bool((self.clients >= 0).all() and (self.clients < setting.clients).all()),
            f"selector.clients must be from 0 to {setting.clients - 1}.",
        )

    def select(self, t: int, candidates: IntArray) -> IntArray:
        reachable = np.intersect1d(self.clients, candidates)
        rng = generator(self.setting.seed, t, "composed")
        return np.asarray(rng.choice(reachable, size=min(self.setting.cohort, len(reachable)), replace=False))
