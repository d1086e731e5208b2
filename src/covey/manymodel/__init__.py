"""Methods that keep a model per client or per group of clients."""

from covey.manymodel.cfl import CFL
from covey.manymodel.common import ManyModel, PersonalModels, manymodels
from covey.manymodel.fedfomo import FedFomo
from covey.manymodel.local_only import LocalOnly
from covey.manymodel.mocha import Mocha
from covey.manymodel.mocha_deep import DeepMocha

__all__ = ["CFL", "DeepMocha", "FedFomo", "LocalOnly", "ManyModel", "Mocha", "PersonalModels", "manymodels"]
