"""On-Demand FL as a job of its own: a model for the class mix that is asked for (Jeong and Lee 2024).

    job = covey.ondemand("runs/base", "cat=0.5,dog=0.3,ship=0.2")

From a base run come a model and, where its method keeps them, estimates of the clients' class shares. Clients that
together make the target mix are composed from the estimates (`composition.py`), and the base model is fine-tuned on
these alone. Each target is a run of its own, with the selector `composed` and the aggregator `ratios`, that begins at
the base run's model; many targets run in lockstep where the runtime can.

    ondemand.json           what was asked for, and what was composed
    base.safetensors        the model that was branched from, and the estimates
    target-1/ …             a run folder for each target, with its model.safetensors
    continued/              the base run gone on with for as many rounds, where that was asked for
    report.html             the page about all of it, where plotly is installed
"""

from covey.job.on_demand.on_demand_folder import is_ondemand
from covey.job.on_demand.on_demand_job import ROUNDS, ondemand, read_ondemand, resume_ondemand
from covey.job.on_demand.on_demand_result import ComposedTargets, OnDemand, TargetModel, target_curve

__all__ = [
    "ROUNDS",
    "ComposedTargets",
    "OnDemand",
    "TargetModel",
    "is_ondemand",
    "ondemand",
    "read_ondemand",
    "resume_ondemand",
    "target_curve",
]
