"""The client: it knows Flower and NumPy, and nothing of Covey."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from numpy_app.task import load_data
from numpy_app.task import test as test_fn
from numpy_app.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    x, y = load_data(context.node_config["partition-id"])
    model = msg.content["arrays"].to_numpy_ndarrays()
    model = train_fn(model, x, y, context.run_config["local-steps"], context.run_config["learning-rate"])
    loss, _ = test_fn(model, x, y)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    return Message(content=RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    x, y = load_data(context.node_config["partition-id"])
    loss, accuracy = test_fn(msg.content["arrays"].to_numpy_ndarrays(), x, y)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
