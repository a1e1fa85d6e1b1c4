"""INPUT arguments: which file goes to which input, and what is in it."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from penstock.cli.failures import FileError, UsageError, os_reason
from penstock.cli.feed.arrays import random_array, read_npy, read_npz
from penstock.cli.feed.normalisation import Normalisation
from penstock.cli.feed.sound import read_sound
from penstock.errors import counted
from penstock.ir import NDArray, Operand, TensorMetadata
from penstock.ir.show import show_operand
from penstock.ir.types import is_static

Kind = Literal["picture", "sound", "npy", "npz"]

SUFFIXES: Final[dict[str, Kind]] = {
    ".npy": "npy",
    ".npz": "npz",
    ".wav": "sound",
    ".png": "picture",
    ".jpg": "picture",
    ".jpeg": "picture",
    ".bmp": "picture",
}
_BEGINNINGS: Final[tuple[tuple[bytes, Kind], ...]] = (
    (b"\x93NUMPY", "npy"),
    (b"PK\x03\x04", "npz"),
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller asks for: a normalisation, and the seed of `random`."""

    normalisation: Normalisation | None = None
    seed: int = 0


@dataclass(slots=True)
class Fed:
    """What was made of the arguments: an array an input, in order.

    *picture* is the last picture read, upright and in its own size (a Pillow image); *sources* says for
    each input where its values come from; *assumed* has the shapes that `random` made up for unknown dimensions, by input
    name; *notes* what was assumed or changed on the way.
    """

    arrays: list[NDArray] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    assumed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    picture: Any = None

    def add(self, operand: Operand, array: NDArray, source: str, **more: Any) -> None:
        entry = {
            "name": operand.name,
            "dtype": operand.dtype.value,
            "shape": list(array.shape),
            "source": source,
        }
        self.arrays.append(array)
        self.sources.append(entry | more)


def feed(
    arguments: Sequence[str],
    operands: Sequence[Operand],
    metadata: Sequence[TensorMetadata],
    wishes: Wishes,
) -> Fed:
    """An array for each of *operands* from INPUT arguments, in order.

    An `.npz` file fills every input that is left; so does a last `random`. Raises `FileError`
    for a file that is missing, unreadable or does not fit, `UsageError` for a wrong count.
    """
    fed = Fed()
    generator = np.random.default_rng(wishes.seed)
    given = list(arguments)
    if given and given[-1] == "random":
        given += ["random"] * (len(operands) - len(given))
    for position, argument in enumerate(given):
        rest = list(operands[len(fed.arrays) :])
        if not rest:
            raise UsageError(_count(given[:position] + given[position:], operands))
        if not argument:
            raise UsageError(
                f"INPUT {position + 1} is empty; it must be the name of a file, or random"
            )
        if argument == "random":
            fed.add(rest[0], random_array(rest[0], generator), f"random, seed {wishes.seed}")
            if not is_static(rest[0].shape):
                fed.assumed[rest[0].name] = fed.arrays[-1].shape
            continue
        path = Path(argument)
        if _is_empty(path):
            raise FileError(path, "the file is empty")
        kind = kind_of(path)
        if kind == "npz":
            for operand, array in zip(rest, read_npz(path, rest), strict=True):
                fed.add(operand, array, argument)
        elif kind == "npy":
            fed.add(rest[0], read_npy(path, rest[0]), argument)
        elif kind == "sound":
            array, notes = read_sound(path, rest[0])
            fed.notes += notes
            fed.add(rest[0], array, argument)
        else:
            here = metadata[len(fed.arrays)] if len(fed.arrays) < len(metadata) else None
            _feed_picture(fed, path, rest[0], here, wishes)
    if len(fed.arrays) != len(operands):
        raise UsageError(_count(arguments, operands))
    return fed


def _is_empty(path: Path) -> bool:
    """Whether it is a file without a byte; of one that cannot be looked at its reader says why."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and not status.st_size


def _feed_picture(
    fed: Fed, path: Path, operand: Operand, metadata: TensorMetadata | None, wishes: Wishes
) -> None:
    from penstock.cli.feed import pictures
    from penstock.cli.feed.normalisation import choose, store

    shape = pictures.layout(operand)
    fed.picture = pictures.read_picture(path)
    if shape is None:
        raise FileError(path, pictures.not_a_picture(operand))
    scheme, assumption = choose(operand, metadata, wishes.normalisation)
    if assumption:
        fed.notes.append(assumption)
    if shape.channels == 4:
        fed.notes.append("the input has a fourth channel; it is fed zeros")
    stored = store(
        pictures.pixels(fed.picture, shape),
        operand,
        scheme,
        explicit=wishes.normalisation is not None,
    )
    fed.add(operand, pictures.arrange(stored, shape), str(path), normalise=scheme.name)


def kind_of(path: Path) -> Kind:
    """By the file's suffix, else by how it begins; whatever is nothing else is taken for a picture.

    Raises `FileError` for a file that cannot be opened.
    """
    try:
        with path.open("rb") as stream:
            beginning = stream.read(12)
    except OSError as error:
        raise FileError(path, os_reason(error)) from None
    if (known := SUFFIXES.get(path.suffix.lower())) is not None:
        return known
    if beginning.startswith(b"RIFF") and beginning[8:] == b"WAVE":
        return "sound"
    return next((kind for start, kind in _BEGINNINGS if beginning.startswith(start)), "picture")


def _count(given: Sequence[str], operands: Sequence[Operand]) -> str:
    inputs = "; ".join(f"{o.name or '(no name)'} {show_operand(o)}" for o in operands) or "none"
    count = counted(len(given), "input")
    how = " (a file each, or random)" if operands else ""
    return f"{count} given, the model has {len(operands)}: {inputs}{how}"
