"""The server: FedAvg over clients drawn uniformly."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(context.run_config["seed"])
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_train=context.run_config["fraction-train"])
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
