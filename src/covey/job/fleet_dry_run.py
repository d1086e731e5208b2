"""Dry runs for fleets: find impossible settings before anything is written or started."""

from covey.config.schema import Config
from covey.environment.federated_data import Federation
from covey.fleet.fleet_folder import Fleet
from covey.fleet.samples import federation_of
from covey.flower.live_method import require_live
from covey.job.experiment import dry_run
from covey.job.settings import describing


def dry_run_live(config: Config, given: Federation | None = None) -> Federation:
    """Build a run on a fleet without connecting to it, and return its federation."""
    require_live(config.method)
    return dry_run(config, given)


def dry_run_fleet(fleet: Fleet) -> Config:
    """Do the same for a fleet with data of its own, whose folder need not exist yet; return the configuration."""
    fleet.check()
    federation = federation_of(fleet)
    config = Config.of({**fleet.run, **describing(federation)})
    dry_run_live(config, federation)
    return config
