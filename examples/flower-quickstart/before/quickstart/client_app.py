"""The client: trains and evaluates on its own samples."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data
from quickstart.task import test as test_fn
from quickstart.task import train as train_fn

app = ClientApp()


def loaders(context: Context):
    node, run = context.node_config, context.run_config
    return load_data(node["partition-id"], node["num-partitions"], run["batch-size"], run["seed"])


@app.train()
def train(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    trainloader, _ = loaders(context)
    loss = train_fn(model, trainloader, context.run_config["local-epochs"], message.content["config"]["lr"])
    metrics = {"train_loss": loss, "num-examples": len(trainloader.dataset)}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, testloader = loaders(context)
    loss, accuracy = test_fn(model, testloader)
    metrics = {"loss": loss, "accuracy": accuracy, "num-examples": len(testloader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
