"""What a run on a fleet would refuse, found out before anything is written or started."""

from dataclasses import replace

from covey.config.schema import Config
from covey.environment.federated_data import Federation
from covey.fleet.fleet_folder import Fleet
from covey.fleet.samples import federation_of
from covey.flower.live_method import require_live
from covey.job.experiment import Experiment
from covey.job.settings import describing


def rehearse(config: Config, federation: Federation | None = None) -> Federation:
    """Build what a run builds, all but its connection to the fleet; returns the federation."""
    require_live(config.method)
    experiment = Experiment.of(replace(config, runtime="local", workers=1), federation)
    experiment.runtime.close()
    return experiment.federation


def rehearse_own(fleet: Fleet) -> Config:
    """The same for a fleet with data of its own, whose folder need not be there yet; returns the configuration."""
    fleet.check()
    federation = federation_of(fleet)
    config = Config.of({**fleet.run, **describing(federation)})
    rehearse(config, federation)
    return config
