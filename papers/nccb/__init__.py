"""NCCB: Cao, Pan, Zhu and Liu, "Birds of a Feather Help: Context-aware Client Selection for Efficient Federated
Learning", AAAI workshop 2022.
"""

from papers.grid import Paper
from papers.nccb.corpora import made_up, topics
from papers.nccb.experiments import groups
from papers.nccb.page import make_page
from papers.nccb.random_cohorts import RandomCohorts
from papers.nccb.scales import NAMES, SCALES

__all__ = ["PAPER", "RandomCohorts", "made_up", "topics"]

PAPER = Paper(
    name="nccb",
    title="NCCB: a neural contextual bandit on SimHash contexts, on stand-ins for its data (Cao et al. 2022)",
    scales=SCALES,
    environments=NAMES,
    groups=groups,
    make_page=make_page,
)
