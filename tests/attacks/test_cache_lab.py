"""A lab entry exchanged, linked, rolled back or left without its registry, through
`penstock.compile`: refused by name.

Each case is three steps: the untouched entry hits with no compile, the altered one is refused for
exactly its own reason, the recompiled one hits. Every answer on the way is the reference device's.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock import errors
from penstock.cache.info import CacheInfo
from penstock.sealed import KeyStore, MemoryKeyStore
from tests.support_attacks import PLACES, LabRig, exchange, expected, flip_in, layer
from tests.support_sealed import TOKEN, put_private

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

MODEL, OTHER = layer(1), layer(2)
FILES = range(len(PLACES))
LINKS = ("symbolic link", "hard link", "directory", "dangling link")


@pytest.fixture
def rig(tmp_path: Path) -> LabRig:
    made = LabRig(tmp_path)
    assert made.compile(MODEL).name == "NoEntry"
    return made


def newer(rig: LabRig, **more: object) -> LabRig:
    """The same user's rig with the driver's next version."""
    return LabRig(rig.root, version="2", keys=rig.keys, **more)  # type: ignore[arg-type]


# One way to provoke each refusal.


def flip_a_bit(rig: LabRig) -> None:
    flip_in(rig.paths()[0], 2100)


def append_a_byte(rig: LabRig) -> None:
    with rig.paths()[2].open("ab") as file:
        file.write(b"\0")


def give_the_token_to_another_model(rig: LabRig) -> None:
    assert rig.compile(OTHER, CacheInfo(rig.path, TOKEN)).name == "TokenCollision"


def exchange_model_files(rig: LabRig) -> None:
    exchange(*rig.paths()[:2])


def put_another_version_s_files(rig: LabRig) -> None:
    theirs = newer(rig, folder="theirs")
    theirs.compile(MODEL)
    for ours, other in zip(rig.paths(), theirs.paths(), strict=True):
        shutil.copyfile(other, ours)


def delete_the_registry(rig: LabRig) -> None:
    for path in rig.state.glob(f"{rig.registry_file.name}*"):
        path.unlink()


def link_a_file(rig: LabRig) -> None:
    path = rig.paths()[1]
    path.symlink_to(path.rename(rig.root / "aside"))


def put_replaced_files_back(rig: LabRig) -> None:
    kept = [path.read_bytes() for path in rig.paths()]
    flip_a_bit(rig)
    assert rig.refuses(errors.SealBroken, MODEL)
    for path, content in zip(rig.paths(), kept, strict=True):
        path.write_bytes(content)


PROVOKED: dict[type[errors.CacheError], Callable[[LabRig], None]] = {
    errors.SealBroken: flip_a_bit,
    errors.WrongLength: append_a_byte,
    errors.TokenCollision: give_the_token_to_another_model,
    errors.ForeignEntry: exchange_model_files,
    errors.OtherVersion: put_another_version_s_files,
    errors.RegistryMissing: delete_the_registry,
    errors.NotRegularFile: link_a_file,
    errors.RolledBack: put_replaced_files_back,
}


@pytest.mark.parametrize("kind", PROVOKED, ids=lambda kind: kind.__name__)
def test_every_refusal_is_provoked_by_an_attack(
    tmp_path: Path, kind: type[errors.CacheError]
) -> None:
    rig = LabRig(tmp_path)
    info = CacheInfo(rig.path, TOKEN) if kind is errors.TokenCollision else None
    assert rig.compile(MODEL, info).name == "NoEntry"
    rig.attack(kind, lambda: PROVOKED[kind](rig), MODEL, info)


def test_every_two_files_of_entries_exchanged(tmp_path: Path) -> None:
    """Two models in two cache directories are four entries of twelve files: each pair changes
    places.

    Files of one place and token in two directories are the only ones that fit each other's names,
    and they differ in their entries.
    """
    rigs = [LabRig(tmp_path, folder=folder) for folder in ("one", "two")]
    places: list[tuple[LabRig, int, Path]] = []
    for rig, seed in itertools.product(rigs, (1, 2)):
        places += [(rig, seed, path) for path in rig.new_paths(layer(seed))]
    assert len(places) == 12
    assert {p.name for _, _, p in places[:6]} == {p.name for _, _, p in places[6:]}
    for one, other in itertools.combinations(places, 2):
        touched = {(id(rig), seed): (rig, seed) for rig, seed, _ in (one, other)}
        for rig, seed in touched.values():
            assert rig.hits(layer(seed))
        exchange(one[2], other[2])
        for rig, seed in touched.values():
            assert rig.refuses(errors.ForeignEntry, layer(seed)), (one, other)
            assert rig.hits(layer(seed))


def test_whole_entries_exchanged(tmp_path: Path) -> None:
    """Across tokens they are foreign; of one token in two directories each is still the model's
    own.
    """
    one, two = LabRig(tmp_path, folder="one"), LabRig(tmp_path, folder="two")
    mine, theirs = one.new_paths(MODEL), one.new_paths(OTHER)
    twins = two.new_paths(MODEL)
    for a, b in zip(mine, theirs, strict=True):
        exchange(a, b)
    for model in (MODEL, OTHER):
        assert one.refuses(errors.ForeignEntry, model)
        assert one.hits(model)
    for a, b in zip(mine, twins, strict=True):
        exchange(a, b)
    assert one.hits(MODEL)
    assert two.hits(MODEL)


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(FILES, 2)))
def test_a_file_copied_over_another_of_its_entry(rig: LabRig, one: int, other: int) -> None:
    def copy() -> None:
        shutil.copyfile(rig.paths()[one], rig.paths()[other])

    rig.attack(errors.ForeignEntry, copy, MODEL)


def test_bits_of_a_caller_s_token(tmp_path: Path) -> None:
    """Another token finds nothing, or a foreign entry if the files have its names."""
    rig = LabRig(tmp_path)
    info = CacheInfo(rig.path, TOKEN)
    contents = [path.read_bytes() for path in rig.new_paths(MODEL, info)]
    for bit in random.Random(3).sample(range(256), 40):
        assert rig.hits(MODEL, info), bit
        changed = bytearray(TOKEN)
        changed[bit // 8] ^= 1 << bit % 8
        flipped = CacheInfo(rig.path, bytes(changed))
        theirs = rig.new_paths(MODEL, flipped)
        for path, content in zip(theirs, contents, strict=True):
            path.write_bytes(content)
        assert rig.refuses(errors.ForeignEntry, MODEL, flipped), bit
        assert rig.hits(MODEL, flipped), bit
        for path in theirs:
            path.unlink()


@pytest.mark.parametrize("number", FILES)
@pytest.mark.parametrize("what", LINKS)
def test_link_or_directory_in_place_of_a_cache_file_is_refused(
    rig: LabRig, number: int, what: str
) -> None:
    """It is refused and makes room for a file; what a link named stays as it was."""
    aside = rig.root / "aside"

    def put() -> None:
        path = rig.paths()[number]
        path.rename(aside)
        if what == "hard link":
            path.hardlink_to(aside)
        elif what == "directory":
            path.mkdir()
        else:
            path.symlink_to(aside if what == "symbolic link" else rig.root / "nowhere")

    whole = rig.paths()[number].read_bytes()
    if what == "directory":
        # Nothing is ever removed that a cache did not make: while it is there, nothing is saved.
        assert rig.hits(MODEL)
        put()
        turn = rig.compile(MODEL)
        assert (turn.name, turn.compiles) == ("NotRegularFile", 1)
        assert turn.not_saved.startswith("Unreadable: ")
        (rig.path / f"{next(iter(rig.entries()))}{PLACES[number]}").rmdir()
        assert rig.compile(MODEL).compiles == 1
        assert rig.hits(MODEL)
    else:
        rig.attack(errors.NotRegularFile, put, MODEL)
    assert aside.read_bytes() == whole
    assert not (rig.root / "nowhere").exists()
    assert rig.litter() == []


@pytest.mark.parametrize("number", FILES)
def test_a_missing_file(rig: LabRig, number: int) -> None:
    rig.attack(errors.NoEntry, rig.paths()[number].unlink, MODEL)


class TestTheRegistry:
    def test_deleted(self, rig: LabRig) -> None:
        rig.attack(errors.RegistryMissing, lambda: delete_the_registry(rig), MODEL)

    def test_deleted_with_the_key(self, rig: LabRig) -> None:
        """Without the key nothing can be authentic; there is nothing either that could have listed
        it.
        """

        def delete() -> None:
            delete_the_registry(rig)
            (rig.state / "key").unlink()

        rig.attack(errors.RegistryMissing, delete, MODEL)

    def test_the_key_alone_deleted(self, rig: LabRig) -> None:
        rig.attack(errors.SealBroken, (rig.state / "key").unlink, MODEL)

    def test_registry_of_another_version_is_refused(self, rig: LabRig) -> None:
        theirs = newer(rig, folder="theirs")
        theirs.compile(MODEL)
        whole = theirs.registry_file.read_bytes()

        def put() -> None:
            delete_the_registry(rig)
            put_private(rig.registry_file, whole)

        rig.attack(errors.OtherVersion, put, MODEL)
        assert theirs.registry_file.read_bytes() == whole
        assert theirs.hits(MODEL)

    def test_registry_of_another_driver_is_refused(self, rig: LabRig) -> None:
        from penstock.sealed import FileRegistry, Owner

        other = FileRegistry(rig.state / "other", Owner("sample", "1"), rig.key_store)
        other.open()

        def put() -> None:
            delete_the_registry(rig)
            (rig.state / "other").rename(rig.registry_file)

        rig.attack(errors.SealBroken, put, MODEL)

    def test_flipped_bits_of_the_registry_give_a_named_miss(self, rig: LabRig) -> None:
        draw = random.Random(11)
        seen = set()
        for _ in range(60):
            assert rig.hits(MODEL)
            flip_in(rig.registry_file, draw.randrange(rig.registry_file.stat().st_size * 8))
            turn = rig.compile(MODEL)
            seen.add(turn.name if turn.outcome == "miss" else "hit")
            assert rig.hits(MODEL)
        assert seen == {"SealBroken"}


def snapshot(rig: LabRig) -> Callable[[], None]:
    """Puts the cache directory and the registry, but not the key, back to where they stand now."""
    kept = rig.root / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(rig.path, kept / "cache")
    shutil.copytree(rig.state, kept / "state")

    def put_back() -> None:
        shutil.rmtree(rig.path)
        shutil.copytree(kept / "cache", rig.path)
        delete_the_registry(rig)
        for path in (kept / "state").glob(f"{rig.registry_file.name}*"):
            put_private(rig.state / path.name, path.read_bytes())

    return put_back


class TestARolledBackPair:
    """Files and registry of an older generation, both authentic, put back together."""

    def with_keys(self, tmp_path: Path, keys: KeyStore | None) -> tuple[LabRig, Callable[[], None]]:
        rig = LabRig(tmp_path, keys=keys)
        rig.compile(MODEL)
        put_back = snapshot(rig)
        flip_a_bit(rig)
        assert rig.refuses(errors.SealBroken, MODEL)
        return rig, put_back

    def test_rolled_back_pair_is_refused_by_a_key_store_counter(self, tmp_path: Path) -> None:
        rig, put_back = self.with_keys(tmp_path, MemoryKeyStore())
        rig.attack(errors.RolledBack, put_back, MODEL)

    def test_rolled_back_pair_of_the_same_version_loads_without_a_counter(
        self, tmp_path: Path
    ) -> None:
        """It may load, and its answer is right: it was sealed for this very model."""
        rig, put_back = self.with_keys(tmp_path, None)
        assert rig.hits(MODEL)
        put_back()
        assert rig.hits(MODEL)

    @pytest.mark.parametrize("store", [None, MemoryKeyStore])
    def test_rolled_back_pair_of_another_version_is_refused(
        self, tmp_path: Path, store: type[MemoryKeyStore] | None
    ) -> None:
        """The old version's files and registry under the new version's names."""
        old = LabRig(tmp_path, keys=store() if store else None, folder="old")
        old.compile(MODEL)
        rig = newer(old)
        rig.compile(MODEL)

        def put() -> None:
            for ours, theirs in zip(rig.paths(), old.paths(), strict=True):
                shutil.copyfile(theirs, ours)
            delete_the_registry(rig)
            put_private(rig.registry_file, old.registry_file.read_bytes())

        rig.attack(errors.OtherVersion, put, MODEL)
        assert old.hits(MODEL)

    @pytest.mark.parametrize("store", [None, MemoryKeyStore])
    def test_the_registry_alone(self, tmp_path: Path, store: type[MemoryKeyStore] | None) -> None:
        """The files of now with the registry of before: it does not list them yet."""
        rig = LabRig(tmp_path, keys=store() if store else None)
        rig.compile(MODEL)
        kept = rig.registry_file.read_bytes()
        flip_a_bit(rig)
        assert rig.refuses(errors.SealBroken, MODEL)

        def put() -> None:
            delete_the_registry(rig)
            put_private(rig.registry_file, kept)

        rig.attack(errors.RolledBack, put, MODEL)

    @pytest.mark.parametrize("store", [None, MemoryKeyStore])
    def test_the_files_alone(self, tmp_path: Path, store: type[MemoryKeyStore] | None) -> None:
        rig = LabRig(tmp_path, keys=store() if store else None)
        rig.compile(MODEL)
        rig.attack(errors.RolledBack, lambda: put_replaced_files_back(rig), MODEL)


class TestATrustedToken:
    """A token given to two models with `trust_token=True`: never a crash; it may fail, or answer
    for the other.
    """

    def test_trusted_token_of_two_models_gives_the_first_model(self, tmp_path: Path) -> None:
        rig = LabRig(tmp_path)
        trusting = CacheInfo(rig.path, TOKEN, trust_token=True)
        assert rig.compile(MODEL, trusting).name == "NoEntry"
        outcome, answer = rig.answer(OTHER, trusting)
        assert outcome == "hit"
        np.testing.assert_array_equal(answer, expected(MODEL))

    @pytest.mark.parametrize("seed", range(6))
    def test_trusted_token_of_other_shapes_gives_a_named_error_or_a_compile(
        self, tmp_path: Path, seed: int
    ) -> None:
        """The driver's program does not fit the request: a named error, or a compile."""
        rig = LabRig(tmp_path)
        trusting = CacheInfo(rig.path, TOKEN, trust_token=True)
        draw = random.Random(seed)
        sizes = [(draw.randrange(1, 9), draw.randrange(1, 9)) for _ in range(4)]
        for units, depth in [*sizes, *sizes]:
            outcome, answer = rig.answer(layer(seed, units, depth), trusting)
            assert outcome in {"hit", "miss"}
            assert isinstance(answer, np.ndarray) or issubclass(answer, errors.DriverError), answer

    def test_trusted_token_refuses_altered_entries(self, tmp_path: Path) -> None:
        rig = LabRig(tmp_path)
        trusting = CacheInfo(rig.path, TOKEN, trust_token=True)
        rig.compile(MODEL, trusting)
        rig.attack(errors.SealBroken, lambda: flip_a_bit(rig), MODEL, trusting)
        rig.attack(errors.ForeignEntry, lambda: exchange_model_files(rig), MODEL, trusting)

    def test_trusted_entry_is_refused_for_an_untrusted_token(self, tmp_path: Path) -> None:
        rig = LabRig(tmp_path)
        rig.compile(MODEL, CacheInfo(rig.path, TOKEN, trust_token=True))
        assert rig.refuses(errors.IngredientChanged, MODEL, CacheInfo(rig.path, TOKEN))
