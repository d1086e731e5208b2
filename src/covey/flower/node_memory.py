"""A client's memory between orders, in the node's own state (`context.state`), which is never sent.

It holds models that a method leaves with its clients (local-only, MOCHA, FedFomo), and what probes keep there (MOCHA's
dual variables). Arrays are found by their digest; models that were never sent by one that nobody else can compute, so
that no order can ask whether the client holds a certain model.
"""

import hashlib
import secrets
from typing import cast

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from covey.flower.wire import as_array, as_tensor, digest

MODELS = 3
"""Models that a client holds: FedFomo needs those before and after its last training."""

_ARRAYS, _INDEX = "covey.held", "covey.index"


class Memory:
    """A client's own arrays, over the records of its node."""

    def __init__(self, state: RecordDict, run: str) -> None:
        index = state.config_records.get(_INDEX)
        if index is None or index["run"] != run:
            empty = {"models": "", "own": "", "kept": ""}
            state[_INDEX] = ConfigRecord({"run": run, "secret": secrets.token_hex(16), **empty})
            state[_ARRAYS] = ArrayRecord()
        self._index = state.config_records[_INDEX]
        self._arrays = state.array_records[_ARRAYS]
        self._asked_for: set[str] = set()
        """Kept arrays that the current order refers to."""

    @property
    def models(self) -> list[str]:
        """Digests of the models held, least recently used first."""
        return cast(str, self._index["models"]).split()

    @property
    def kept(self) -> dict[str, str]:
        """`probe.field@round` → digest of an array that a probe keeps, the latest last."""
        pairs = [line.rpartition("=") for line in cast(str, self._index["kept"]).splitlines()]
        return {name: known for name, _, known in pairs}

    def find(self, name: str) -> Tensor | None:
        """Return the array with this digest, or the one that a probe kept under this name."""
        if name in self.kept:
            self._asked_for.add(name)
        array: Array | None = self._arrays.get(self.kept.get(name, name))
        return None if array is None else as_tensor(array)

    @property
    def trained(self) -> list[tuple[int, str]]:
        """The last two rounds in which the client trained a model of its own, with the digests of these models."""
        pairs = [pair.rpartition("=") for pair in cast(str, self._index["own"]).split()]
        return [(int(t or 0), known) for t, _, known in pairs]

    def own(self, before: int | None = None) -> Tensor | None:
        """Return the model that the client trained last, or last before a round; None if it holds none.

        A server that died during a round repeats it, and the client starts from the same model again.
        """
        found = [known for t, known in self.trained if before is None or t < before]
        return self.find(found[-1]) if found else None

    def hold(self, model: Tensor, *, own: int | None = None, private: bool = False) -> None:
        """Keep a model; if there are too many, drop the least recently used.

        `own` is the round in which the client trained it; trained models of that round and later ones are forgotten.
        `private` models are those that were never sent.
        """
        known = self._private_name(model) if private else digest(model)
        if known not in self._arrays:
            self._arrays[known] = as_array(model)
        self._index["models"] = " ".join(used_now(self.models, known))
        if own is not None:
            others = [pair for pair in self.trained if pair[0] < own][-1:]
            self._index["own"] = " ".join(f"{t}={name}" for t, name in (*others, (own, known)))
        self._forget()

    def _private_name(self, model: Tensor) -> str:
        """Return a digest that only this client can compute; a memory of an earlier version gets its secret now."""
        secret = str(self._index.setdefault("secret", secrets.token_hex(16)))
        return hashlib.blake2b(digest(model).encode(), key=secret.encode(), digest_size=16).hexdigest()

    def keep(self, name: str, t: int, value: Tensor) -> None:
        """Keep the arrays that a probe leaves with the client.

        What this order refers to stays as well (or else that of the round before): if replies are lost, the server
        refers to it again.
        """
        known = digest(value)
        self._arrays[known] = as_array(value)
        others = {key: kept for key, kept in self.kept.items() if key != f"{name}@{t}"}
        before = [key for key in others if key.rpartition("@")[0] == name]
        staying = self._asked_for.intersection(before) or set(before[-1:])
        for key in before:
            if key not in staying:
                del others[key]
        lines = {**others, f"{name}@{t}": known}
        self._index["kept"] = "\n".join(f"{key}={kept}" for key, kept in lines.items())
        self._forget()

    def _forget(self) -> None:
        wanted = {*self.models, *self.kept.values(), *(known for _, known in self.trained)}
        for known in [known for known in self._arrays if known not in wanted]:
            del self._arrays[known]


def used_now(models: list[str], known: str) -> list[str]:
    """Return the models held after one more was used; client and server apply the same rule."""
    return [*(other for other in models if other != known), known][-MODELS:]
