"""The versions of a model that answer, and the share of the requests that each one gets."""

from __future__ import annotations

import threading

from penstock.serve.served import ServedVersion

WHOLE = 100
"""The sum of all shares: they are per cent."""


class Shares:
    """The served versions of one model. Thread-safe.

    Requests go to versions in turns in proportion to their shares (smooth weighted round robin), so
    that of any hundred requests each version gets its share.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served: dict[str, ServedVersion] = {}
        self._shares: dict[str, float] = {}
        self._credits: dict[str, float] = {}

    @property
    def served(self) -> list[ServedVersion]:
        """Every version that answers, the oldest first."""
        with self._lock:
            found = [*self._served.values()]
        return sorted(found, key=lambda each: int(each.version))

    def share_of(self, version: str) -> float:
        """The share of *version* in per cent; 0 if it does not answer."""
        return self._shares.get(version, 0.0)

    def put(self, served: ServedVersion, share: float) -> list[ServedVersion]:
        """Gives *served* its share in per cent, and the others the rest in proportion.

        Returns the versions that no longer answer: the one that *served* replaces, and with a share
        of 100 all others.
        """
        with self._lock:
            replaced = self._served.pop(served.version, None)
            self._shares.pop(served.version, None)
            gone = [] if replaced is None or replaced is served else [replaced]
            if share >= WHOLE or not self._served:
                gone += self._served.values()
                self._served, self._shares, share = {}, {}, WHOLE
            self._scale(WHOLE - share)
            self._served[served.version], self._shares[served.version] = served, share
            return gone

    def remove(self, version: str = "") -> list[ServedVersion]:
        """Removes *version*, or all of them, and returns what was removed. The others get its share
        in proportion.
        """
        with self._lock:
            names = [version] if version else [*self._served]
            gone = [self._served.pop(name) for name in names if name in self._served]
            for each in gone:
                del self._shares[each.version]
            self._scale(WHOLE)
            return gone

    def choose(self, version: str = "") -> ServedVersion | None:
        """The version *version*, or the one whose turn it is; None if there is none."""
        with self._lock:
            if version or len(self._served) < 2:
                name = version or next(iter(self._served), "")
                return self._served.get(name)
            for name, share in self._shares.items():
                self._credits[name] = self._credits.get(name, 0.0) + share
            chosen = max(self._shares, key=lambda name: self._credits[name])
            self._credits[chosen] -= WHOLE
            return self._served[chosen]

    def _scale(self, total: float) -> None:
        """Makes the shares add up to *total*, and begins the turns anew."""
        have = sum(self._shares.values())
        self._shares = {
            name: total * share / have if have else total / len(self._shares)
            for name, share in self._shares.items()
        }
        self._credits = {}
