"""`Cache`: listing, verifying, explaining, collecting and clearing a directory."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import penstock.cache
from penstock import errors, knobs
from penstock.cache import Cache, CacheEntry
from penstock.cache.ingredients import binding_of, derived_token, ingredients_of
from penstock.cache.naming import IndexRecord, letters_of
from penstock.hal import PrepareConfig
from penstock.ir import DType, Model, ModelBuilder
from penstock.sealed import Owner
from penstock.testing.doubles import FaultyFiles, failing
from penstock.threads import allowed_threads
from tests.support_cache import NEEDED, Bench, token_of
from tests.support_devices import NumpyDevice

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

TOKENS = [token_of(n) for n in range(3)]
CONFIG = PrepareConfig(num_threads=allowed_threads())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    for number, token in enumerate(TOKENS):
        bench.compile(token, "old", structure=str(number))
    return bench


def cache_of(bench: Bench) -> Cache:
    cache = Cache(bench.path)
    cache._cache = bench.directory
    return cache


def test_the_packages_names_are_what_they_say() -> None:
    for name in penstock.cache.__all__:
        assert getattr(penstock.cache, name).__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="nothing"):
        _ = penstock.cache.nothing


def test_the_engine_is_the_blob_cache() -> None:
    from penstock import blobcache

    assert penstock.cache.engine.BlobCache is blobcache.BlobCache
    assert penstock.cache.engine.PersistentBlobCache is blobcache.PersistentBlobCache


def test_the_default_is_the_users_cache_directory(tmp_path: Path) -> None:
    with knobs.override(cache_dir=str(tmp_path / "chosen")):
        assert Cache().directory == tmp_path / "chosen"
    with knobs.override(cache_dir=""):
        assert Cache().directory.name == "compiled"
    assert list(tmp_path.iterdir()) == []


def test_arguments_of_the_wrong_kind(tmp_path: Path) -> None:
    for wrong in (5, "", b"path"):
        with pytest.raises(errors.InputError, match="must be a path"):
            Cache(wrong)  # type: ignore[arg-type]
    cache = Cache(tmp_path)
    for most in ("a", 1.5, True, -1):
        with pytest.raises(errors.InputError, match="cannot be kept to"):
            cache.gc(max_bytes=most)  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="model must be a Model, not str"):
        cache.explain("m.tflite", Lab())  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="device must be a Device, not str"):
        cache.explain(model(), "lab")  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="config must be a PrepareConfig, not dict"):
        cache.explain(model(), Lab(), {})  # type: ignore[arg-type]


def test_a_directory_that_is_not_there_is_empty(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "none")
    assert cache.entries() == []
    assert cache.verify() == []
    assert cache.gc(0) == []
    assert cache.clear() == []
    assert list(tmp_path.iterdir()) == []


def test_entries_are_listed_the_one_used_last_first(bench: Bench) -> None:
    bench.load(TOKENS[1], ["old"])
    found = cache_of(bench).entries()
    assert [entry.token for entry in found] == [TOKENS[1], TOKENS[2], TOKENS[0]]
    entry = found[-1]
    letters = letters_of(TOKENS[0])
    assert entry.model_cache == (bench.path / f"{letters}10", bench.path / f"{letters}11")
    assert entry.data_cache == (bench.path / f"{letters}20",)
    files = [*entry.model_cache, *entry.data_cache, bench.path / f"{letters}.json"]
    assert entry.nbytes == sum(path.stat().st_size for path in files)
    assert (entry.device, entry.version, entry.ingredients) == ("lab", "1", {"structure": "0"})
    assert entry.binding == bench.binding
    assert entry.created < found[1].created
    assert entry.created <= entry.used < found[1].used < found[0].used
    assert len({*found}) == 3


def test_an_entry_whose_index_is_lost_is_listed(bench: Bench) -> None:
    (bench.path / f"{letters_of(TOKENS[0])}.json").unlink()
    (entry,) = (e for e in cache_of(bench).entries() if e.token == TOKENS[0])
    assert (entry.device, entry.version, entry.ingredients, entry.binding) == ("", "", {}, b"")
    assert abs(entry.created - time.time()) < 600
    assert (entry, "Unreadable") in names(bench)


def names(bench: Bench) -> list[tuple[CacheEntry, str]]:
    """What `verify` says, by the name of the refusal."""
    found = cache_of(bench).verify()
    return [(entry, "" if error is None else str(error).split(":")[0]) for entry, error in found]


def refusals(bench: Bench) -> list[str]:
    verdicts = {entry.token: name for entry, name in names(bench)}
    return [verdicts[token] for token in TOKENS]


def test_sound_entries_are_sound(bench: Bench) -> None:
    assert refusals(bench) == ["", "", ""]


def test_each_defect_is_named_as_a_driver_would(bench: Bench) -> None:
    old = [path.read_bytes() for path in cache_of(bench).entries()[0].model_cache]
    bench.compile(TOKENS[2], "new")
    letters = [letters_of(token) for token in TOKENS]
    path = bench.path / f"{letters[0]}20"
    path.write_bytes(path.read_bytes() + b"x")
    path = bench.path / f"{letters[1]}11"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for number in range(2):
        (bench.path / f"{letters[2]}1{number}").write_bytes(old[number])
    assert refusals(bench) == [
        errors.WrongLength.__name__,
        errors.SealBroken.__name__,
        "ForeignEntry",
    ]


def test_an_entry_that_was_forgotten_is_rolled_back(bench: Bench) -> None:
    for row in bench.registry.rows()[:1]:
        bench.seal().forget(row.token, row.entry)
    assert sorted(refusals(bench)) == ["", "", errors.RolledBack.__name__]


def test_a_lost_registry_is_named(bench: Bench) -> None:
    bench.registries.clear()
    bench.registry.name = bytes(range(16))
    assert set(refusals(bench)) == {errors.RegistryMissing.__name__}


def test_an_entry_that_is_not_yet_written_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clock=time.time)
    bench.compile_later(TOKENS[0]).close()
    ((_, error),) = cache_of(bench).verify()
    assert type(error) is errors.NotYetWritten


@pytest.mark.parametrize("again", [False, True])
def test_an_entry_that_goes_or_changes_at_every_look_is_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    cache = cache_of(bench)
    record = cache._cache.record
    looks = 0

    def meanwhile(token: bytes) -> IndexRecord | None:
        nonlocal looks
        if token != TOKENS[0]:
            return record(token)
        looks += 1
        if looks > 1:  # the first look is the list's
            bench.compile(token, "new")
            if not again:
                for path in bench.path.glob(f"{letters_of(token)}*"):
                    path.unlink()
        return None

    monkeypatch.setattr(cache._cache, "record", meanwhile)
    assert {entry.token for entry, _ in cache.verify()} == {TOKENS[1], TOKENS[2]}


def test_each_entry_is_verified_with_its_own_driver_version(bench: Bench) -> None:
    replace(bench, owner=Owner("lab", "2")).compile(token_of(9), "old")
    assert {name for _, name in names(bench)} == {""}
    record = bench.directory.record(token_of(9))
    assert record is not None
    assert record.version == "2"


def test_another_drivers_entry_under_an_index_of_this_one(bench: Bench) -> None:
    other = replace(bench, owner=Owner("lab", "2"))
    other.compile(TOKENS[0], "old")
    bench.directory.store.write_record(TOKENS[0], bench.record(TOKENS[0]))
    assert refusals(bench)[0] == errors.OtherVersion.__name__


def test_a_directory_that_cannot_be_listed_is_named(bench: Bench) -> None:
    bench.files = FaultyFiles(0, failing(errno.EIO), only=["names"])
    with pytest.raises(errors.Unreadable, match="cannot be read"):
        cache_of(bench).entries()


def test_collecting_keeps_to_a_size(bench: Bench) -> None:
    cache = cache_of(bench)
    one = cache.entries()[0].nbytes
    assert [entry.token for entry in cache.gc(2 * one)] == [TOKENS[0]]
    assert cache.gc() == []
    with knobs.override(cache_limit_mib=0):
        assert cache.gc() == []
    with pytest.raises(errors.InputError, match="-1 bytes"):
        cache.gc(-1)
    assert len(cache.entries()) == 2


def test_clearing_leaves_nothing_but_what_is_in_use(bench: Bench) -> None:
    cache = cache_of(bench)
    with bench.directory.open(TOKENS[1], NEEDED):
        assert {entry.token for entry in cache.clear()} == {TOKENS[0], TOKENS[2]}
        assert [entry.token for entry in cache.entries()] == [TOKENS[1]]
    assert len(cache.clear()) == 1
    assert bench.names() == []
    assert bench.registry.rows() == ()


def test_unremovable_entry_is_counted_with_the_reason(bench: Bench) -> None:
    bench.files = FaultyFiles(0, failing(errno.EROFS), only=["unlink"])
    removed = cache_of(bench).clear()
    assert {entry.token for entry in removed} == {*TOKENS[1:]}
    assert removed.kept == 1
    assert removed.reason == (
        f"Unreadable: the cache directory {bench.path} cannot be emptied: Read-only file system"
    )
    removed = cache_of(bench).gc(0)
    assert (len(removed), removed.kept, removed.reason) == (1, 0, "")


@pytest.mark.parametrize("place", ["10", "20", ".json"])
def test_entry_with_a_directory_loses_its_removable_files(bench: Bench, place: str) -> None:
    in_place = bench.path / (letters_of(TOKENS[0]) + place)
    in_place.unlink(missing_ok=True)
    in_place.mkdir()
    removed = cache_of(bench).clear()
    assert {entry.token for entry in removed} == {*TOKENS[1:]}
    assert removed.kept == 1
    assert "is a directory" in removed.reason
    assert removed.reason.endswith("remove it")
    assert bench.names() == [place]
    in_place.rmdir()
    assert cache_of(bench).clear().kept == 0
    assert bench.names() == []


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_a_link_to_nothing_is_no_empty_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(tmp_path / "gone")
    with pytest.raises(errors.Unreadable, match="cannot be read"):
        Cache(tmp_path / "cache").entries()


class Lab(NumpyDevice):
    def __init__(self) -> None:
        super().__init__("lab")

    def cache_files_needed(self) -> tuple[int, int]:
        return NEEDED


class NewerLab(Lab):
    version = "2"


def model(value: float = 1.0) -> Model:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (2, 40), "x")
    k = b.constant(np.full((2, 40), value, np.float32), "k")
    (s,) = b.operation("ADD", [x, k], [(DType.FLOAT32, (2, 40))])
    return b.build([s])


@pytest.fixture
def compiled(tmp_path: Path) -> Bench:
    """A directory with the entry of `model()` on `Lab()`."""
    ingredients: dict[str, Any] = {**ingredients_of(model(), Lab(), CONFIG)}
    bench = Bench(tmp_path, binding=binding_of(ingredients))
    bench.compile(derived_token(ingredients), "old", **ingredients)
    return bench


def test_explain_finds_an_entry_that_would_hit(compiled: Bench) -> None:
    explanation = cache_of(compiled).explain(model(), Lab())
    assert explanation.found
    assert explanation.reason == ""
    assert explanation.token == cache_of(compiled).entries()[0].token


def test_an_entry_under_a_callers_token_is_found_by_its_sources(tmp_path: Path) -> None:
    ingredients: dict[str, Any] = {**ingredients_of(model(), Lab(), CONFIG)}
    bench = Bench(tmp_path, binding=binding_of(ingredients))
    bench.compile(TOKENS[0], "old", **ingredients)
    explanation = cache_of(bench).explain(model(), Lab())
    assert explanation.found
    assert explanation.token == TOKENS[0]


@pytest.mark.parametrize(
    ("other", "device", "config", "changed"),
    [
        (model(2.0), Lab(), None, ("constants",)),
        (model(), NewerLab(), None, ("version",)),
        (model(), Lab(), structs.replace(CONFIG, preference="low_power"), ("preference",)),
        (
            model(),
            Lab(),
            structs.replace(CONFIG, priority="high", num_threads=allowed_threads() + 1),
            ("priority", "num_threads"),
        ),
        (model(), Lab(), structs.replace(CONFIG, options=(("a", "b"),)), ("options",)),
    ],
)
def test_explain_names_the_changed_ingredients(
    compiled: Bench, other: Model, device: Lab, config: PrepareConfig | None, changed: tuple[str]
) -> None:
    explanation = cache_of(compiled).explain(other, device, config)
    assert not explanation.found
    assert explanation.changed == changed
    assert explanation.nearest is not None
    assert explanation.reason.startswith("NoEntry: the nearest entry differs in ")
    assert all(name in explanation.reason for name in changed)


def test_the_shapes_and_the_part_are_ingredients(compiled: Bench) -> None:
    cache = cache_of(compiled)
    assert cache.explain(model(), Lab(), shapes={0: (4, 40)}).changed == ("shapes",)
    part = cache.explain(model(), Lab(), operations=[])
    assert part.changed == ("partition",)
    assert part.reason == "NoEntry: this part of the model is not cached"


def test_another_models_entry_explains_little(compiled: Bench) -> None:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (2, 40), "x")
    (y,) = b.operation("RELU", [x], [(DType.FLOAT32, (2, 40))])
    explanation = cache_of(compiled).explain(b.build([y]), Lab())
    assert explanation.reason == "NoEntry: nothing is cached for a model of this structure"
    assert "structure" in explanation.changed


def test_an_empty_cache_has_nothing_near(tmp_path: Path) -> None:
    explanation = Cache(tmp_path / "none").explain(model(), Lab())
    assert explanation.reason == "NoEntry: nothing is cached here"
    assert explanation.nearest is None
    assert not explanation.found


def test_an_entry_that_would_be_refused_is_not_found(compiled: Bench) -> None:
    os.truncate(cache_of(compiled).entries()[0].model_cache[0], 300)
    explanation = cache_of(compiled).explain(model(), Lab())
    assert not explanation.found
    assert explanation.reason.startswith("WrongLength: ")


def test_a_device_that_does_not_cache_is_named(compiled: Bench) -> None:
    class Plain(Lab):
        def cache_files_needed(self) -> tuple[int, int]:
            return 0, 0

    explanation = cache_of(compiled).explain(model(), Plain())
    assert "does not cache" in explanation.reason
