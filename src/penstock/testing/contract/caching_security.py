"""Damaged or foreign cache files are never executed (NNAPI section 2.7).

Checks have the names of the upstream scenarios. They are stricter than NNAPI, which accepts altered
data cache files: here any file that is not exactly as saved is `GeneralFailure`. Each check first
shows that the untouched entry loads, and at the end that it still does. Random choices use seeds 0
to 9, which messages name. The models are chains of 100 operations with one shape and different
values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.errors import GeneralFailure
from penstock.hal import CancelToken, Device
from penstock.ir import DType, ModelBuilder, NDArray
from penstock.ir.types import Quantization
from penstock.testing.contract import caching
from penstock.testing.contract.caching import Entry, each_saved, load, refuses_load
from penstock.testing.contract.cases import Case, is_supported
from penstock.testing.contract.promise import NotCovered, Suite, allowed, named, require
from penstock.testing.contract.trial import PreparedCase, prepare

SUITE: Final = Suite("caching_security", "caching", "Device.prepare_model_from_cache", shares=True)
SEEDS: Final = range(10)
LENGTH: Final = 100
"""Operations of a chain. The number is even, so that MUL by -1 returns its input."""
MOMENTS: Final = 3
"""Files are replaced at no more than this many reads of the cancel token."""

Damage: TypeAlias = Callable[[np.random.Generator, bytes], bytes]


@cache
def chain(kind: str, dtype: DType, step: int, length: int = LENGTH) -> Case:
    """A chain of *length* operations x + *step* or x * *step* (ADD, MUL).

    Integers have scale 1, zero point 0.
    """
    quantization = None if dtype is DType.FLOAT32 else Quantization((1.0,), (0,))
    b = ModelBuilder()
    x = b.input(dtype, (2, 3), "x", quantization)
    k = b.constant(np.full((3,), step, dtype.numpy), "k", quantization)
    for _ in range(length):
        (x,) = b.operation(kind, [x, k], [(dtype, (2, 3), quantization)])
    given: NDArray = np.array([[1, -2, 3], [4, 0, -6]], dtype.numpy)
    answer = given + length * step if kind == "ADD" else given * step**length
    name = f"{kind} chain, {dtype.value}"
    return Case(name, b.build([x]), (given,), (answer.astype(dtype.numpy),))


def chains(device: Device) -> list[list[Case]]:
    """Pairs of chains that *device* supports: same interface, different values.

    Raises `NotCovered` if there are none.
    """
    caching.require_caching(device)
    dtypes = DType.FLOAT32, DType.INT8
    pairs = [[chain("ADD", dtype, 1), chain("MUL", dtype, -1)] for dtype in dtypes]
    found = [pair for pair in pairs if all(is_supported(device, case) for case in pair)]
    if not found:
        raise NotCovered("it does not run chains of ADD and of MUL")
    return found


@SUITE.check
def check_wrong_token(device: Device) -> None:
    """Security, WrongToken: one bit of the token or of the binding is flipped at the load."""
    for case, entry in each_saved(device, _models(device)):
        for seed in SEEDS:
            chance = np.random.default_rng(seed)
            for field in ("token", "binding"):
                wrong: dict[str, Any] = {field: _flip(chance, getattr(entry, field))}
                what = f"{case.name}, seed {seed}: a bit of the {field}"
                refuses_load(device, entry, what, **wrong)
        load(device, case, entry, "after refused loads")


@SUITE.check
def check_replace_security_sensitive_cache(device: Device) -> None:
    """ReplaceSecuritySensitiveCache: another model's files replace some or all of an entry's."""
    for (case, entry), (_, other) in _pairs(device):
        own, foreign = entry.contents(), other.contents()
        every = range(len(own))
        subsets = [("all", every), ("model", entry.model_numbers), ("data", entry.data_numbers)]
        subsets += [(f"file {number}", range(number, number + 1)) for number in every]
        for what, numbers in subsets:
            if not numbers:
                continue
            entry.put([foreign[n] if n in numbers else own[n] for n in every])
            refuses_load(device, entry, f"{case.name}: {what} of another model's cache files")
        entry.put(own)
        load(device, case, entry, "after refused loads")


@SUITE.values
def check_save_to_cache_toctou(device: Device) -> None:
    """SaveToCache_TOCTOU: another model's files replace the entry's while it is saved.

    The replacement is deterministic: at each read of the cancel token, and after the call. The
    given model runs. A later load is rejected or gives the same answers.
    """
    for (case, entry), (_, other) in _pairs(device):
        foreign = other.contents()
        for moment in range(MOMENTS):
            entry.put([b""] * len(entry.paths))
            token = Meddler(moment, partial(entry.put, foreign))
            with entry.opened(cancel=token) as config, prepare(device, case, config) as on:
                done = token.finish()
                on.check(f"with files replaced at moment {moment}")
            with allowed("loading what was replaced", GeneralFailure):
                load(device, case, entry, "from files replaced while saving")
            if done:
                break


@SUITE.values
def check_prepare_from_cache_toctou(device: Device) -> None:
    """PrepareFromCache_TOCTOU: another model's files replace the entry's during and after its load.

    The load is rejected, or the right model runs. The driver runs what it verified, whatever the
    files contain by then.
    """
    for (case, entry), (_, other) in _pairs(device):
        own, foreign = entry.contents(), other.contents()
        for moment in range(MOMENTS):
            entry.put(own)
            token = Meddler(moment, partial(entry.put, foreign))
            with entry.opened(cancel=token) as config:
                with allowed("loading what is being replaced", GeneralFailure):
                    prepared = device.prepare_model_from_cache(config)
                    with PreparedCase(device, case, prepared) as on:
                        token.finish()
                        on.check(f"with files replaced at moment {moment}")
                if token.finish():
                    break
        entry.put(own)
        load(device, case, entry, "after its files were replaced")


class Meddler(CancelToken):
    """A token that is never set; it calls *act* when it is read for the time *moment* (from 0)."""

    __slots__ = ("_act", "_looks", "_moment")

    def __init__(self, moment: int, act: Callable[[], None]) -> None:
        super().__init__()
        self._moment, self._act, self._looks = moment, act, 0

    def is_set(self) -> bool:
        if self._looks == self._moment:
            self._act()
        self._looks += 1
        return False

    def check(self) -> None:
        self.is_set()

    def finish(self) -> bool:
        """Calls *act* now unless it was called already. Returns whether it had to."""
        late = self._looks <= self._moment
        while self._looks <= self._moment:
            self.is_set()
        return late


def _models(device: Device) -> list[Case]:
    return [case for pair in chains(device) for case in pair]


def _pairs(device: Device) -> Iterator[tuple[tuple[Case, Entry], tuple[Case, Entry]]]:
    """Each chain, saved, and its counterpart, saved under another token.

    The caller may change the files of the first.
    """
    for first, second in chains(device):
        for one in each_saved(device, [first]):
            for other in each_saved(device, [second]):
                own = one[1].contents()
                yield one, other
                one[1].put(own)
                yield other, one


def _flip(chance: np.random.Generator, content: bytes) -> bytes:
    place = int(chance.integers(8 * len(content)))
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def _append(chance: np.random.Generator, content: bytes) -> bytes:
    return content + chance.bytes(int(chance.integers(1, 257)))


def _cut(chance: np.random.Generator, content: bytes) -> bytes:
    return content[: int(chance.integers(len(content)))]


def _damaged(kind: str, damages: Mapping[str, Damage], device: Device) -> None:
    """Entries with one randomly damaged file of *kind* are rejected."""
    if not device.cache_files_needed()[kind == "data"]:
        raise NotCovered(f"it has no {kind} cache files")
    for case, entry in each_saved(device, _models(device)):
        own = entry.contents()
        every = entry.data_numbers if kind == "data" else entry.model_numbers
        numbers = [number for number in every if own[number]]
        require(numbers, f"{case.name}: every {kind} cache file is empty")
        for seed, (what, damage) in itertools.product(SEEDS, damages.items()):
            chance = np.random.default_rng(seed)
            number = int(chance.choice(numbers))
            entry.put_one(number, damage(chance, own[number]))
            damage_done = f"{case.name}, seed {seed}: {kind} cache file with {what}"
            refuses_load(device, entry, damage_done)
            entry.put_one(number, own[number])
        load(device, case, entry, "after refused loads")


for _scenario, _damages, _rule in (
    ("corrupted", {"a bit flipped": _flip}, "one bit of one {} cache file flipped"),
    (
        "wrong_length",
        {"bytes appended": _append, "bytes cut off": _cut},
        "1 to 256 bytes appended to a {} cache file, or cut off",
    ),
):
    for _kind in ("model", "data"):
        _name = f"{_scenario}_{_kind}_cache"
        _upstream = "".join(word.capitalize() for word in _name.split("_"))
        _check = partial(_damaged, _kind, _damages)
        SUITE.check(named(_check, _name, f"Security, {_upstream}: {_rule.format(_kind)}."))
