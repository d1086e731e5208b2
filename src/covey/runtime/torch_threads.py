"""How many threads torch has in this process."""

from weakref import WeakSet

import torch


class OneThread:
    """Torch has one thread while anyone holds this, and as many as before once the last has let go."""

    def __init__(self) -> None:
        self._holders: WeakSet[object] = WeakSet()
        self._before = 1

    def hold(self, holder: object) -> None:
        if not self._holders:
            self._before = torch.get_num_threads()
        self._holders.add(holder)
        torch.set_num_threads(1)

    def release(self, holder: object) -> None:
        if holder in self._holders:
            self._holders.remove(holder)
            if not self._holders:
                torch.set_num_threads(self._before)
