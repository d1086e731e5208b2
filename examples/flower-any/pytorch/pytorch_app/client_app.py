"""The client: it knows Flower and PyTorch, and nothing of Covey."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorch_app.task import Net, load_data
from pytorch_app.task import test as test_fn
from pytorch_app.task import train as train_fn

app = ClientApp()


def loaders(context: Context):
    node = context.node_config
    return load_data(node["partition-id"], node["num-partitions"], context.run_config["batch-size"])


@app.train()
def train(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader, _ = loaders(context)
    loss = train_fn(model, loader, context.run_config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, loader = loaders(context)
    loss, accuracy = test_fn(model, loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
