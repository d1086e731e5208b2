"""The server."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import covey.flower
from numpy_app.task import get_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    arrays = ArrayRecord(get_model())
    # In Flower's quickstart: strategy = FedAvg()
    strategy = covey.flower.Strategy(config["method"], clients=config["clients"], cohort=1.0)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=config["num-server-rounds"])
