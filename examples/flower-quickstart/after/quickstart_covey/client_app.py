"""The client: Covey's app around the same model, data and training function."""

from flwr.app import Context

import covey.flower
from quickstart_covey.task import Net, load_data
from quickstart_covey.task import train as train_fn


def loaders(context: Context):
    node, run = context.node_config, context.run_config
    return load_data(node["partition-id"], node["num-partitions"], run["batch-size"], run["seed"])


app = covey.flower.client_app(
    model=Net,
    data=lambda context: loaders(context)[0],
    test=lambda context: loaders(context)[1],
    train=lambda model, trainloader, config: train_fn(model, trainloader, config["epochs"], config["lr"]),
)
