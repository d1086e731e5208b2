"""Which node is which client: pinned keys, registered names, claimed names; and what a client's words may hold."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Error, Message
from flwr.clientapp import ClientApp
from torch import nn

import covey
from covey import Refusal
from covey.core.messages import Order
from covey.core.printable_text import printable
from covey.fleet.certificates import write_node_keys
from covey.flower import InProcessGrid, Strategy, client_app
from covey.flower.exchange import Exchange
from covey.flower.public_keys import fingerprint, public_bytes
from covey.flower.roster import Roster


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3))


def an_app() -> ClientApp:
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    return client_app(net, lambda context: (x, torch.arange(12) % 3), threads=1)


class Authenticated(InProcessGrid):
    """A grid that knows nodes' registered names and keys: node 1000 + i is `known[i]`."""

    known: list[tuple[str, bytes, str]]

    def get_nodes(self) -> list[Any]:
        infos = [
            SimpleNamespace(node_id=1000 + place, name=name, public_key=key, registered_at=since)
            for place, (name, key, since) in enumerate(self.known)
        ]
        return [info for info in infos if info.node_id in self.contexts]


def a_grid(*nodes: tuple[str, str, bytes, str]) -> Authenticated:
    """`a_grid(("stated", "registered", key, time), ...)`"""
    grid = Authenticated(an_app(), [{"client": stated} for stated, _, _, _ in nodes])
    grid.known = [(name, key, since) for _, name, key, since in nodes]
    return grid


def test_a_node_is_the_client_whose_pinned_key_it_holds_whatever_it_is_called():
    pinned = {b"north's": "north", b"south's": "south"}
    grid = a_grid(
        ("north", "north", b"an impostor's", "1"),
        ("south", "north", b"north's", "2"),
        ("north", "south", b"south's", "3"),
        ("north", "north", b"another impostor's", "4"),
    )
    roster = Roster(2, ["north", "south"], patience=0.1, keys=pinned)
    roster.wait(grid, 1.0)
    assert [roster.node_of(0), roster.node_of(1)] == [1001, 1002]
    assert [roster.client_of(node) for node in (1000, 1001, 1002, 1003)] == [None, 0, 1, None]
    assert {one["key"] for one in roster.refused} == {fingerprint(b"an impostor's"), fingerprint(b"another impostor's")}
    assert roster.refused[0]["reason"] == "it is registered as north, and its key is not the one pinned for north"
    assert roster.identities() == {"north": "pinned key", "south": "pinned key"}
    # A site that is away has no stand-in.
    del grid.contexts[1001]
    roster.refresh(grid, 1.0)
    assert roster.available().tolist() == [1]


def test_a_site_that_changes_its_key_is_nobody_until_the_new_one_is_pinned():
    grid = a_grid(("north", "north", b"new", "1"))
    roster = Roster(1, ["north"], patience=0.0, keys={b"old": "north"})
    roster.refresh(grid, 1.0)
    assert roster.available().tolist() == []
    roster.keys = {b"new": "north"}
    roster.refresh(grid, 1.0)
    assert roster.available().tolist() == [0]
    assert roster.refused == []


def test_a_stated_name_belongs_to_the_node_that_was_registered_under_it_first():
    grid = a_grid(
        ("north", "north", b"first", "2026-01-01"),
        ("south", "", b"unnamed", "2026-01-02"),
        ("north", "north", b"second", "2026-01-03"),
        ("north", "elsewhere", b"third", "2025-01-01"),
        ("south", "", b"restarted", "2026-01-05"),
    )
    later = grid.contexts.pop(1004)
    roster = Roster(2, ["north", "south"], patience=0.1)
    roster.wait(grid, 1.0)
    grid.contexts[1004] = later
    roster.refresh(grid, 1.0)
    # Nothing is registered as south, so the later node counts: it was restarted.
    assert [roster.node_of(0), roster.node_of(1)] == [1000, 1004]
    assert roster.identities() == {"north": "registered key", "south": "claimed"}
    assert {one["key"] for one in roster.refused} == {fingerprint(b"second"), fingerprint(b"third")}
    assert {one["reason"] for one in roster.refused} == {
        "it states the name north, which is registered with another key"
    }
    assert [roster.client_of(node) for node in (1000, 1002, 1003)] == [0, None, None]


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    """Two pairs of keys: client's name → file of the public key."""
    for name in ("north", "south"):
        write_node_keys(tmp_path / name)
    return {name: tmp_path / name / "node.pub" for name in ("north", "south")}


def test_a_strategy_takes_clients_by_their_keys_and_records_who_is_refused(keys, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    north, south = (public_bytes(path) for path in keys.values())
    grid = a_grid(("x", "", north, "1"), ("y", "", south, "2"), ("north", "north", b"impostor's", "0"))
    strategy = Strategy("fedavg", model=net(), keys=keys, cohort=2, evaluate=0.0, folder=tmp_path / "run")
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=2)
    assert strategy.history[-1]["answered"] == ["north", "south"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [one["key"] for row in rows for one in row["refused"]] == [fingerprint(b"impostor's")] * 2
    assert caplog.text.count("A node gets no orders: it is registered as north") == 1
    assert "state these names" not in caplog.text
    written = json.loads((tmp_path / "run" / "identities.json").read_text())
    assert written == {"north": "pinned key", "south": "pinned key"}


def test_a_strategy_says_where_names_are_only_claimed(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    grid = a_grid(("north", "north", b"n", "1"), ("south", "", b"s", "2"))
    strategy = Strategy(
        "fedavg", model=net(), names=["north", "south"], cohort=2, evaluate=0.0, folder=tmp_path / "run"
    )
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=1)
    assert "no key is tied to them (keys= does): south\n" in caplog.text
    written = json.loads((tmp_path / "run" / "identities.json").read_text())
    assert written == {"north": "registered key", "south": "claimed"}


def test_keys_of_a_strategy_are_one_for_each_client(keys, tmp_path):
    with pytest.raises(Refusal, match="give a key for each name"):
        Strategy("fedavg", model=net(), names=["north"], keys=keys)
    with pytest.raises(Refusal, match="Two clients have the same key"):
        Strategy("fedavg", model=net(), keys={"north": keys["north"], "south": keys["north"]})
    (tmp_path / "none.pub").write_text("ssh-rsa AAAA")
    with pytest.raises(Refusal, match="cannot be read"):
        Strategy("fedavg", model=net(), keys={"north": tmp_path / "none.pub"})


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x9b1mbold \u202ereversed\x00\x08\r\u2028end"


def test_printable_text_holds_nothing_that_a_terminal_obeys():
    assert printable(HOSTILE) == "redbold reversed  end"
    assert printable("Ärger in Straße 5: ≥ 3 – ok") == "Ärger in Straße 5: ≥ 3 – ok"
    assert printable("\x1b]8;;file:///etc/passwd") == ""
    assert printable("a\x1bPq#0;2\x1b\\b\x1b(0c") == "abc"


@pytest.mark.parametrize("place", ["error", "exception", "name"])
def test_escape_sequences_of_a_client_reach_neither_a_fault_nor_a_name(place):
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Any) -> Message:
        if place == "exception":
            raise ValueError(HOSTILE)
        return Message(Error(code=50, reason=HOSTILE), reply_to=message)

    honest = an_app()
    grid = InProcessGrid([honest, honest], [{"client": "north"}, {"client": HOSTILE if place == "name" else "south"}])
    roster = Roster(2, patience=1.0)
    roster.wait(grid, 5.0)
    assert all(name.isprintable() for name in roster.names)
    grid.apps[1001] = app
    order = Order(1, np.array([0, 1]), torch.cat([one.detach().flatten() for one in net().parameters()]), covey.Local())
    exchange = Exchange(roster, seed=0, timeout=5.0)
    replies = exchange.execute(grid, replace(order, work=covey.Local(epochs=1)))
    assert len(replies.faults) == 1
    assert replies.faults[0].reason.isprintable()
    assert "end" in replies.faults[0].reason or place == "name"
