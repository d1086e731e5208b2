from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.config.sections import Local
from covey.core.messages import Gate, Measurements, Order, Reply
from covey.core.wire_size import pack, packed_size, unpack
from covey.probe.losses import Losses

ORDER = Order(1, np.array([3]), torch.zeros(7), Local())

names = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=12)
tensors = st.builds(
    lambda shape, dtype: torch.zeros(shape, dtype=dtype),
    st.lists(st.integers(0, 12), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16]),
)


@given(st.dictionaries(names, tensors, max_size=6), st.none() | st.dictionaries(names, names, min_size=1, max_size=3))
def test_packed_size_is_the_length_of_the_packed_bytes(fields, metadata):
    assert packed_size(fields, metadata) == len(pack(fields, metadata))


def test_a_reply_survives_the_wire():
    reply = Reply(3, torch.randn(7), 20, 0.5, {"losses": {"before": torch.tensor(2.0), "after": torch.tensor(1.0)}})
    again = unpack(pack(reply.tensors(ORDER)))
    assert set(again) == {"state", "samples", "loss", "losses.before", "losses.after"}
    assert torch.equal(again["state"], reply.state)
    assert again["samples"].item() == 20


def test_bytes_down_are_those_of_the_serialised_orders():
    order = Order(1, np.array([2, 5]), torch.zeros(100), Local(), (Losses(),))
    assert order.bytes_down() > 2 * 400
    assert order.bytes_down() == 2 * Order(1, np.array([2]), torch.zeros(100), Local(), (Losses(),)).bytes_down()
    stays = Order(1, np.array([2, 5]), torch.zeros(2, 100), Local(), resident=True)
    assert order.bytes_down() - stays.bytes_down() >= 2 * 400


def test_a_client_sends_its_model_if_it_is_asked_for_one_and_the_gate_opens():
    gated = replace(ORDER, gate=Gate("losses", "before", 1.0))
    high, low = ({"losses": {"before": torch.tensor(value)}} for value in (1.0, 0.5))
    assert ORDER.sends_model({})
    assert gated.sends_model(high)
    # NaN and a measurement that is missing do not open it.
    closing: list[Measurements] = [low, {"losses": {"before": torch.tensor(float("nan"))}}, {"losses": {}}, {}]
    assert not any(map(gated.sends_model, closing))
    assert not replace(gated, train=False).sends_model(high)
    assert not replace(gated, resident=True).sends_model(high)
