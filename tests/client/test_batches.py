"""Mini-batches: their order, and crops and flips."""

import torch

from covey.client.batches import batches, crop_and_flip
from covey.config.sections import Local
from covey.data import digits
from covey.data.dataset import Samples

DATA = digits(None)
SAMPLES = Samples(DATA.x[:53], DATA.y[:53])


def test_an_epoch_visits_every_sample_once_and_the_last_batch_may_be_smaller():
    work = Local(batch=10)
    sizes, labels = [], []
    for x, y in batches(Samples(torch.arange(53)[:, None], torch.arange(53)), work, key=4):
        assert torch.equal(x[:, 0], y)
        sizes.append(len(y))
        labels += y.tolist()
    assert sizes == [10, 10, 10, 10, 10, 3]
    assert sorted(labels) == list(range(53))
    assert labels != sorted(labels)


def test_batch_order_differs_between_keys():
    orders = [torch.cat([y for _, y in batches(SAMPLES, Local(), key=key)]) for key in (1, 1, 2)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])


def test_crop_and_flip_by_hand():
    image = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
    same = crop_and_flip(image, 1, torch.tensor([[1, 1]]), torch.tensor([False]))
    assert torch.equal(same, image)
    flipped = crop_and_flip(image, 1, torch.tensor([[1, 1]]), torch.tensor([True]))
    assert torch.equal(flipped, image.flip(-1))
    corner = crop_and_flip(image, 1, torch.tensor([[0, 0]]), torch.tensor([False]))
    assert corner[0, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 3, 4]]
    other_corner = crop_and_flip(image, 1, torch.tensor([[2, 2]]), torch.tensor([True]))
    assert other_corner[0, 0].tolist() == [[0, 5, 4], [0, 8, 7], [0, 0, 0]]


def test_augmentation_draws_every_shift_and_both_flips():
    image = torch.zeros(600, 1, 5, 5, dtype=torch.uint8)
    image[:, :, 2, 1] = 255
    found = set()
    for x, _ in batches(Samples(image, torch.zeros(600, dtype=torch.int64)), Local(crop=1, flip=True, batch=64), key=1):
        found |= {tuple(place) for place in x.nonzero()[:, 2:].tolist()}
    # Shifts by -1, 0, 1 in each direction, of a pixel in column 1 or, mirrored, column 3.
    assert found == {(row, column) for row in (1, 2, 3) for column in (0, 1, 2, 3, 4)}
