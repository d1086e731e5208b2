"""The server."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import covey.flower
from sklearn_app.task import create_model, get_model_params

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    model = create_model(config["penalty"], config["local-epochs"])
    arrays = ArrayRecord(get_model_params(model))
    # In Flower's quickstart: strategy = FedAvg(fraction_train=0.5)
    strategy = covey.flower.Strategy("power-of-choice", clients=config["clients"], cohort=0.5)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=config["num-server-rounds"])
