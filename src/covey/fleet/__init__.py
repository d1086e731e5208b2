"""A real fleet: TLS, authenticated nodes, faults, restart.

covey fleet up --clients 5 --method fedacs --rounds 3      # on this machine, from beginning to end
covey fleet init fleet --sites harbour,mill,quarry ...     # files for real machines
"""

from covey.fleet.fleet_folder import Fleet, Rules, Site

__all__ = ["Fleet", "Rules", "Site"]
