"""On-Demand FL: Jeong and Lee, "On-Demand Federated Learning for Arbitrary Target Class Distributions", AISTATS
2024.
"""

from papers.grid import Paper
from papers.ondemand.experiments import groups
from papers.ondemand.page import make_page
from papers.ondemand.scales import NAMES, SCALES

PAPER = Paper(
    name="ondemand",
    title="On-Demand FL: models for target class mixes from composed clients (Jeong and Lee 2024)",
    scales=SCALES,
    environments=NAMES,
    groups=groups,
    make_page=make_page,
)
