"""Rest for clients that fail: after some failures in a row a client is not invited for a round, then two, four, …"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class Health:
    """How often each client failed in a row, and until which round it is rested."""

    strikes: int = 2
    """Failures in a row that are let pass."""
    longest: int = 16
    """Rounds that a client is rested at most."""
    failures: dict[int, int] = field(default_factory=dict)
    """Client → failures in a row."""
    until: dict[int, int] = field(default_factory=dict)
    """Client → the last round that it sits out."""

    def note(self, t: int, invited: Iterable[int], failed: Iterable[int], *, forgiving: bool = True) -> None:
        """Learn who of a round's clients failed. One that answers well is forgiven everything, if one is `forgiving`.

        Surveys are not: a client may answer questions well and fail whenever it trains.
        """
        lost = set(failed)
        for client in invited:
            if client not in lost:
                if forgiving:
                    self.failures.pop(client, None)
                    self.until.pop(client, None)
                continue
            self.failures[client] = count = self.failures.get(client, 0) + 1
            if count >= self.strikes:
                self.until[client] = t + min(2 ** min(count - self.strikes, 30), self.longest)

    def as_mapping(self) -> dict[str, dict[str, int]]:
        """What a record keeps of it, for a run that is gone on with; nothing where all is well."""
        if not self.failures:
            return {}
        return {
            "failures": {str(client): count for client, count in sorted(self.failures.items())},
            "until": {str(client): last for client, last in sorted(self.until.items())},
        }

    def recall(self, kept: Mapping[str, Mapping[str, int]]) -> None:
        """Go on from what a record kept."""
        self.failures = {int(client): count for client, count in kept.get("failures", {}).items()}
        self.until = {int(client): last for client, last in kept.get("until", {}).items()}

    def resting(self, t: int) -> set[int]:
        """Clients that sit this round out."""
        return {client for client, last in self.until.items() if t <= last}
