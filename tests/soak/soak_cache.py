"""The compilation cache with the lab device: python -m tests.soak.soak_cache [--seconds S] [--seed
S].

Eight processes hammer one directory for ten minutes; a thousand times one of eight that change a
registry is killed; then a process is killed at every file operation, every file operation of every
flow, of the cache and of the registry, fails in every way, and every attack is made at every moment
of a load and of a save. With fewer seconds there are fewer kills of those eight. Prints figures;
exit code 1 for a wrong answer, an exception, or anything found that should not be.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

if __name__ == "__main__" and __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock import knobs
from penstock.cache import Cache
from tests.attacks import (
    test_cache_faults as directory,
    test_cache_lab_faults as faults,
    test_cache_lab_replaced as replaced,
    test_cache_together as together,
    test_registry_kills as registry_kills,
)
from tests.support_attacks import PLACES, LabRig
from tests.support_sealed import FAULTS
from tests.support_together import children, hammer

SECONDS = 600.0
KILLS = 1000


def soak_processes(root: Path, seconds: float, seed: int) -> str:
    seen = hammer(root, seconds, seed)
    if seen["wrong"]:
        raise AssertionError(f"{seen['wrong']} wrong answers")
    cache = Cache(root / "cache")
    cache.clear()
    if left := sorted(path.name for path in cache.directory.iterdir()):
        raise AssertionError(f"left behind: {left}")
    return ", ".join(f"{count} {what}" for what, count in seen.most_common())


def soak_kills(root: Path, mode: str) -> str:
    with children(root, 2) as (worker, reader):
        for at in itertools.count():
            if not together.kill_at(root, worker, reader, mode, at):
                return f"killed at each of {at} file operations"
            shutil.rmtree(root / f"{at}")
    raise AssertionError("unreachable")


def soak_registry(root: Path, kills: int, seed: int) -> str:
    rows = registry_kills.kill_writers(root, kills, seed)
    return f"{kills} of {registry_kills.PROCESSES} processes killed, {rows} rows inserted"


def soak_faults(root: Path, name: str) -> str:
    (root / "source").mkdir()
    faults.prepare(root / "source", name)
    found: set[str] = set()
    for what, breaking, kinds in (
        ("operation", faults.break_files, FAULTS),
        ("registry", faults.break_registry, FAULTS),
    ):
        for fault, act in kinds.items():
            place = root / f"{what} {fault}".replace("/", " ")
            place.mkdir()
            found |= faults.fail_each(place, root / "source", name, breaking, {fault: act})
    return ", ".join(sorted(found))


def soak_directory(root: Path, what: str) -> str:
    source = directory.prepare(root / "source", directory.ACTS[what][1])
    found: set[object] = set()
    for name in FAULTS:
        (root / name).mkdir()
        found |= directory.fail_each(root / name, source, what, (name,))
    return ", ".join(sorted(getattr(f, "__name__", str(f)) for f in found))


def soak_replaced(root: Path, twin: LabRig, attack: replaced.Attack) -> str:
    seen: set[str] = set()
    for number in range(len(PLACES)):
        rig = replaced.copied(twin, root / f"load {number}")
        seen |= replaced.attack_loads(rig, number, [attack])
    (root / "save").mkdir()
    seen |= replaced.attack_saves(root / "save", twin, [attack])
    return ", ".join(sorted(seen))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the soak and returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.soak.soak_cache", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    failures = 0
    kills = min(KILLS, max(1, int(KILLS * options.seconds / SECONDS)))

    def part(name: str, act: Callable[[Path], str]) -> None:
        nonlocal failures
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="penstock-soak-") as root:
            try:
                said = act(Path(root))
            except Exception:  # noqa: BLE001  # each is a finding
                failures += 1
                said = f"FAILED: {traceback.format_exc(limit=-4)}"
        print(f"{name} ({time.monotonic() - begun:.0f} s): {said}")

    part(
        f"eight processes from seed {options.seed}",
        lambda root: soak_processes(root, options.seconds, options.seed),
    )
    part(
        f"kills of a registry's writers from seed {options.seed}",
        lambda root: soak_registry(root, kills, options.seed),
    )
    for mode in ("now", "first_run", "staged"):
        part(f"kills, {mode}", lambda root, mode=mode: soak_kills(root, mode))  # type: ignore[misc]
    with (
        knobs.override(lease_seconds=5.0),
        tempfile.TemporaryDirectory(prefix="penstock-soak-") as twins,
    ):
        for what in directory.ACTS:
            part(
                f"faults in the directory, {what}",
                lambda root, what=what: soak_directory(root, what),  # type: ignore[misc]
            )
        for flow in faults.FLOWS:
            part(f"faults, {flow}", lambda root, flow=flow: soak_faults(root, flow))  # type: ignore[misc]
        twin = replaced.make_twin(Path(twins))
        for attack in replaced.ATTACKS:
            part(
                f"files, {attack.__name__}",
                lambda root, attack=attack: soak_replaced(root, twin, attack),  # type: ignore[misc]
            )
    print(f"failures: {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
