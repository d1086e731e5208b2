"""Methods with a model for each client or each group of clients."""

from covey.personalization.cfl import CFL
from covey.personalization.fedfomo import FedFomo
from covey.personalization.local_only import LocalOnly
from covey.personalization.mocha import Mocha
from covey.personalization.mocha_deep import DeepMocha
from covey.personalization.per_client import ManyModel, PersonalModels
from covey.personalization.shared_and_own import SharedAndOwn

__all__ = ["CFL", "DeepMocha", "FedFomo", "LocalOnly", "ManyModel", "Mocha", "PersonalModels", "SharedAndOwn"]
