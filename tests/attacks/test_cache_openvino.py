"""A real engine's cache entry attacked: whatever is altered is refused before OpenVINO's importer
sees it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import errors, knobs
from penstock.cache.info import CacheInfo
from penstock.sealed import EntryFiles
from tests.support_attacks import exchange, expected, given, layer
from tests.support_engine_entry import refusal
from tests.support_openvino import cpu, needs_openvino
from tests.support_openvino_entry import OpenVinoEntry
from tests.support_sealed import TOKEN

pytestmark = needs_openvino

SEED = 20
REFUSED = 2000
COMPILED = 100


@pytest.fixture(scope="module")
def entry(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenVinoEntry]:
    """With registries of its own, since one of the attacks deletes them."""
    root = tmp_path_factory.mktemp("openvino")
    with knobs.override(state_dir=str(root / "state")):
        yield OpenVinoEntry(corpus, root / "cache")


def test_seeded_bits_are_refused_without_the_engine(entry: OpenVinoEntry) -> None:
    """Places in the header, the data file and, most of them, the artefact."""
    bits = entry.bits()
    assert len(bits) > 100 * REFUSED
    assert entry.refuse(errors.SealBroken, random.Random(SEED).sample(bits, REFUSED)) == REFUSED


def test_seeded_bits_through_compile(entry: OpenVinoEntry) -> None:
    draw = random.Random(SEED + 1)
    model, data = (path.stat().st_size * 8 for path in entry.paths())
    done = entry.attack(errors.SealBroken, 0, draw.sample(range(model), COMPILED - 20))
    done += entry.attack(errors.SealBroken, 1, draw.sample(range(data), 20))
    assert done == COMPILED


def test_seeded_lengths_are_refused_without_the_engine(entry: OpenVinoEntry) -> None:
    draw = random.Random(SEED + 2)
    with entry.opened() as (device, config):
        for handle in (*config.model_cache, *config.data_cache):
            whole = os.pread(handle.fd, 1 << 20, 0)
            for length in draw.sample([n for n in range(len(whole) + 257) if n != len(whole)], 100):
                os.ftruncate(handle.fd, length)
                assert refusal(device, config) == "WrongLength", length
                os.ftruncate(handle.fd, 0)
                os.pwrite(handle.fd, whole, 0)
        assert (device.compiles, device.loads) == (0, 0)
    assert entry.compiled() == ("hit", "optimised")


def append(entry: OpenVinoEntry) -> None:
    with entry.paths()[0].open("ab") as file:
        file.write(bytes(1))


def link(entry: OpenVinoEntry) -> None:
    path = entry.paths()[0]
    path.symlink_to(path.rename(entry.directory.parent / "aside"))


def swap(entry: OpenVinoEntry) -> None:
    exchange(*entry.paths())


def delete_the_registry(entry: OpenVinoEntry) -> None:
    path = Path(cpu().seal.registry.path)  # type: ignore[attr-defined]  # the file's
    for found in path.parent.glob(f"{path.name}*"):
        found.unlink()


def seal_by_another_version(entry: OpenVinoEntry) -> None:
    from penstock.cache.directory import CacheDirectory
    from penstock.sealed import Seal

    device = cpu()
    older = Seal(device.name, f"{device.version} older", files=(1, 1))
    with CacheDirectory(entry.directory).open(entry.config.token, (1, 1)) as files:
        mine = device.seal.load(
            EntryFiles(files.model, files.data, entry.config.token, entry.config.binding)
        )
        report = older.save(
            EntryFiles(files.model, files.data, entry.config.token, entry.config.binding),
            model=mine.model,
            data=mine.data,
        )
    assert report.saved


@pytest.mark.parametrize(
    ("kind", "alter"),
    [
        (errors.WrongLength, append),
        (errors.NotRegularFile, link),
        (errors.ForeignEntry, swap),
        (errors.RegistryMissing, delete_the_registry),
        (errors.OtherVersion, seal_by_another_version),
    ],
    ids=lambda value: value.__name__,
)
def test_openvino_refuses_altered_entries_by_name(
    entry: OpenVinoEntry, kind: type[errors.CacheError], alter: Callable[[OpenVinoEntry], None]
) -> None:
    assert entry.compiled() == ("hit", "optimised")
    alter(entry)
    assert entry.compiled() == ("miss", kind.__name__)
    assert entry.compiled() == ("hit", "optimised")


def test_a_trusted_token_given_to_several_models_never_crashes(tmp_path: Path) -> None:
    """Each run answers for one of the models, or fails by name."""
    trusting = CacheInfo(tmp_path / "cache", TOKEN, trust_token=True)
    draw = random.Random(SEED + 3)
    models = [layer(seed, draw.randrange(1, 9), draw.randrange(1, 9)) for seed in range(4)]
    models += [layer(seed, 3, 4) for seed in (7, 8)]
    seen: set[tuple[str, bool | str]] = set()
    for model in [*models, *reversed(models)]:
        with penstock.compile(model, devices=[cpu()], cache=trusting, num_threads=1) as compiled:
            outcome = compiled.receipt.steps[0].cache.outcome
            try:
                answer = compiled.run([given(model)])[0]
                seen.add((outcome, bool(np.array_equal(answer, expected(model)))))
            except errors.DriverError as error:
                seen.add((outcome, type(error).__name__))
    assert ("miss", True) in seen
    assert ("hit", True) in seen
