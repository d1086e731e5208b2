"""Replies: which are dropped, what withheld clients leave, and one assembly for single clients and stacks."""

import numpy as np
import torch

from covey.config.sections import Local
from covey.core.messages import Gate, Order, Reply
from covey.core.replies import Replies, Timing, checked, replies_from_stack, stack_replies
from covey.probe.losses import Losses


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


def test_replies_for_records_hold_no_model():
    probes = {"losses": {"before": torch.ones(3)}}
    replies = Replies(np.arange(3), torch.zeros(3, 1000), torch.ones(3), torch.ones(3), probes)
    kept = replies.for_records()
    assert kept.states.untyped_storage().nbytes() == 0
    assert len(kept) == 3
    assert torch.equal(kept.probes["losses"]["before"], torch.ones(3))


def test_withheld_clients_have_measurements_and_no_model():
    gate = Gate("losses", "before", 1.0)
    order = Order(1, np.array([2, 5, 7]), torch.zeros(3), Local(), (Losses(),), gate=gate)

    def reply(client: int, loss: float, trained: float = 0.5) -> Reply:
        fields = {"before": torch.tensor(loss), "after": torch.tensor(loss)}
        return Reply(client, torch.full((3,), float(client)), client, trained, {"losses": fields})

    sent = stack_replies(order, [reply(2, 0.0), reply(5, 2.0), reply(7, 0.5, float("nan"))], (), 3)
    assert sent.clients.tolist() == [5]
    assert sent.withheld.tolist() == [2, 7]
    found = checked(sent.timed({2: 1.0, 5: 2.0, 7: 3.0}, 3.0))
    assert found.faults == ()
    everyone = found.with_withheld_rows()
    # Client 7's loss is NaN, so its measurements are not used either.
    assert everyone.clients.tolist() == [2, 5]
    assert everyone.samples.tolist() == [2, 5]
    assert everyone.seconds.tolist() == [1.0, 2.0]
    assert everyone.probes["losses"]["before"].tolist() == [0.0, 2.0]
    assert torch.isnan(everyone.states[0]).all()
    assert torch.equal(everyone.states[1], found.states[0])
    assert found.for_records().withheld_replies is None
    nobody = stack_replies(order, [reply(2, 0.0)], (), 3)
    assert len(nobody) == 0
    assert nobody.with_withheld_rows().clients.tolist() == [2]
    assert nobody.with_withheld_rows().states.shape == (1, 3)


def both_ways(gate: Gate | None, resident: bool = False, train: bool = True) -> tuple[Replies, Replies, torch.Tensor]:
    """The same replies, stacked one by one and from a stack; and the stack of models."""
    clients = np.array([2, 5, 7])
    order = Order(1, clients, torch.zeros(3), Local(), (Losses(),), gate=gate, resident=resident, train=train)
    stack = torch.arange(9.0).view(3, 3) if train else torch.empty(3, 0)
    samples, losses = np.array([4, 6, 8]), np.array([0.5, 0.25, 0.125])
    measured = {"losses": {"before": torch.tensor([0.0, 2.0, 0.5]), "after": torch.tensor([0.1, 0.2, 0.3])}}
    rows = [{"losses": {name: values[at] for name, values in measured["losses"].items()}} for at in range(3)]
    single = [
        Reply(int(client), stack[at], int(samples[at]), float(losses[at]), rows[at])
        for at, client in enumerate(clients)
    ]
    return (
        stack_replies(order, single, (), 3),
        replies_from_stack(order, stack, samples, losses, measured, {}, Timing()),
        stack,
    )


def test_single_replies_and_stacks_are_assembled_alike():
    def same(one: Replies, other: Replies) -> None:
        assert one.clients.tolist() == other.clients.tolist()
        assert one.withheld.tolist() == other.withheld.tolist()
        assert (one.traffic, one.faults) == (other.traffic, other.faults)
        for name in ("states", "samples", "losses", "seconds"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert torch.equal(mine, theirs)
            assert mine.dtype == theirs.dtype
        for name, values in one.probes["losses"].items():
            assert torch.equal(values, other.probes["losses"][name])
        assert (one.withheld_replies is None) == (other.withheld_replies is None)
        if one.withheld_replies is not None and other.withheld_replies is not None:
            same(one.withheld_replies, other.withheld_replies)

    for bound in (None, -1.0, 1.0, 9.0):
        gate = None if bound is None else Gate("losses", "before", bound)
        one, other, _ = both_ways(gate)
        same(one, other)
        assert len(one) + len(one.withheld) == 3
    for options in ({"resident": True}, {"train": False}):
        one, other, _ = both_ways(Gate("losses", "before", 9.0), **options)
        same(one, other)
        assert len(one.withheld) == 0


def test_a_stack_of_models_is_not_copied_unless_some_are_withheld():
    for gate in (None, Gate("losses", "before", -1.0)):
        _, replies, stack = both_ways(gate)
        assert replies.states is stack
