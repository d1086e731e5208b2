"""FedACS: Wang, Zhu, Wang and Han, "Federated Analytics Informed Distributed Industrial IoT Learning with Non-IID
Data", IEEE Transactions on Network Science and Engineering, 2022.
"""

from papers.fedacs.experiments import groups
from papers.fedacs.page import make_page
from papers.fedacs.scales import NAMES, SCALES
from papers.grid import Paper

PAPER = Paper(
    name="fedacs",
    title="FedACS: skewness analytics and client selection by a dueling bandit (Wang et al. 2022)",
    scales=SCALES,
    environments=NAMES,
    groups=groups,
    make_page=make_page,
)
