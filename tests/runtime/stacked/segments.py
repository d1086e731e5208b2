"""Clients' trainings, as tests of the stack make them."""

from covey.client.batches import steps_of
from covey.client.holdout import trained_on
from covey.config.sections import Local
from covey.runtime.stacked.lane_schedule import Segment


def segment(
    request: int, position: int, client: int, held: int, work: Local, t: int, key: int, holdout: int = 0
) -> Segment:
    """Return the training of a client that holds `held` samples."""
    samples = trained_on(held, holdout)
    steps = work.epochs * steps_of(samples, work)
    return Segment(request, position, client, samples, steps, key, work, t, holdout)
