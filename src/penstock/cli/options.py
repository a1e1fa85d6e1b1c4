"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

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
        help="How pictures are normalized, where the file does not say it: raw (bytes as they are), unit (0 to 1), pm1 (-1 to 1), "
        "f255 (0 to 255), imagenet, caffe, bgr, bgr255, m127d128 or MEAN,STD.",
    ),
]

Rate: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--rate",
        min=1,
        metavar="HZ",
        help="Samples a second that the model takes, where the file does not say it. A sound at another rate is refused.",
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

Shapes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=N,N,...",
        help="Full shape of an input; repeat for several.",
    ),
]
