"""On-Demand FL as a job: a model for the class mix that is asked for (Jeong and Lee 2024).

    job = covey.ondemand("runs/base", "cat=0.5,dog=0.3,ship=0.2")

A base run provides a model and, if its method keeps them, estimates of the clients' class shares. From the estimates,
clients are chosen that together hold the target mix (`composition.py`), and the base model is fine-tuned on these
clients alone. Each target is a run of its own that starts at the base model, with the selector `composed` and the
aggregator `ratios`; many targets run in lockstep where the runtime can.

    ondemand.json           the plan, and the composed clients
    base.safetensors        the base model, and the estimates
    target-1/ …             a run folder per target, with its model.safetensors
    continued/              the base run continued for as many rounds, if asked for
    report.html             a page about all of it, if plotly is installed
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
