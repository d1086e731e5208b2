"""The number of torch threads in this process."""

from weakref import WeakSet

import torch


class SingleThread:
    """Limits torch to one thread while anyone holds it; the last release restores the number of threads."""

    def __init__(self) -> None:
        self._holders: WeakSet[object] = WeakSet()
        self._before = 1

    def hold(self, holder: object) -> None:
        """Limit torch to one thread until every holder has released it."""
        if not self._holders:
            self._before = torch.get_num_threads()
        self._holders.add(holder)
        torch.set_num_threads(1)

    def release(self, holder: object) -> None:
        """Release the limit; the last holder restores the number of threads."""
        if holder in self._holders:
            self._holders.remove(holder)
            if not self._holders:
                torch.set_num_threads(self._before)
