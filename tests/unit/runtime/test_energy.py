"""Energy counters, in a directory that stands for powercap."""

from __future__ import annotations

from pathlib import Path

from penstock.runtime.measuring import EnergyCounter


def zone(root: Path, name: str, label: str, energy: int, most: int = 1_000) -> Path:
    made = root / name
    made.mkdir()
    (made / "name").write_text(f"{label}\n")
    (made / "energy_uj").write_text(f"{energy}\n")
    (made / "max_energy_range_uj").write_text(f"{most}\n")
    return made / "energy_uj"


def test_packages_are_added_up(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 100)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 10)
    zone(tmp_path, "intel-rapl:0:0", "core", 7)
    zone(tmp_path, "intel-rapl:2", "psys", 7)
    counter = EnergyCounter.find(tmp_path)
    assert counter is not None
    assert counter.read() == 0
    first.write_text("150")
    second.write_text("30")
    assert counter.read() == 70
    assert counter.read() == 70


def test_a_counter_that_began_again(tmp_path: Path) -> None:
    energy = zone(tmp_path, "intel-rapl:0", "package-0", 900)
    counter = EnergyCounter.find(tmp_path)
    assert counter is not None
    energy.write_text("50")
    assert counter.read() == 150


def test_no_counter(tmp_path: Path) -> None:
    assert EnergyCounter.find(tmp_path) is None
    assert EnergyCounter.find(tmp_path / "nowhere") is None
    energy = zone(tmp_path, "intel-rapl:0", "package-0", 900)
    energy.write_text("nonsense")
    assert EnergyCounter.find(tmp_path) is None
    energy.unlink()
    assert EnergyCounter.find(tmp_path) is None


def test_a_part_of_a_package_may_be_unreadable(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 900)
    (tmp_path / "intel-rapl:0:0").mkdir()
    assert EnergyCounter.find(tmp_path) is not None
