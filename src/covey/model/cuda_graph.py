"""CUDA graphs: a function whose operations are launched as one."""

import warnings
from collections.abc import Callable

import torch


def warm_up(work: Callable[[], None], device: torch.device, times: int = 3) -> None:
    """Do it, aside: libraries set themselves up and compilers compile at first use, which a graph cannot hold."""
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side), warnings.catch_warnings():
        # The compiler's advice to its own developers.
        warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled")
        for _ in range(times):
            work()
    torch.cuda.current_stream(device).wait_stream(side)


def recorded(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """What `work` does on the device, to be replayed; it must have been done before, and is not done now."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError as error:
        # The end of a recording that ran out of memory fails for a reason of its own.
        if isinstance(error.__context__, torch.OutOfMemoryError):
            raise error.__context__ from None
        raise
    return graph
