"""Files of a lab entry replaced at each moment of a load and of a save, by an injected file system
and not by a race.

Whatever an attacker does between two file operations of a compile, its answer is right, and so is
the next one's; a miss says why, and the one after it hits.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from penstock import knobs
from penstock.errors import CacheError, SealBroken
from penstock.testing.doubles import FaultyFiles
from tests.support_attacks import PLACES, LabRig, Turn, flip_in, layer

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

MODEL = layer(1)
FILES = range(len(PLACES))
MISSES = {kind.__name__ for kind in CacheError.__subclasses__()}
"""Whatever it is, it has a name."""


@pytest.fixture(autouse=True)
def no_long_waits() -> Iterator[None]:
    with knobs.override(lease_seconds=5.0):
        yield


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> LabRig:
    return make_twin(tmp_path_factory.mktemp("twin"))


def make_twin(root: Path) -> LabRig:
    """An entry, one of the same token, model and key in another cache directory, and the one it has
    replaced.
    """
    rig = LabRig(root)
    rig.compile(MODEL)
    (root / "older").mkdir()
    for path in rig.paths():
        shutil.copyfile(path, root / "older" / path.name[64:])
    flip_in(rig.paths()[0], 2100)
    assert rig.refuses(SealBroken, MODEL)
    assert replace(rig, folder="other").compile(MODEL).name == "NoEntry"
    return rig


def copied(twin: LabRig, root: Path) -> LabRig:
    return LabRig(shutil.copytree(twin.root, root))


Attack = Callable[[LabRig, Path], None]


def put_twins_content(rig: LabRig, path: Path) -> None:
    """In place: an open handle reads it."""
    path.write_bytes((rig.root / "other" / path.name[:66]).read_bytes())


def put_older_content(rig: LabRig, path: Path) -> None:
    path.write_bytes((rig.root / "older" / path.name[64:66]).read_bytes())


def rename_the_twin_over_it(rig: LabRig, path: Path) -> None:
    """A new file under the name: an open handle keeps the old one."""
    aside = rig.root / "aside"
    shutil.copyfile(rig.root / "other" / path.name[:66], aside)
    aside.replace(path)


def flip_a_bit(rig: LabRig, path: Path) -> None:
    if size := path.stat().st_size:
        flip_in(path, random.Random(size).randrange(size * 8))


def cut_it(rig: LabRig, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def link_it(rig: LabRig, path: Path) -> None:
    """To a file that must stay as it is."""
    path.unlink()
    path.symlink_to(rig.root / "victim")


def remove_it(rig: LabRig, path: Path) -> None:
    path.unlink()


ATTACKS: tuple[Attack, ...] = (
    put_twins_content,
    put_older_content,
    rename_the_twin_over_it,
    flip_a_bit,
    cut_it,
    link_it,
    remove_it,
)


def operations(rig: LabRig) -> int:
    counting = FaultyFiles()
    replace(rig, files=counting).compile(MODEL)
    return len(counting.log)


def outcome(turn: Turn) -> str:
    assert turn.outcome == "hit" or turn.name in MISSES, turn
    return turn.outcome if turn.outcome == "hit" else turn.name


def attack_loads(rig: LabRig, number: int, attacks: Sequence[Attack]) -> set[str]:
    """Attacks one file before operation 0, 1, ... of a load, with the attacks in turn; what the
    compiles found.
    """
    (rig.root / "victim").write_bytes(b"precious")
    seen = set()
    for at in range(operations(rig)):
        attack = attacks[at % len(attacks)]
        assert rig.hits(MODEL)
        path = rig.paths()[number]
        files = FaultyFiles(at, partial(attack, rig, path))
        turn = replace(rig, files=files).compile(MODEL)
        seen.add(outcome(turn))
        if turn.outcome == "hit":
            turn = rig.compile(MODEL)
            seen.add(outcome(turn))
        if turn.not_saved:
            rig.compile(MODEL)
        assert (rig.root / "victim").read_bytes() == b"precious"
    assert rig.hits(MODEL)
    return seen


def attack_saves(root: Path, twin: LabRig, attacks: Sequence[Attack]) -> set[str]:
    """Attacks all cache files there are, published or not, before operation 0, 1, ... of a compile
    that replaces a damaged entry.
    """
    seen = set()
    source = copied(twin, root / "source")
    flip_in(source.paths()[1], 2100)
    (source.root / "victim").write_bytes(b"precious")
    for at in range(operations(copied(source, root / "count"))):
        rig = copied(source, root / f"{at}")
        strike = partial(attack_all, rig, attacks[at % len(attacks)])
        # It hits where the attack was to put a whole and authentic entry in place of the damaged
        # one.
        outcome(replace(rig, files=FaultyFiles(at, strike)).compile(MODEL))
        turn = rig.compile(MODEL)
        seen.add(outcome(turn))
        if turn.not_saved:
            rig.compile(MODEL)
        assert rig.hits(MODEL), at
        assert (rig.root / "victim").read_bytes() == b"precious"
        assert rig.litter() == []
        shutil.rmtree(rig.root)
    return seen


def attack_all(rig: LabRig, attack: Attack) -> None:
    for path in sorted(rig.path.iterdir()):
        if path.name[64:66] in PLACES:
            attack(rig, path)


@pytest.mark.parametrize("number", FILES)
@pytest.mark.parametrize("shift", range(3))
def test_during_a_load(tmp_path: Path, twin: LabRig, number: int, shift: int) -> None:
    attacks = ATTACKS[shift * 2 :] + ATTACKS[: shift * 2]
    seen = attack_loads(copied(twin, tmp_path / "rig"), number, attacks)
    assert "hit" in seen
    assert seen >= {"SealBroken", "NotRegularFile"}
    assert seen & {"ForeignEntry", "RolledBack"}


def test_during_a_save(tmp_path: Path, twin: LabRig) -> None:
    seen = attack_saves(tmp_path, twin, ATTACKS)
    assert "hit" in seen
    assert len(seen) > 3
