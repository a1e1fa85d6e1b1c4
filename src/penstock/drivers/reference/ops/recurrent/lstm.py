"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.recurrent.lstm_basic import basic_lstm
from penstock.drivers.reference.ops.recurrent.lstm_integer import integer_lstm
from penstock.drivers.reference.ops.recurrent.lstm_parameters import FORGET, Memory, Positions
from penstock.drivers.reference.ops.recurrent.lstm_real import RealMemory
from penstock.drivers.reference.ops.recurrent.products import (
    Arrays,
    check_real,
    real_results,
    with_parameters,
)
from penstock.drivers.reference.ops.recurrent.sequences import as_stored, time_first
from penstock.ir import DType, NDArray

UNIDIRECTIONAL = Positions(first=1, norms=20)
STATES = (18, 19)

AUXILIARY = 39
AUXILIARY_WEIGHTS = 40
FORWARD = Positions(first=1, norms=48, auxiliary=AUXILIARY_WEIGHTS)
BACKWARD = Positions(first=18, norms=52, auxiliary=AUXILIARY_WEIGHTS + 4)
BIDIRECTIONAL_STATES = (35, 36, 37, 38)


@kernel("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
def lstm(site: Site) -> Kernel:
    """Float, hybrid, and integer with int8 activations and an int16 cell state; one step, or a
    sequence.
    """
    if site.attributes.get("kernel_type") == "BASIC":
        return basic_lstm(site)
    if site.input(0).dtype is DType.INT8:
        return integer_lstm(site)
    check_real(site, 0, *STATES)
    return _real(site)


def _real(site: Site) -> Kernel:
    sequence = site.operation.type != "LSTM"
    time_major = sequence and site.attributes.flag("time_major")

    def prepare(arrays: Arrays) -> Kernel:
        memory = RealMemory(site, UNIDIRECTIONAL, arrays)

        def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
            source = given(inputs[0])
            before = [given(inputs[i]) for i in STATES]
            steps = time_first(source, time_major=time_major) if sequence else source[None]
            outputs, after = memory.run(steps, None, Memory(*before))
            result = as_stored(outputs, time_major=time_major) if sequence else outputs[0]
            return real_results(site, [result, *_shaped(after, before)])

        return run

    return with_parameters(site, UNIDIRECTIONAL.all(), prepare)


@kernel("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(site: Site) -> Kernel:
    """Float and hybrid. An auxiliary input with weights joins both directions; one without is the
    backward direction's input.
    """
    check_real(site, 0, *BIDIRECTIONAL_STATES)
    time_major = site.attributes.flag("time_major")
    weighted = site.has(AUXILIARY_WEIGHTS + FORGET)
    if weighted:
        site.input(AUXILIARY)

    def prepare(arrays: Arrays) -> Kernel:
        forward, backward = (RealMemory(site, p, arrays) for p in (FORWARD, BACKWARD))

        def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
            source = time_first(given(inputs[0]), time_major=time_major)
            extra = None
            if site.has(AUXILIARY):
                extra = time_first(given(inputs[AUXILIARY]), time_major=time_major)
            other = source if weighted or extra is None else extra
            states = [given(inputs[i]) for i in BIDIRECTIONAL_STATES]
            ahead, ahead_after = forward.run(source, extra, Memory(*states[:2]))
            back, back_after = backward.run(other, extra, Memory(*states[2:]), backward=True)
            results = [ahead, back]
            if site.attributes.flag("merge_outputs"):
                results = [np.concatenate(results, axis=2)]
            return real_results(
                site,
                [
                    *(as_stored(r, time_major=time_major) for r in results),
                    *_shaped(ahead_after, states[:2]),
                    *_shaped(back_after, states[2:]),
                ],
            )

        return run

    return with_parameters(site, [*FORWARD.all(), *BACKWARD.all()], prepare)


def _shaped(after: Memory, before: Sequence[NDArray]) -> list[NDArray]:
    """The state in the shapes that it came in."""
    pairs = zip((after.output, after.cell), before, strict=True)
    return [new.reshape(old.shape) for new, old in pairs]
