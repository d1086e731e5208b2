"""The server."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

import covey.flower
from pytorch_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    # In Flower's quickstart: strategy = FedAvg(fraction_train=0.4)
    strategy = covey.flower.Strategy("fedacs", clients=config["clients"], cohort=0.4)
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
