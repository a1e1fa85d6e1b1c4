"""Preparing: a model as files, and the first interpreter of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.driverkit.unrolling import flattened
from penstock.drivers.xnnpack.engine import Kernels, told
from penstock.drivers.xnnpack.interpreter import File
from penstock.drivers.xnnpack.prepared import XnnpackPreparedModel
from penstock.drivers.xnnpack.segments import Segment, make_segments
from penstock.drivers.xnnpack.steady import cannot_shrink, shaped_beforehand
from penstock.drivers.xnnpack.support import classify
from penstock.errors import GeneralFailure, PenstockError
from penstock.export.tflite.writer import write
from penstock.hal import PrepareConfig, check_deadline
from penstock.ir import Model

DEFAULT_THREADS: Final = 1
"""What LiteRT uses itself where nothing is said."""


def prepare(
    model: Model, config: PrepareConfig, kernels: Sequence[Kernels]
) -> XnnpackPreparedModel:
    """Writes each segment of *model*, for one of *kernels* each, and opens it. Raises
    `GeneralFailure` with the operation or LiteRT's words.
    """
    _check(config)
    shaped = shaped_beforehand(flattened(model))
    segments = make_segments(shaped.model, classify(shaped.model, kernels), config.accuracy)
    threads = config.num_threads or DEFAULT_THREADS
    files, runners = [], []
    for planned in segments:
        places = dict.fromkeys(shaped.origins[i] for i in planned.operations)
        segment = msgspec.structs.replace(planned, operations=tuple(places))
        file = File(segment, _written(segment), threads, steady=cannot_shrink(segment.model))
        _check(config)
        files.append(file)
        runners.append(file.open())
    _check(config)
    return XnnpackPreparedModel(model, files, runners)


def _written(segment: Segment) -> bytes:
    try:
        # LiteRT lays tensors that last all of a run out in the file's order: those of a state lie
        # side by side then, and are copied as one (`neighbours`).
        return write(segment.model, outputs_first=True)
    except PenstockError as error:
        raise GeneralFailure(f"the model cannot be written for LiteRT: {told(error)}") from error


def _check(config: PrepareConfig) -> None:
    """Raises once the token is set or the deadline has passed."""
    if config.cancel is not None:
        config.cancel.check()
    check_deadline(config.deadline_ns)
