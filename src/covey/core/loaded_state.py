"""Load a checkpoint's state into a method, and refuse one of another kind, of other models, or of other clients."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from covey.arrays import State
from covey.core.interfaces import Method
from covey.errors import Refusal, require

_INNER = "inner"
"""Where a part keeps the state of the part that it is around."""

_OF_COHORT = ("deviation",)
"""Arrays whose length goes by the cohort; an on-demand job may have another one than its base run."""


def load_state(method: Method, state: State, folder: Path) -> None:
    """Load a checkpoint's state into a method; refuse one that is not of its kind."""
    size, clients = method.models().shape[-1], len(method.model_of_client)
    before = dict(_lengths(method))
    try:
        method.load_state_dict(state)
        found = tuple(method.models().shape)
        require(len(found) == 2 and found[0] >= 1 and found[1] == size, f"models of the shape {found}")
        require(len(method.model_of_client) == clients, f"clients: {len(method.model_of_client)}, not {clients}")
        require(method.model_of_client.max(initial=0) < found[0], "a client's model is missing")
        after = dict(_lengths(method))
        for name, length in before.items():
            now = after.get(name, length)
            require(length != clients or now == clients, f"{name}: of {now} clients, not {clients}")
    except Exception as error:
        # A state of another kind fails in every way: a key, a shape, a type.
        reason = str(error) if isinstance(error, Refusal) else f"{type(error).__name__}: {error}"
        raise Refusal(f"The checkpoint in {folder} does not fit its settings ({reason}).") from error


def _lengths(method: Method) -> Iterator[tuple[str, int]]:
    """Yield name and length of the arrays of Covey's own parts. Those with a row per client keep their length."""
    for role in ("selector", "aggregator"):
        part, name = getattr(method, role, None), role
        while part is not None:
            # A part of somebody's own may keep a list that has as many items as there are clients, until it is shorter.
            if type(part).__module__.partition(".")[0] == "covey":
                yield from _arrays(part.state_dict(), name)
            part, name = getattr(part, _INNER, None), f"{name}.{_INNER}"


def _arrays(state: Mapping[str, Any], where: str) -> Iterator[tuple[str, int]]:
    for name, value in state.items():
        if isinstance(value, Mapping) and name != _INNER:
            yield from _arrays(value, f"{where}.{name}")
        elif isinstance(value, (np.ndarray, Tensor)) and value.ndim and name not in _OF_COHORT:
            yield f"{where}.{name}", len(value)
