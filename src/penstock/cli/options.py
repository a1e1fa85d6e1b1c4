"""Options that several commands share, and the shapes that `--shape` sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from penstock.arguments import there_are
from penstock.cli.failures import UsageError

if TYPE_CHECKING:
    from penstock.ir import Model, NDArray, Operand


ModelFile: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL", help="A .tflite or .onnx file.")
]

Inputs: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT",
        help="For each model input a picture (PNG, JPEG, BMP), a WAV file, .npy, .npz, or random.",
    ),
]

Devices: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        "-d",
        metavar="NAME",
        help="Place on this device only; repeat for several, preferred first.",
    ),
]

SignatureName: TypeAlias = Annotated[
    str | None,
    typer.Option("--signature", metavar="NAME", help="Enter the model through this signature."),
]

Threads: TypeAlias = Annotated[
    int | None, typer.Option("--threads", min=1, metavar="N", help="Threads a driver may use.")
]

Seed: TypeAlias = Annotated[
    int, typer.Option("--seed", min=0, metavar="N", help="Seed of random inputs.")
]

Normalize: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--normalize",
        metavar="HOW",
        help="How pictures are normalized, where the file does not say it: raw (bytes as they are),"
        " unit (0 to 1), pm1 (-1 to 1), f255 (0 to 255), imagenet, caffe, bgr, bgr255, m127d128 or "
        "MEAN,STD.",
    ),
]

Rate: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--rate",
        min=1,
        metavar="HZ",
        help="Samples a second that the model takes, where the file does not say it. A sound at "
        "another rate is refused.",
    ),
]

NoCache: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Compile anew: neither look into the compilation cache nor save there."
    ),
]

CacheDirectory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--dir", metavar="DIR", help="Another cache directory than the user's (knob cache_dir)."
    ),
]

Preference: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--preference",
        metavar="P",
        help="What a compile is for: fast_single_answer, sustained_speed or low_power.",
    ),
]

Priority: TypeAlias = Annotated[
    str | None,
    typer.Option("--priority", metavar="P", help="Priority on the device: low, medium or high."),
]

Accuracy: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--accuracy",
        metavar="CLASS",
        help="The least that devices must keep to: exact, faithful, stepwise or relaxed.",
    ),
]

Placement: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--placement",
        metavar="RULE",
        help="How operations are spread over devices: cost (the least predicted time, with "
        "transfers) or nnapi (NNAPI's greedy rule, without them).",
    ),
]

Shapes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=N,N,...",
        help="Full shape of an input; repeat for several.",
    ),
]


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
    """The values of `--shape NAME=N,N,...`, by input name. Raises `UsageError`."""
    return dict(map(_shape, options or ()))


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`name=1,2` as a pair; a name may contain `=`."""
    name, equals, numbers = text.rpartition("=")
    parts = [part.strip() for part in numbers.split(",")] if numbers.strip() else []
    if not equals or not name or not all(part.isdecimal() for part in parts):
        raise UsageError(f"--shape {text!r}: it must be NAME=N,N,... with whole numbers")
    return name, tuple(map(int, parts))


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
            there = there_are(list(known))
            raise UsageError(f"--shape {name}=...: no input is named {name!r}; {there}")
        if not fits(shape, known[name].shape):
            raise UsageError(
                f"--shape {name}={','.join(map(str, shape))}: the input is "
                f"{show_operand(known[name])}"
            )
    return tuple(replace(o, shape=tuple(given[o.name])) if o.name in given else o for o in operands)


def with_remedy(reason: object, assumed: Mapping[str, tuple[int, ...]]) -> str:
    """*reason*, why a model cannot be compiled, and the remedy if shapes were *assumed*."""
    if not assumed:
        return str(reason)
    return f"{reason} (taken for {in_words(assumed)}; --shape gives another shape)"
