"""Every bit and every length of every file of a lab entry, and every bit of its token: none but the
untouched one loads.

Each case is three steps at the driver: the untouched entry loads with no compile, the altered one
is refused for its own reason before the engine is asked anything, the recompiled one loads again;
most flipped bits are flipped back instead. A seeded subset goes through `penstock.compile`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from penstock.errors import ForeignEntry, NotYetWritten, SealBroken, TokenCollision, WrongLength
from penstock.sealed import HEADER_BYTES, LEAF_BYTES
from tests.support_attacks import PLACES, UNDONE, Bulk, LabRig, flip, flip_in, layer
from tests.support_sealed import BINDING, TOKEN

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

MODEL = layer(1)
FILES = range(len(PLACES))
MOST_BYTES = 1024


@pytest.fixture
def bulk(tmp_path: Path) -> Iterator[Bulk]:
    with Bulk(tmp_path, MODEL) as made:
        yield made


def test_the_files_are_small_enough_for_every_bit(bulk: Bulk) -> None:
    sizes = [path.stat().st_size for path in bulk.paths]
    assert all(HEADER_BYTES < size <= MOST_BYTES for size in sizes), sizes


@pytest.mark.parametrize("number", FILES)
def test_lab_refuses_every_flipped_bit_of_each_file(bulk: Bulk, number: int) -> None:
    fd = bulk.handles[number].fd
    bits = os.fstat(fd).st_size * 8
    turn = partial(flip, fd)
    assert bulk.attack(SealBroken, turn, range(bits), undo=turn) == bits
    assert bulk.device.compiles == 1 + -(-bits // UNDONE)


@pytest.mark.parametrize("number", FILES)
def test_lab_refuses_every_other_length_of_each_file(bulk: Bulk, number: int) -> None:
    """Shorter ones are cut off, longer ones continued with zeros, ones and noise."""
    fd = bulk.handles[number].fd
    whole = os.fstat(fd).st_size
    filling = random.Random(number)

    def resize(length: int) -> None:
        os.ftruncate(fd, length)
        more = length - whole
        if more > 0:
            fill = (bytes(more), b"\xff" * more, filling.randbytes(more))[length % 3]
            os.pwrite(fd, fill, whole)

    others = [length for length in range(whole + 257) if length != whole]
    assert bulk.attack(WrongLength, resize, others) == whole + 256


def test_empty_files_are_not_yet_written(bulk: Bulk) -> None:
    def empty(_: object) -> None:
        for handle in bulk.handles:
            os.ftruncate(handle.fd, 0)

    assert bulk.attack(NotYetWritten, empty, ["empty"])


@pytest.mark.parametrize("what", ["token", "binding"])
def test_lab_refuses_every_flipped_bit_of_token_and_binding(bulk: Bulk, what: str) -> None:
    """A changed token names another entry, a changed binding another model of this name."""
    for bit in range(256):
        changed = bytearray(TOKEN if what == "token" else BINDING)
        changed[bit // 8] ^= 1 << bit % 8
        config = structs.replace(bulk.config, **{what: bytes(changed)})
        assert bulk.hits(), bit
        kind = ForeignEntry if what == "token" else TokenCollision
        assert bulk.refusal(config) == kind.__name__, bit
        assert bulk.recompiled(), bit
        assert bulk.hits(), bit


def alter(rig: LabRig, number: int, act: Callable[[Path, int], object], value: int) -> None:
    """Does *act* to one of the files of the rig's entry."""
    act(rig.paths()[number], value)


@pytest.mark.parametrize("number", FILES)
def test_seeded_bits_and_lengths_through_compile(tmp_path: Path, number: int) -> None:
    rig = LabRig(tmp_path)
    rig.compile(MODEL)
    draw = random.Random(number)
    size = rig.paths()[number].stat().st_size
    for bit in draw.sample(range(size * 8), 40):
        rig.attack(SealBroken, partial(alter, rig, number, flip_in, bit), MODEL)
    for length in draw.sample([n for n in range(size + 257) if n != size], 20):
        rig.attack(WrongLength, partial(alter, rig, number, os.truncate, length), MODEL)


def test_lab_refuses_a_flipped_bit_in_each_leaf_of_a_large_file(tmp_path: Path) -> None:
    """2.5 MiB of weights are three Merkle leaves: a bit of each, at its first, its last and some
    other byte.
    """
    model = layer(2, units=1024, depth=640)
    rig = LabRig(tmp_path)
    rig.compile(model)
    size = rig.paths()[2].stat().st_size - HEADER_BYTES
    assert size == 5 * LEAF_BYTES // 2 + 4096
    draw = random.Random(5)
    for start in range(0, size, LEAF_BYTES):
        stop = min(start + LEAF_BYTES, size)
        for place in (start, draw.randrange(start, stop), stop - 1):
            bit = (HEADER_BYTES + place) * 8 + draw.randrange(8)
            rig.attack(SealBroken, partial(alter, rig, 2, flip_in, bit), model)
