"""A grid in this process gives apps what Flower's engine gives them."""

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from covey.flower import InProcessGrid


def test_apps_read_the_configuration_of_the_run_and_of_their_node() -> None:
    app = ClientApp()

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        told = ConfigRecord({"epochs": context.run_config["epochs"], "node": context.node_config["partition-id"]})
        return Message(RecordDict({"told": told}), reply_to=message)

    grid = InProcessGrid(app, 2, run_config={"epochs": 3})
    asked = [grid.create_message(RecordDict(), "query", node, "") for node in grid.get_node_ids()]
    told = [dict(reply.content["told"]) for reply in grid.send_and_receive(asked)]
    assert {one["node"] for one in told} == {0, 1}
    assert [one["epochs"] for one in told] == [3, 3]
