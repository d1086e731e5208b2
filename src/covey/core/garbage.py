"""Python's garbage collector in runs whose rounds take milliseconds."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def old_objects_spared() -> Iterator[None]:
    """Have the collector pass over all objects that are there now.

    Modules, data and what a compiler has left are hundreds of thousands: to look through them takes longer than rounds.
    """
    if gc.get_freeze_count():
        # Somebody else spares objects, and says when that ends.
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
