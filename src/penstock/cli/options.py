"""Options that several commands share, and the shapes that `--shape` sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from msgspec import Struct

from penstock.arguments import there_are
from penstock.cli.declarations import argument, option
from penstock.cli.failures import UsageError

if TYPE_CHECKING:
    from penstock.ir import Model, NDArray, Operand


ModelFile: TypeAlias = Annotated[str, argument("MODEL", "A .tflite or .onnx file.")]

Inputs: TypeAlias = Annotated[
    list[str] | None,
    argument(
        "INPUT",
        "For each model input a picture (PNG, JPEG, BMP), a WAV file, .npy, .npz, or random.",
    ),
]

Devices: TypeAlias = Annotated[
    list[str] | None,
    option("--device -d NAME", "Place on this device only; repeat for several, preferred first."),
]

SignatureName: TypeAlias = Annotated[
    str | None, option("--signature NAME", "Enter the model through this signature.")
]

Threads: TypeAlias = Annotated[
    int | None, option("--threads N", "Threads a driver may use.", least=1)
]

Portable: TypeAlias = Annotated[
    str | None,
    option(
        "--portable BASELINE",
        "Compile for every machine with this processor baseline, such as x86-64-v3.",
    ),
]

Seed: TypeAlias = Annotated[int, option("--seed N", "Seed of random inputs.", least=0)]

Normalize: TypeAlias = Annotated[
    str | None,
    option(
        "--normalize HOW",
        "How pictures are normalized, where the file does not say it: raw (bytes as they are),"
        " unit (0 to 1), pm1 (-1 to 1), f255 (0 to 255), imagenet, caffe, bgr, bgr255, m127d128 or "
        "MEAN,STD.",
    ),
]

Rate: TypeAlias = Annotated[
    int | None,
    option(
        "--rate HZ",
        "Samples a second that the model takes, where the file does not say it. A sound at "
        "another rate is refused.",
        least=1,
    ),
]

CacheDirectory: TypeAlias = Annotated[
    str | None, option("--dir DIR", "Another cache directory than the user's (knob cache_dir).")
]

Accuracy: TypeAlias = Annotated[
    str | None,
    option(
        "--accuracy CLASS",
        "The least that devices must keep to: exact, faithful, stepwise or relaxed.",
    ),
]

Placement: TypeAlias = Annotated[
    str | None,
    option(
        "--placement RULE",
        "How operations are spread over devices: cost (the least predicted time, with "
        "transfers) or nnapi (NNAPI's greedy rule, without them).",
    ),
]

Shapes: TypeAlias = Annotated[
    list[str] | None,
    option("--shape NAME=N,N,...", "Full shape of an input; repeat for several."),
]


class Choices(Struct, frozen=True):
    """How a model is entered, compiled and fed."""

    device: Devices = None
    signature: SignatureName = None
    threads: Threads = None
    portable: Portable = None
    accuracy: Accuracy = None
    placement: Placement = None
    seed: Seed = 0
    shape: Shapes = None
    no_cache: Annotated[
        bool,
        option(
            "--no-cache", "Compile anew: neither look into the compilation cache nor save there."
        ),
    ] = False


class Key(Struct, frozen=True):
    """What a key of the compilation cache depends on beside the model, and the cache."""

    device: Devices = None
    preference: Annotated[
        str | None,
        option(
            "--preference P",
            "What a compile is for: fast_single_answer, sustained_speed or low_power.",
        ),
    ] = None
    priority: Annotated[
        str | None, option("--priority P", "Priority on the device: low, medium or high.")
    ] = None
    accuracy: Accuracy = None
    threads: Threads = None
    portable: Portable = None
    signature: SignatureName = None
    shape: Shapes = None
    directory: CacheDirectory = None


UNKNOWN_DIMENSION: Final = 1
"""The value of an unknown dimension that no file sets: one picture, one sentence."""


def assumed(operand: Operand) -> tuple[int, ...] | None:
    """The input's shape with unknown dimensions as 1, as for `random`; None for an unknown rank."""
    if operand.shape is None:
        return None
    return tuple(UNKNOWN_DIMENSION if d is None else d for d in operand.shape)


def shapes_of(operands: Sequence[Operand], arrays: Sequence[NDArray]) -> dict[str, tuple[int, ...]]:
    """The shapes of *arrays* whose inputs have unknown dimensions, by input name."""
    from penstock.ir.types import is_static

    return {
        o.name: a.shape for o, a in zip(operands, arrays, strict=True) if not is_static(o.shape)
    }


def assumed_shapes(
    model: Model, signature: str | None, given: Mapping[str, tuple[int, ...]] | None
) -> dict[str, tuple[int, ...]]:
    """The shapes that `random` uses for inputs without a *given* or known shape, by name."""
    from penstock.execution.interface import interface_of
    from penstock.ir.types import is_static

    entered = model if signature is None else model.signature_model(signature)
    likely = {
        o.name: assumed(o)
        for o in interface_of(entered, signature).inputs
        if not is_static(o.shape) and o.name not in (given or {})
    }
    return {name: shape for name, shape in likely.items() if shape is not None}


def in_words(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """`x=1,28,28,1`, in the syntax of `--shape`."""
    return " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())


def parse_shapes(options: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """The values of `--shape NAME=N,N,...`, by input name. Raises `UsageError`.

    A name may contain `=`.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in options or ():
        name, _, numbers = text.rpartition("=")
        parts = [part.strip() for part in numbers.split(",")] if numbers.strip() else []
        if not name or not all(part.isdecimal() for part in parts):
            raise UsageError(f"--shape {text!r}: it must be NAME=N,N,... with whole numbers")
        shapes[name] = tuple(map(int, parts))
    return shapes


def shaped(
    operands: Sequence[Operand], given: Mapping[str, tuple[int, ...]]
) -> tuple[Operand, ...]:
    """*operands* with the shapes *given* by input name. Raises `UsageError`."""
    from msgspec.structs import replace

    from penstock.execution.interface import fits
    from penstock.ir.model import show_operand

    known = {o.name: o for o in operands}
    for name, shape in given.items():
        if name not in known:
            inputs = there_are(list(known))
            raise UsageError(f"--shape {name}=...: no input is named {name!r}; {inputs}")
        if not fits(shape, known[name].shape):
            given_shape, operand = in_words({name: shape}), show_operand(known[name])
            raise UsageError(f"--shape {given_shape}: the input is {operand}")
    return tuple(replace(o, shape=tuple(given[o.name])) if o.name in given else o for o in operands)


def with_remedy(reason: object, assumed: Mapping[str, tuple[int, ...]]) -> str:
    """*reason*, why a model cannot be compiled, and the remedy if shapes were *assumed*."""
    if not assumed:
        return str(reason)
    return f"{reason} (taken for {in_words(assumed)}; --shape gives another shape)"
