"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN: float and hybrid.

At each step h = activate(W x + A aux + R h + b), and h is the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.drivers.reference.ops.recurrent.activations import activation_function
from penstock.drivers.reference.ops.recurrent.products import (
    Arrays,
    check_real,
    real_array,
    real_product,
    real_results,
    real_values,
    with_parameters,
)
from penstock.drivers.reference.ops.recurrent.sequences import (
    as_stored,
    rows_of,
    time_first,
    times,
)
from penstock.ir import NDArray


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of inputs: weights, recurrent weights and bias from *first* on, *state*, and the
    weights of an auxiliary input.
    """

    first: int
    state: int
    auxiliary: int | None = None

    def parameters(self) -> list[int]:
        more = [] if self.auxiliary is None else [self.auxiliary]
        return [*range(self.first, self.first + 3), *more]


SINGLE = Positions(first=1, state=4)
FORWARD = Positions(first=1, state=4, auxiliary=10)
BACKWARD = Positions(first=5, state=8, auxiliary=11)
AUXILIARY = 9


class Cell:
    """One direction with its parameters prepared."""

    def __init__(self, site: Site, positions: Positions, arrays: Arrays) -> None:
        asymmetric = site.attributes.flag("asymmetric_quantize_inputs")
        weights, recurrent, bias = positions.parameters()[:3]
        self._input = real_product(site, [weights], arrays, asymmetric=asymmetric)
        self._recurrent = real_product(site, [recurrent], arrays, asymmetric=asymmetric)
        self._bias = real_values(arrays[bias], site.input(bias))
        self._auxiliary = None
        if positions.auxiliary is not None and site.has(positions.auxiliary):
            self._auxiliary = real_product(
                site, [positions.auxiliary], arrays, asymmetric=asymmetric
            )
        self._activate = activation_function(site.attributes.text("fused_activation_function"))

    def run(
        self, source: NDArray, auxiliary: NDArray | None, state: NDArray, *, backward: bool = False
    ) -> tuple[NDArray, NDArray]:
        """Outputs [time, batch, units] for *source* [time, batch, size], and the state afterwards."""
        steps, batch, _ = source.shape
        units = len(self._bias)
        sums = self._input(rows_of(real_array(source)))
        sums += self._bias
        if self._auxiliary is not None and auxiliary is not None:
            sums += self._auxiliary(rows_of(real_array(auxiliary)))
        sums = sums.reshape(steps, batch, units)
        hidden = real_array(state).reshape(batch, units)
        outputs = np.empty((steps, batch, units), np.float32)
        for step in times(steps, backward=backward):
            hidden = self._activate(sums[step] + self._recurrent(hidden))
            outputs[step] = hidden
        return outputs, hidden.reshape(state.shape)


@kernel("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")
def rnn(site: Site) -> Kernel:
    """One step, or a sequence."""
    check_real(site, 0, SINGLE.state)
    sequence = site.operation.type != "RNN"
    time_major = sequence and site.attributes.flag("time_major")

    def prepare(arrays: Arrays) -> Kernel:
        cell = Cell(site, SINGLE, arrays)

        def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
            source, state = given(inputs[0]), given(inputs[SINGLE.state])
            steps = time_first(source, time_major=time_major) if sequence else source[None]
            outputs, after = cell.run(steps, None, state)
            result = as_stored(outputs, time_major=time_major) if sequence else outputs[0]
            return real_results(site, [result, after])

        return run

    return with_parameters(site, SINGLE.parameters(), prepare)


@kernel("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(site: Site) -> Kernel:
    """Two cells. An auxiliary input with weights joins both directions; one without is the backward
    direction's input.
    """
    check_real(site, 0, FORWARD.state, BACKWARD.state)
    time_major = site.attributes.flag("time_major")
    weighted = site.has(10)
    if weighted:
        site.input(AUXILIARY)

    def prepare(arrays: Arrays) -> Kernel:
        forward, backward = (Cell(site, p, arrays) for p in (FORWARD, BACKWARD))

        def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
            source = time_first(given(inputs[0]), time_major=time_major)
            extra = None
            if site.has(AUXILIARY):
                extra = time_first(given(inputs[AUXILIARY]), time_major=time_major)
            other = source if weighted or extra is None else extra
            states = [given(inputs[p.state]) for p in (FORWARD, BACKWARD)]
            ahead, ahead_after = forward.run(source, extra, states[0])
            back, back_after = backward.run(other, extra, states[1], backward=True)
            results = [ahead, back]
            if site.attributes.flag("merge_outputs"):
                results = [np.concatenate(results, axis=2)]
            stored = [as_stored(r, time_major=time_major) for r in results]
            return real_results(site, [*stored, ahead_after, back_after])

        return run

    return with_parameters(site, [*FORWARD.parameters(), *BACKWARD.parameters()], prepare)
