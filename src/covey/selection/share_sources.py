"""Where knowledge of clients' mixes comes from: asked for, read from updates, or groups of similar clients.

A source has a row for each client, its shares of classes (or of groups), NaN where nothing is known.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Probe, Setting
from covey.core.replies import Replies
from covey.errors import Refusal
from covey.probe.class_query import ClassQuery, Privacy, nearest_mix, shares_at_zero_head, zero_head
from covey.probe.simhash import SimHash, unpacked
from covey.randomness import generator, key
from covey.selection.bias_updates import BiasUpdates
from covey.selection.context_clusters import cluster_centres, distinct_contexts, nearest_centre

_ATTEMPTS = 3
"""Times that a client is asked until it answers; once if answers are noisy, as a lost one may have been sent."""

Survey = tuple[IntArray, tuple[Probe, ...]] | None


class ShareSource(ABC):
    """What is known of clients' mixes: rows of shares `[clients, width]`, of the clients seen so far."""

    width: int
    """Number of classes or groups."""
    learns_by_inviting = False
    """True if nothing is known of clients that never took part, so that they have to be tried."""

    def begin(self, setting: Setting) -> None:
        """Called once before the first round."""
        self.setting = setting
        self.known: NDArray[np.bool_] = np.zeros(setting.clients, dtype=np.bool_)
        """`[clients]`: True if the client's row is known."""

    @abstractmethod
    def rows(self, clients: IntArray) -> FloatArray:
        """Return the shares of clients: `[k, width]`; rows of NaN where unknown."""

    def survey(self, clients: IntArray) -> Survey:
        """Return those of the clients to ask before the round, and how; None asks nobody."""
        return None

    def survey_model(self, model: Tensor) -> Tensor:
        """Return the model that clients are asked about."""
        return model

    def surveyed(self, t: int, replies: Replies) -> None:
        """Learn from answers."""

    def sent(self, model: Tensor) -> None:
        """Learn the model that a round's clients start from."""

    def observe(self, replies: Replies) -> None:
        """Learn from a round's updates."""

    def figures(self) -> dict[str, object]:
        """Return values for the round's record."""
        return {}

    @abstractmethod
    def state_dict(self) -> State:
        """Return the state between rounds."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Restore the result of `state_dict`."""


class _AskingOnce(ShareSource):
    """Base of sources that ask every client once."""

    attempts = _ATTEMPTS

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.asked: NDArray[np.uint8] = np.zeros(setting.clients, dtype=np.uint8)
        """`[clients]`: times that the client was asked."""

    @abstractmethod
    def probe(self) -> Probe:
        """Return the question."""

    def survey(self, clients: IntArray) -> Survey:
        unknown = clients[~self.known[clients] & (self.asked[clients] < self.attempts)]
        self.asked[unknown] += 1
        return (unknown, (self.probe(),)) if len(unknown) else None

    def answers(self, replies: Replies) -> Replies:
        """Return the replies with a usable answer."""
        return replies.take(replies.observed(self.probe().name))

    def silent(self) -> State:
        """Return who was asked in vain, for a checkpoint."""
        clients = np.flatnonzero((self.asked > 0) & ~self.known)
        return {"silent": clients, "asked": self.asked[clients].astype(np.int64)}

    def load_silent(self, state: State, known: IntArray) -> None:
        """Restore the result of `silent` and who is known."""
        self.known[known] = True
        self.asked[known] = 1
        self.asked[np.array(state["silent"], dtype=np.int64)] = np.array(state["asked"], dtype=np.uint8)


class AskedShares(_AskingOnce):
    """Class shares by the closed-form query at a last layer of zeros: a number for each class, asked for once.

    They are exact if the last layer has a bias and `privacy` adds no noise, and else approximate.
    """

    def __init__(self, privacy: Privacy | None = None) -> None:
        self.privacy = privacy
        self.attempts = _ATTEMPTS if privacy is None else 1

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.width = setting.classes
        names = {slot.name.rpartition(".")[2] for slot in setting.layout.head}
        self._probe = ClassQuery("bias" if "bias" in names or not names else "weight", self.privacy)
        self.shares: NDArray[np.float32] = np.zeros((setting.clients, setting.classes), dtype=np.float32)
        """`[clients, classes]`; memory is taken by the rows that are written."""

    def probe(self) -> Probe:
        return self._probe

    def survey_model(self, model: Tensor) -> Tensor:
        return zero_head(self.setting.layout, model)

    def surveyed(self, t: int, replies: Replies) -> None:
        heard = self.answers(replies)
        if len(heard):
            # Outputs beyond the classes have no samples, hence a share of zero.
            found = shares_at_zero_head(heard.probes[self._probe.name])
            self.shares[heard.clients] = found[:, : self.width]
            self.known[heard.clients] = True

    def rows(self, clients: IntArray) -> FloatArray:
        rows = self.shares[clients].astype(np.float64)
        rows[~self.known[clients]] = np.nan
        return rows

    def figures(self) -> dict[str, object]:
        spent = self.privacy is not None and bool(self.asked.any())
        return {"epsilon_spent": self.privacy.epsilon} if spent and self.privacy is not None else {}

    def state_dict(self) -> State:
        clients = np.flatnonzero(self.known)
        return {"clients": clients, "shares": self.shares[clients], **self.silent()}

    def load_state_dict(self, state: State) -> None:
        clients = np.array(state["clients"], dtype=np.int64)
        self.load_silent(state, clients)
        self.shares[clients] = np.array(state["shares"], dtype=np.float32)


class UpdateShares(ShareSource):
    """Class shares estimated from how clients' training moves the bias of the last layer; nothing is asked.

    After R steps of rate η a client's bias has moved by Δb_i = ηR(D_i·ΣE_c - E_i), with D_i its share of class i and
    E_c the model's wrong confidence in class c (Chen and Vikalo 2024, equation 6). Taking all E_c for equal to E, and a
    client to lack some class, the least Δb is -ηRE, and D_i = 1/n + Δb_i/(n·ηRE) for n classes. So clients that have
    all classes seem to differ more than they do, and late in training estimates become rough, as confidences differ
    then. Estimates of a client are averaged over its visits, recent ones counting more.
    """

    learns_by_inviting = True
    memory = 0.5
    """Weight of the estimates before in the mean."""

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.width = setting.classes
        self.updates = BiasUpdates(setting)
        self.shares: NDArray[np.float32] = np.zeros((setting.clients, setting.classes), dtype=np.float32)
        """`[clients, classes]`"""

    def sent(self, model: Tensor) -> None:
        self.updates.sent(model)

    def observe(self, replies: Replies) -> None:
        clients, changes, _ = self.updates.of(replies)
        least = -changes.min(axis=1, keepdims=True) if len(clients) else changes
        scale = np.where(least > 0, least, np.inf)
        found = nearest_mix((1 + changes / scale) / self.width) if len(clients) else changes
        kept = np.where(self.known[clients], self.memory, 0.0)[:, None]
        self.shares[clients] = kept * self.shares[clients] + (1 - kept) * found
        self.known[clients] = True

    def rows(self, clients: IntArray) -> FloatArray:
        rows = self.shares[clients].astype(np.float64)
        rows[~self.known[clients]] = np.nan
        return rows

    def state_dict(self) -> State:
        clients = np.flatnonzero(self.known)
        return {"clients": clients, "shares": self.shares[clients]}

    def load_state_dict(self, state: State) -> None:
        clients = np.array(state["clients"], dtype=np.int64)
        self.known[clients] = True
        self.shares[clients] = np.array(state["shares"], dtype=np.float32)


class ContextGroups(_AskingOnce):
    """Groups of clients with similar samples, in place of classes: k-means clusters of SimHash fingerprints.

    A client sends its fingerprint of 64 bits once. Clusters are made anew whenever twice as many clients are known.
    """

    def __init__(self, groups: int) -> None:
        self.width = groups
        self._probe = SimHash()

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.contexts: NDArray[np.uint8] = np.zeros((setting.clients, self._probe.bits // 8), dtype=np.uint8)
        """`[clients, bits / 8]`"""
        self.group: NDArray[np.int16] = np.zeros(setting.clients, dtype=np.int16)
        """`[clients]`"""
        self.grouped = 0
        """Number of clients known when the clusters were made."""
        self.centres: FloatArray = np.empty((0, self._probe.bits))

    def probe(self) -> Probe:
        return self._probe

    def surveyed(self, t: int, replies: Replies) -> None:
        heard = self.answers(replies)
        if not len(heard):
            return
        self.contexts[heard.clients] = heard.probes[self._probe.name]["bits"].numpy()
        self.known[heard.clients] = True
        known = np.flatnonzero(self.known)
        if len(known) < 2 * self.grouped:
            self._join(heard.clients)
            return
        self.grouped = len(known)
        contexts, counts = distinct_contexts(generator(self.setting.seed, t, "groups"), self.contexts[known])
        number = min(self.width, len(contexts))
        self.centres = cluster_centres(contexts, counts, number, key(self.setting.seed, t, "k-means") >> 32)
        self._join(known)

    def _join(self, clients: IntArray) -> None:
        """Put clients into the cluster of the nearest centre."""
        for part in np.array_split(clients, -(-len(clients) // 8192)):
            bits = unpacked(self.contexts[part]).astype(np.float64)
            self.group[part] = nearest_centre(bits, self.centres)

    def rows(self, clients: IntArray) -> FloatArray:
        rows = np.zeros((len(clients), self.width))
        rows[np.arange(len(clients)), self.group[clients]] = 1.0
        rows[~self.known[clients]] = np.nan
        return rows

    def state_dict(self) -> State:
        clients = np.flatnonzero(self.known)
        about: State = {
            "clients": clients,
            "contexts": self.contexts[clients],
            "group": self.group[clients].astype(np.int64),
        }
        return {**about, "centres": self.centres, "grouped": self.grouped, **self.silent()}

    def load_state_dict(self, state: State) -> None:
        clients = np.array(state["clients"], dtype=np.int64)
        self.load_silent(state, clients)
        self.contexts[clients] = np.array(state["contexts"], dtype=np.uint8)
        self.group[clients] = np.array(state["group"], dtype=np.int16)
        self.centres, self.grouped = np.array(state["centres"], dtype=np.float64), int(state["grouped"])


def mean_row(rows: FloatArray, sizes: FloatArray) -> FloatArray | None:
    """Return the mean of the known rows `[k, width]`, weighted by samples; None if none is known."""
    known = np.isfinite(rows).all(axis=1)
    if not known.any():
        return None
    weights = sizes[known] / sizes[known].sum()
    mean: FloatArray = weights @ rows[known]
    return mean


def parse_target(target: str | Sequence[float], option: str) -> FloatArray | str:
    """Return a target: the words uniform and federation as they are, shares as an array that sums to one."""
    if isinstance(target, str):
        if target in ("auto", "uniform", "federation"):
            return target
        try:
            target = tuple(float(part) for part in target.split(","))
        except ValueError:
            raise Refusal(
                f"{option} is uniform, federation, or a share for each class such as 0.5,0.3,0.2, not '{target}'."
            ) from None
    shares = np.array(target, dtype=np.float64)
    if not (len(shares) and np.isfinite(shares).all() and (shares >= 0).all() and shares.sum() > 0):
        raise Refusal(f"{option} has shares of 0 or more, and one above 0, not {', '.join(f'{x:g}' for x in shares)}.")
    found: FloatArray = shares / shares.sum()
    return found
