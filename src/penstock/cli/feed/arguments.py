"""INPUT arguments: which file is for which input, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from msgspec import Struct, field

from penstock.cli.failures import FileError, UsageError, opening
from penstock.cli.feed.files import InputFile, input_file, random_array
from penstock.cli.feed.model_inputs import Slot
from penstock.cli.feed.normalization import SCHEMES, Normalization, store
from penstock.cli.feed.preparation import Preparation, prepare
from penstock.errors import counted
from penstock.ir import NDArray, Operand
from penstock.ir.model import show_operand
from penstock.ir.types import is_static

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.cli.feed.pictures import Layout

Kind = Literal["picture", "sound", "npy", "npz"]

SUFFIXES: Final[dict[str, Kind]] = {
    ".npy": "npy",
    ".npz": "npz",
    ".wav": "sound",
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp"), "picture"),
}
_BEGINNINGS: Final[dict[bytes, Kind]] = {b"\x93NUMPY": "npy", b"PK\x03\x04": "npz"}


class Wishes(Struct, frozen=True):
    """The caller's options: a normalization, the seed of `random`, and the model's sample rate."""

    normalization: Normalization | None = None
    seed: int = 0
    rate: int | None = None


class FedPicture(Struct, frozen=True):
    """A picture for input *position*: uint8 *pixels* [height, width, 1 or 3], its preparations."""

    position: int
    operand: Operand
    pixels: npt.NDArray[np.uint8]
    layout: Layout
    preparation: Preparation

    def array(self, scheme: Normalization) -> NDArray:
        """The input's values. Raises `UsageError` for a scheme that cannot be applied."""
        from penstock.cli.feed.pictures import arrange

        return arrange(self.stored(scheme), self.layout)

    def stored(self, scheme: Normalization) -> NDArray:
        """The input's values as [height, width, channels]."""
        return store(self.pixels, self.operand, scheme, as_bytes=self.preparation.as_bytes)


class Fed(Struct):
    """The arrays made from the arguments, one per input. A picture is prepared by its first scheme.

    *picture* is the last picture, upright and in its original size (a Pillow image). *sources* says
    where each input's values come from. *assumed* has the shapes that `random` chose for unknown
    dimensions, by input name. *notes* lists assumptions and changes. *questions* lists unknown
    facts that change the answer, each with the option that sets it. *kinds* are the kinds of files.
    """

    arrays: list[NDArray] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    assumed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    picture: Any = None
    pictures: list[FedPicture] = field(default_factory=list)
    kinds: set[Kind] = field(default_factory=set)

    @property
    def unstated(self) -> list[FedPicture]:
        """The pictures whose normalisation is stated by neither the user nor the file."""
        return [p for p in self.pictures if not p.preparation.is_stated]

    @property
    def schemes(self) -> list[str]:
        """The names of their possible schemes."""
        return list(dict.fromkeys(s.name for p in self.unstated for s in p.preparation.schemes))

    @property
    def excluded(self) -> dict[str, str]:
        """The usual schemes that are excluded for all of them, each with the reason."""
        found = {n: why for p in self.unstated for n, why in p.preparation.excluded.items()}
        return {name: why for name, why in found.items() if name not in self.schemes}

    def arrays_by(self, scheme: str) -> list[NDArray]:
        """`arrays` with these pictures prepared by the named scheme."""
        arrays = list(self.arrays)
        for picture in self.unstated:
            own = {s.name: s for s in picture.preparation.schemes}
            chosen = own.get(scheme) or SCHEMES.get(scheme) or picture.preparation.schemes[0]
            arrays[picture.position] = picture.array(chosen)
        return arrays

    def assumption(self) -> list[str]:
        """A note for each assumed scheme, for commands that do not interpret the picture."""
        return [
            f"{p.preparation.because}: {p.preparation.schemes[0].name} is taken (--normalize)"
            for p in self.unstated
        ]

    def add(self, operand: Operand, array: NDArray, source: str, **more: Any) -> None:
        self.arrays.append(array)
        about = {"name": operand.name, "dtype": operand.dtype.value, "shape": list(array.shape)}
        self.sources.append({**about, "source": source, **more})


def feed(arguments: Sequence[str], slots: Sequence[Slot], wishes: Wishes) -> Fed:
    """An array for each of *slots* from INPUT arguments, in order.

    An `.npz` file supplies all remaining inputs, and so does `random` as the last argument. Raises
    `FileError` for a file that is missing, unreadable or does not fit, `UsageError` for a wrong
    number of arguments.
    """
    fed = Fed()
    generator: np.random.Generator | None = None
    operands = [slot.operand for slot in slots]
    given = list(arguments)
    if given and given[-1] == "random":
        given += ["random"] * (len(operands) - len(given))
    for position, argument in enumerate(given):
        rest = list(operands[len(fed.arrays) :])
        if not rest:
            raise UsageError(_count(given, operands))
        if not argument:
            text = f"INPUT {position + 1} is empty; it must be the name of a file, or random"
            raise UsageError(text)
        if argument == "random":
            # NumPy imports its generators when they are first used.
            generator = generator or np.random.default_rng(wishes.seed)
            fed.add(rest[0], random_array(rest[0], generator), f"random, seed {wishes.seed}")
            if not is_static(rest[0].shape):
                fed.assumed[rest[0].name] = fed.arrays[-1].shape
            continue
        path = input_file(argument)
        kind = kind_of(path)
        fed.kinds.add(kind)
        if kind == "npz":
            from penstock.cli.feed.arrays import read_npz

            for operand, array in zip(rest, read_npz(path, rest), strict=True):
                fed.add(operand, array, argument)
        elif kind == "npy":
            from penstock.cli.feed.arrays import read_npy

            fed.add(rest[0], read_npy(path, rest[0]), argument)
        elif kind == "sound":
            from penstock.cli.feed.sound import read_sound

            sound = read_sound(path, slots[len(fed.arrays)], wishes.rate)
            fed.notes += sound.notes
            fed.questions += [sound.question] if sound.question else []
            fed.add(rest[0], sound.array, argument)
        else:
            _feed_picture(fed, path, slots[len(fed.arrays)], wishes)
    if len(fed.arrays) != len(operands):
        raise UsageError(_count(arguments, operands))
    fed.questions += [
        f"{source['source']}: every value is NaN (not a number), which no answer can be about: "
        "check how the file was made"
        for source, operand, array in zip(fed.sources, operands, fed.arrays, strict=True)
        if operand.dtype.is_float and array.size and np.isnan(array.astype(np.float64)).all()
    ]
    if wishes.normalization is not None and not fed.pictures:
        fed.notes.append("--normalize is not used: no INPUT is a picture")
    if wishes.rate is not None and "sound" not in fed.kinds:
        fed.notes.append("--rate is not used: no INPUT is a sound")
    return fed


def picture_preparation(path: object, slot: Slot, wishes: Wishes) -> tuple[Layout, Preparation]:
    """The picture layout of an input, and how a picture becomes its values.

    Raises `FileError` about *path* if the input takes no picture.
    """
    from penstock.cli.feed import pictures
    from penstock.cli.feed.recognition import no_picture

    layout = pictures.layout(slot.operand)
    axis = layout.axes.find("C") if layout is not None else -1
    first = slot.first_operations(axis if axis >= 0 else None)
    requested = wishes.normalization
    reason = no_picture(slot, layout, first, insist=requested is not None)
    if layout is None or reason:
        raise FileError(path, f"is a picture, but {reason}; an .npy file gives the input as it is")
    channels = min(layout.channels, 3)
    return layout, prepare(slot.operand, channels, slot.metadata, first, slot.model, requested)


def _feed_picture(fed: Fed, path: InputFile, slot: Slot, wishes: Wishes) -> None:
    from penstock.cli.feed import pictures

    operand, requested = slot.operand, wishes.normalization
    fed.picture, notes = pictures.open_picture(path)
    layout, preparation = picture_preparation(path, slot, wishes)
    fed.notes += [*notes, *pictures.stretched(fed.picture, layout)]
    if layout.channels == 4:
        fed.notes.append("the input has a fourth channel; it is fed zeros")
    pixels = pictures.pixels(fed.picture, layout)
    picture = FedPicture(len(fed.arrays), operand, pixels, layout, preparation)
    fed.pictures.append(picture)
    stored = picture.stored(preparation.schemes[0])
    if (stored == stored[:1, :1]).all():
        why = f" ({'; '.join(notes)})" if notes else ""
        fed.questions.append(
            f"{path}: the picture is one colour after preparation{why}, which no answer can be "
            "about: check the picture"
            + (f" and --normalize {requested.name}" if requested is not None else "")
        )
    else:
        fed.notes += pictures.flat(pixels)
    stated = preparation.schemes[0].name if preparation.is_stated else None
    fed.add(
        operand,
        pictures.arrange(stored, layout),
        str(path),
        normalize=stated,
        normalize_from=preparation.source,
        because=preparation.because,
    )


def kind_of(path: InputFile) -> Kind:
    """The kind by suffix, otherwise by first bytes, otherwise a picture. Raises `FileError`."""
    with opening(path), path.open("rb") as stream:
        beginning = stream.read(12)
    if (known := SUFFIXES.get(path.suffix.lower())) is not None:
        return known
    if beginning.startswith(b"RIFF") and beginning[8:] == b"WAVE":
        return "sound"
    return next(
        (kind for start, kind in _BEGINNINGS.items() if beginning.startswith(start)), "picture"
    )


def _count(given: Sequence[str], operands: Sequence[Operand]) -> str:
    inputs = "; ".join(f"{o.name or '(no name)'} {show_operand(o)}" for o in operands) or "none"
    count = counted(len(given), "input")
    how = " (a file each, or random)" if operands else ""
    return f"{count} given, the model has {len(operands)}: {inputs}{how}"
