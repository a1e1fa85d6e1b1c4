"""Which cache files are never executed (NNAPI section 2.7): altered ones, and those of something
else.

Checks have the names of the upstream scenarios, and go further where NNAPI lets data cache files
pass: a file of either kind that is not exactly what was saved is `GeneralFailure`. Each first shows
that the untouched entry loads, and at the end that it still does. What is random comes from seeds 0
to 9, which complaints name; the models are chains of 100 operations, of one shape and different
values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.errors import GeneralFailure
from penstock.hal import CancelToken, Device
from penstock.ir import DType, ModelBuilder, NDArray
from penstock.ir.types import Quantization
from penstock.testing.contract.cases import Case, is_supported
from penstock.testing.contract.entries import (
    Entry,
    check_run,
    each_saved,
    load,
    require_caching,
)
from penstock.testing.contract.promise import (
    Check,
    NotCovered,
    allowed,
    needs_values,
    refused,
    require,
)

SEEDS: Final = range(10)
LENGTH: Final = 100
"""Operations of a chain; even, so that MUL by -1 is back where it began."""

Damage: TypeAlias = Callable[[np.random.Generator, bytes], bytes]


def chain(kind: str, dtype: DType, step: int, length: int = LENGTH) -> Case:
    """*length* times x + *step* or x * *step* (ADD, MUL). Integers have scale 1 and zero point 0."""
    quantization = None if dtype is DType.FLOAT32 else Quantization((1.0,), (0,))
    b = ModelBuilder()
    x = b.input(dtype, (2, 3), "x", quantization)
    k = b.constant(np.full((3,), step, dtype.numpy), "k", quantization)
    for _ in range(length):
        (x,) = b.operation(kind, [x, k], [(dtype, (2, 3), quantization)])
    given: NDArray = np.array([[1, -2, 3], [4, 0, -6]], dtype.numpy)
    answer = given + length * step if kind == "ADD" else given * step**length
    return Case(
        f"{kind} chain, {dtype.value}", b.build([x]), (given,), (answer.astype(dtype.numpy),)
    )


def chains(device: Device) -> list[list[Case]]:
    """Pairs of chains that *device* runs: the same interface, different values. `NotCovered`
    without any.
    """
    require_caching(device)
    pairs = [
        [chain("ADD", dtype, 1), chain("MUL", dtype, -1)] for dtype in (DType.FLOAT32, DType.INT8)
    ]
    found = [pair for pair in pairs if all(is_supported(device, case) for case in pair)]
    if not found:
        raise NotCovered("it does not run chains of ADD and of MUL")
    return found


def check_corrupted_model_cache(device: Device) -> None:
    """Security, CorruptedModelCache: one bit of one model cache file flipped."""
    _damaged(device, "model", {"a bit flipped": _flip})


def check_wrong_length_model_cache(device: Device) -> None:
    """Security, WrongLengthModelCache: 1 to 256 bytes appended to a model cache file, or cut off."""
    _damaged(device, "model", {"bytes appended": _append, "bytes cut off": _cut})


def check_corrupted_data_cache(device: Device) -> None:
    """Security, CorruptedDataCache: one bit of one data cache file flipped."""
    _damaged(device, "data", {"a bit flipped": _flip})


def check_wrong_length_data_cache(device: Device) -> None:
    """Security, WrongLengthDataCache: 1 to 256 bytes appended to a data cache file, or cut off."""
    _damaged(device, "data", {"bytes appended": _append, "bytes cut off": _cut})


def check_wrong_token(device: Device) -> None:
    """Security, WrongToken: one bit of the token flipped at the load; the same for the binding."""
    for case, entry in each_saved(device, _models(device)):
        for seed in SEEDS:
            chance = np.random.default_rng(seed)
            for field in ("token", "binding"):
                wrong: dict[str, Any] = {field: _flip(chance, getattr(entry, field))}
                with (
                    entry.opened(**wrong) as config,
                    refused(f"{case.name}, seed {seed}: a bit of the {field}", GeneralFailure),
                ):
                    device.prepare_model_from_cache(config)
        load(device, case, entry, "after refused loads")


def check_replace_security_sensitive_cache(device: Device) -> None:
    """ReplaceSecuritySensitiveCache: another model's cache files in place of some or all of an
    entry's.
    """
    for (case, entry), (_, other) in _pairs(device):
        own, foreign = entry.contents(), other.contents()
        every = range(len(own))
        subsets = [("all", every), ("model", entry.model_numbers), ("data", entry.data_numbers)]
        subsets += [(f"file {number}", range(number, number + 1)) for number in every]
        for what, numbers in subsets:
            if not numbers:
                continue
            entry.put([foreign[n] if n in numbers else own[n] for n in every])
            with (
                entry.opened() as config,
                refused(f"{case.name}: {what} of another model's cache files", GeneralFailure),
            ):
                device.prepare_model_from_cache(config)
        entry.put(own)
        load(device, case, entry, "after refused loads")


@needs_values
def check_save_to_cache_toctou(device: Device) -> None:
    """SaveToCache_TOCTOU: another model's files replace the entry's while it is saved.

    Deterministically: whenever the device looks at its cancel token, and when the call has
    returned. What runs is the model that was given, and a later load is refused or gives the same.
    """
    for (case, entry), (_, other) in _pairs(device):
        foreign = other.contents()
        for moment in _moments():
            entry.put([b""] * len(entry.paths))
            token = Meddler(moment, partial(entry.put, foreign))
            with (
                entry.opened(cancel=token) as config,
                closing(device.prepare_model(case.model, config)) as prepared,
            ):
                done = token.finish()
                check_run(device, case, prepared, f"with files replaced at moment {moment}")
            with allowed("loading what was replaced", GeneralFailure):
                load(device, case, entry, "from files replaced while saving")
            if done:
                break


@needs_values
def check_prepare_from_cache_toctou(device: Device) -> None:
    """PrepareFromCache_TOCTOU: another model's files replace the entry's while it is loaded, and
    once it is.

    Refused, or the right model: what was verified is what runs, whatever the files hold by then.
    """
    for (case, entry), (_, other) in _pairs(device):
        own, foreign = entry.contents(), other.contents()
        for moment in _moments():
            entry.put(own)
            token = Meddler(moment, partial(entry.put, foreign))
            with entry.opened(cancel=token) as config:
                with (
                    allowed("loading what is being replaced", GeneralFailure),
                    closing(device.prepare_model_from_cache(config)) as prepared,
                ):
                    token.finish()
                    check_run(device, case, prepared, f"with files replaced at moment {moment}")
                if token.finish():
                    break
        entry.put(own)
        load(device, case, entry, "after its files were replaced")


class Meddler(CancelToken):
    """Never asks for cancellation; the look number *moment* at it (from 0) has an effect, *act*."""

    __slots__ = ("_act", "_looks", "_moment")

    def __init__(self, moment: int, act: Callable[[], None]) -> None:
        super().__init__()
        self._moment, self._act, self._looks = moment, act, 0

    def is_set(self) -> bool:
        self._look()
        return False

    def check(self) -> None:
        self._look()

    def finish(self) -> bool:
        """Acts now unless it has; whether nobody looked often enough."""
        late = self._looks <= self._moment
        while self._looks <= self._moment:
            self._look()
        return late

    def _look(self) -> None:
        if self._looks == self._moment:
            self._act()
        self._looks += 1


def _moments() -> Sequence[int]:
    """The looks at a cancel token that are tried, at most."""
    return range(3)


def _models(device: Device) -> list[Case]:
    return [case for pair in chains(device) for case in pair]


def _pairs(device: Device) -> Iterator[tuple[tuple[Case, Entry], tuple[Case, Entry]]]:
    """Each chain saved, beside its other one, saved under another token. What becomes of the files
    of the first does not matter.
    """
    for first, second in chains(device):
        for one in each_saved(device, [first]):
            for other in each_saved(device, [second]):
                own = one[1].contents()
                yield one, other
                one[1].put(own)
                yield other, one


def _damaged(device: Device, kind: str, damages: Mapping[str, Damage]) -> None:
    """Entries with one file of *kind* damaged by chance are refused."""
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
            with (
                entry.opened() as config,
                refused(f"{case.name}, seed {seed}: {kind} cache file with {what}", GeneralFailure),
            ):
                device.prepare_model_from_cache(config)
            entry.put_one(number, own[number])
        load(device, case, entry, "after refused loads")


def _flip(chance: np.random.Generator, content: bytes) -> bytes:
    place = int(chance.integers(8 * len(content)))
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def _append(chance: np.random.Generator, content: bytes) -> bytes:
    return content + chance.bytes(int(chance.integers(1, 257)))


def _cut(chance: np.random.Generator, content: bytes) -> bytes:
    return content[: int(chance.integers(len(content)))]


CHECKS: Final[tuple[Check, ...]] = (
    check_save_to_cache_toctou,
    check_prepare_from_cache_toctou,
    check_replace_security_sensitive_cache,
    check_corrupted_model_cache,
    check_wrong_length_model_cache,
    check_corrupted_data_cache,
    check_wrong_length_data_cache,
    check_wrong_token,
)
