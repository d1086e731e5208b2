import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.config.sections import Local
from covey.core.messages import Gate, Order, Replies, Reply, checked, gathered, pack, packed_size, unpack
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


def test_unsound_replies_are_dropped_named_and_explained():
    states = torch.ones(5, 4)
    states[1, 2] = float("nan")
    replies = Replies(
        clients=np.array([10, 11, 12, 13, 14]),
        states=states,
        samples=torch.tensor([5, 5, 5, 0, 7]),
        losses=torch.tensor([1.0, 1.0, float("inf"), 1.0, 2.0], dtype=torch.float64),
        probes={"losses": {"before": torch.arange(5.0)}},
    )
    sound = checked(replies)
    assert sound.clients.tolist() == [10, 14]
    assert sound.samples.tolist() == [5, 7]
    assert sound.probes["losses"]["before"].tolist() == [0.0, 4.0]
    assert [(fault.client, fault.reason) for fault in sound.faults] == [
        (11, "its model holds NaN or infinite values"),
        (12, "its loss became NaN or infinite"),
        (13, "it reported 0 samples"),
    ]


def test_what_records_need_of_replies_holds_on_to_no_model():
    probes = {"losses": {"before": torch.ones(3)}}
    replies = Replies(np.arange(3), torch.zeros(3, 1000), torch.ones(3), torch.ones(3), probes)
    kept = replies.for_records()
    assert kept.states.untyped_storage().nbytes() == 0
    assert len(kept) == 3
    assert torch.equal(kept.probes["losses"]["before"], torch.ones(3))


def test_what_clients_say_that_keep_their_model_is_there_beside_the_models_of_the_others():
    gate = Gate("losses", "before", 1.0)
    order = Order(1, np.array([2, 5, 7]), torch.zeros(3), Local(), (Losses(),), gate=gate)

    def reply(client: int, loss: float, trained: float = 0.5) -> Reply:
        fields = {"before": torch.tensor(loss), "after": torch.tensor(loss)}
        return Reply(client, torch.full((3,), float(client)), client, trained, {"losses": fields})

    sent = gathered(order, [reply(2, 0.0), reply(5, 2.0), reply(7, 0.5, float("nan"))], (), 3)
    assert sent.clients.tolist() == [5]
    assert sent.withheld.tolist() == [2, 7]
    found = checked(sent.timed({2: 1.0, 5: 2.0, 7: 3.0}, 3.0))
    assert found.faults == ()
    everyone = found.everyone()
    # Client 7's loss is no number: nothing that it says is used.
    assert everyone.clients.tolist() == [2, 5]
    assert everyone.samples.tolist() == [2, 5]
    assert everyone.seconds.tolist() == [1.0, 2.0]
    assert everyone.probes["losses"]["before"].tolist() == [0.0, 2.0]
    assert torch.isnan(everyone.states[0]).all()
    assert torch.equal(everyone.states[1], found.states[0])
    assert found.for_records().told is None
    nobody = gathered(order, [reply(2, 0.0)], (), 3)
    assert len(nobody) == 0
    assert nobody.everyone().clients.tolist() == [2]
    assert nobody.everyone().states.shape == (1, 3)
