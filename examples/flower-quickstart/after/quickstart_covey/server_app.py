"""The server: covey invites cohorts whose classes are balanced together, with momentum on the server."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

import covey.flower
from quickstart_covey.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(context.run_config["seed"])
    arrays = ArrayRecord(Net().state_dict())
    strategy = covey.flower.Strategy(
        context.run_config["method"],
        model=Net(),
        clients=context.run_config["clients"],
        cohort=context.run_config["fraction-train"],
        seed=context.run_config["seed"],
        local={"epochs": context.run_config["local-epochs"], "rate": context.run_config["learning-rate"]},
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
