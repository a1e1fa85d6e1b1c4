"""Counters of the energy that the processor consumes: Linux's powercap, where it can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

POWERCAP: Final = Path("/sys/class/powercap")


class _Domain(Struct, frozen=True):
    counter: Path
    range_uj: int


class EnergyCounter:
    """The sum of the processor packages' energy counters (RAPL), in microjoules since the object
    was made.

    Each counter begins again at zero beyond its range; one that does so twice between two readings
    is not noticed. They count whatever runs on the machine.
    """

    def __init__(self, domains: tuple[_Domain, ...]) -> None:
        self._domains = domains
        self._last = [_number(domain.counter) for domain in domains]
        self._total = 0

    @classmethod
    def find(cls, root: Path = POWERCAP) -> EnergyCounter | None:
        """The machine's counters below *root*; None where there are none, or they cannot be read."""
        domains = []
        try:
            zones = sorted(root.glob("intel-rapl:*"))
            for zone in zones:
                # intel-rapl:0 is a package; intel-rapl:0:1 a part of it.
                if zone.name.count(":") != 1 or not _is_package(zone):
                    continue
                domains.append(_Domain(zone / "energy_uj", _number(zone / "max_energy_range_uj")))
            return cls(tuple(domains)) if domains else None
        except (OSError, ValueError):
            return None

    def read(self) -> int:
        """Microjoules consumed since the object was made. Raises `OSError`, `ValueError`."""
        for index, domain in enumerate(self._domains):
            now = _number(domain.counter)
            gone = now - self._last[index]
            self._total += gone if gone >= 0 else gone + domain.range_uj
            self._last[index] = now
        return self._total


def _is_package(zone: Path) -> bool:
    return (zone / "name").read_text(encoding="ascii").strip().startswith("package")


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
