"""CUDA graphs: the device operations of a function, recorded once and replayed with a single launch."""

import warnings
from collections.abc import Callable

import torch


def warm_up(work: Callable[[], None], device: torch.device, times: int = 3) -> None:
    """Run `work` on a side stream: compilation and set-up at first use cannot be captured."""
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side), warnings.catch_warnings():
        # The compiler's advice to its own developers.
        warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled")
        for _ in range(times):
            work()
    torch.cuda.current_stream(device).wait_stream(side)


def record_graph(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Record the device operations of `work`, without executing them; `warm_up` must come first."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError as error:
        # A recording that runs out of memory fails again when it is ended; raise the first error.
        if isinstance(error.__context__, torch.OutOfMemoryError):
            raise error.__context__ from None
        raise
    return graph
