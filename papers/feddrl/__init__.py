"""FedDRL: Nguyen et al., "FedDRL: Deep Reinforcement Learning-based Adaptive Aggregation for Non-IID Data in Federated
Learning", ICPP 2022.
"""

from papers.feddrl.experiments import groups
from papers.feddrl.page import make_page
from papers.feddrl.scales import NAMES, SCALES
from papers.grid import Paper

PAPER = Paper(
    name="feddrl",
    title="FedDRL: impact factors by a reinforcement-learning agent, on cluster skew (Nguyen et al. 2022)",
    scales=SCALES,
    environments=NAMES,
    groups=groups,
    make_page=make_page,
)
