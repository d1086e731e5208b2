"""The demo: three questions about clients whose data differ, answered on the digits.

Each answer is a sentence made of what was measured. A difference over federations is claimed only where its 95 %
interval excludes zero; otherwise the sentence says that it is within the noise.
"""

from covey.job.demo.demo_job import Demo, Listeners, fresh_folder, run_demo, seeds_of
from covey.job.demo.odd_clients import OddClients, find_odd_clients
from covey.job.demo.site_model import SiteModel, train_site_model
from covey.job.demo.skew_cost import SkewCost, measure_skew_cost

__all__ = [
    "Demo",
    "Listeners",
    "OddClients",
    "SiteModel",
    "SkewCost",
    "find_odd_clients",
    "fresh_folder",
    "measure_skew_cost",
    "run_demo",
    "seeds_of",
    "train_site_model",
]
