"""The operator's side: a method over sites with names, a checkpoint after every round."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import covey.flower
from fleet.model import classifier

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = covey.flower.Strategy(
        config["method"],
        model=classifier(),
        names=config["sites"].split(","),
        cohort=config["cohort"],
        local={"epochs": 2, "batch": 20, "rate": 0.1},
        patience=config["patience"],
        folder=config["output"],
    )
    arrays = ArrayRecord(classifier().state_dict())
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=config["rounds"], timeout=300)
    for entry in strategy.history:
        print(f"round {entry['round']}: {', '.join(entry['answered'])} answered; lost: {entry['faults'] or 'nothing'}")
    if scores := result.evaluate_metrics_clientapp:
        print(f"accuracy at the sites: {scores[max(scores)]['accuracy']:.3f}")
