"""The plain form of Oort that FedACS (Wang et al. 2022, section VII) and NCCB compare with."""

import math

import numpy as np
from numpy.typing import NDArray

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Selector, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.randomness import generator
from covey.registries import selectors
from covey.selection.oort import MANY, best_first, highest_places, weighted_draw


@selectors.add("oort-simple")
class OortSimple(Selector):
    """Invites clients with high training loss: Oort as the FedACS and NCCB papers run it.

    Everyone is invited once, in random order. From then on, in round t, client i has the utility

        u_i = training loss + √(staleness · ln t / t_i),

    with the loss of round t_i, in which it last answered. The cohort is drawn in proportion to u_i from a pool of the
    highest. There is no clipping, no exploration beyond the bonus, no speed and no pacer. A client that never answered
    has loss 0 and t_i = 1, as in the code of FedACS's authors.

    pool: the share of all clients to draw from, at least a cohort.
    staleness: the factor in the bonus of clients that have not answered for long.
    ban: a client with this many answers is not invited again, unless nobody else can be reached; 0 never bans.
    keep: nobody is banned if only this many clients, or a cohort, are left.
    """

    def __init__(self, *, pool: float = 0.2, staleness: float = 0.1, ban: int = 100, keep: int = 10) -> None:
        require(0 < pool <= 1, f"selector.pool is a share of the clients in (0, 1], not {pool:g}.")
        require(staleness >= 0, f"selector.staleness must not be negative, not {staleness:g}.")
        require(ban >= 0, f"selector.ban must be at least 1, or 0 for never, not {ban}.")
        require(keep >= 1, f"selector.keep must be at least 1, not {keep}.")
        self.pool = pool
        self.staleness = staleness
        self.ban = ban
        self.keep = keep

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        clients = setting.clients
        self.losses: FloatArray = np.zeros(clients)
        """`[clients]`: mean training loss, as last reported."""
        self.last: IntArray = np.ones(clients, dtype=np.int64)
        """`[clients]`: the round of the last answer, t_i."""
        self.answers: IntArray = np.zeros(clients, dtype=np.int64)
        """`[clients]`: number of answers."""
        self.visited: NDArray[np.bool_] = np.zeros(clients, dtype=np.bool_)
        """`[clients]`: True if the client was ever invited."""
        self.banned: NDArray[np.bool_] = np.zeros(clients, dtype=np.bool_)
        """`[clients]`"""
        self._cohort: IntArray = np.empty(0, dtype=np.int64)

    def select(self, t: int, candidates: IntArray) -> IntArray:
        rng = generator(self.setting.seed, t, "cohort")
        size = min(self.setting.cohort, len(candidates))
        fresh = candidates[~self.visited[candidates]]
        if len(fresh):
            first = rng.choice(fresh, size=min(size, len(fresh)), replace=False)
            others = candidates[~self.banned[candidates] & self.visited[candidates]]
            more = rng.choice(others, size=min(size - len(first), len(others)), replace=False)
            self._cohort = np.concatenate([first, more])
            return self._cohort
        allowed = candidates[~self.banned[candidates]]
        if not len(allowed):
            # A banned client is better than no client.
            allowed = candidates
        utilities = self.utilities(t, allowed)
        pool = max(int(self.pool * self.setting.clients), size)
        # Nothing depends on the order of a pool so large that it is drawn from by sums of weights.
        best = highest_places(utilities, pool) if pool > MANY else best_first(utilities, pool)
        self._cohort = weighted_draw(rng, allowed[best], utilities[best], size)
        return self._cohort

    def utilities(self, t: int, clients: IntArray) -> FloatArray:
        """Return u_i: `[clients]`."""
        utilities: FloatArray = self.losses[clients] + np.sqrt(self.staleness * math.log(t) / self.last[clients])
        return utilities

    def observe(self, t: int, replies: Replies) -> None:
        clients = replies.clients
        self.visited[self._cohort] = True
        self.visited[clients] = True
        self.losses[clients] = replies.losses.numpy()
        self.last[clients] = t
        self.answers[clients] += 1
        if self.ban:
            for client in clients[(self.answers[clients] >= self.ban) & ~self.banned[clients]].tolist():
                if np.count_nonzero(~self.banned) > max(self.keep, self.setting.cohort):
                    self.banned[client] = True

    def state_dict(self) -> State:
        return {
            "losses": self.losses.copy(),
            "last": self.last.copy(),
            "answers": self.answers.copy(),
            "visited": self.visited.copy(),
            "banned": self.banned.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        self.losses = np.array(state["losses"])
        self.last = np.array(state["last"])
        self.answers = np.array(state["answers"])
        self.visited = np.array(state["visited"])
        self.banned = np.array(state["banned"])
