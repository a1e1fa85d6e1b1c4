"""Recurrent operations at batch 1, over one step or a sequence, and an unrolled gated cell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.models.layers import FLOAT, HYBRID, Style, parameters
from benchmarks.models.making import Case, Drawing
from penstock.ir import DType
from tests.unit.drivers.reference import support_cells as cells
from tests.unit.drivers.reference.support_lstm import Form, integer_case, real_case
from tests.unit.drivers.reference.support_recurrent import Case as Recurrent

F32, I8 = DType.FLOAT32, DType.INT8


def memories() -> Iterator[Case]:
    """LSTM with short and long vectors, over a step and sequences; the full form with projection,
    peepholes and normalisation.
    """
    forms = (
        Form("UNIDIRECTIONAL_SEQUENCE_LSTM", 1, 64, 64, 128),
        Form("UNIDIRECTIONAL_SEQUENCE_LSTM", 1, 32, 128, 512),
        Form(
            "UNIDIRECTIONAL_SEQUENCE_LSTM", 1, 32, 128, 256, outputs=128, peephole=True, norm=True
        ),
        Form("UNIDIRECTIONAL_SEQUENCE_LSTM", 8, 32, 64, 128),
        Form("LSTM", 1, 1, 256, 512),
    )
    for form in forms:
        work = form.batch * form.steps * _products(form)
        kind = "LSTM sequence" if form.steps > 1 else form.kind
        parts = [f"{kind} {form.steps} x {form.batch} x {form.size} to {form.cells}"]
        parts += ["in full"] * form.peephole
        name = ", ".join(parts)
        for weights, asymmetric in ((F32, False), (I8, False), (I8, True)):
            made = real_case(
                form, np.random.default_rng(7), weights, asymmetric_quantize_inputs=asymmetric
            )
            yield _case(made, f"{name}, {_named(weights, asymmetric)}", work)
        if not form.peephole:
            made = integer_case(form, np.random.default_rng(7))
            yield _case(made, f"{name}, int8", work)


def basic_memories() -> Iterator[Case]:
    """LSTM, the basic kernel: one step."""
    for name, make in (("float32", cells.real_basic_case), ("uint8", cells.integer_basic_case)):
        made = make(np.random.default_rng(7), 1, 256, 512)
        yield _case(made, f"LSTM basic 1 x 256 to 512, {name}", 4 * 512 * 768)


def basic_cells() -> Iterator[Case]:
    """RNN over a sequence."""
    for units, steps in ((128, 64), (512, 32)):
        sizes = cells.Sizes(1, steps, 64, units)
        for weights, asymmetric in ((F32, False), (I8, False), (I8, True)):
            made = cells.sequence_case(
                np.random.default_rng(7),
                weights,
                sizes,
                time_major=False,
                asymmetric_quantize_inputs=asymmetric,
                fused_activation_function="TANH",
            )
            name = f"RNN sequence {steps} x 1 x 64 to {units}"
            work = steps * units * (64 + units)
            yield _case(made, f"{name}, {_named(weights, asymmetric)}", work)


def filters() -> Iterator[Case]:
    """SVDF: one step of 2048 filters."""
    form = cells.Filters(1, 512, 1024, 2, 10)
    work = form.count * (form.size + form.memory)
    name = "SVDF 1 x 512 to 1024"
    for weights, asymmetric in ((F32, False), (I8, False), (I8, True)):
        made = cells.real_svdf_case(
            np.random.default_rng(7),
            weights,
            form,
            asymmetric_quantize_inputs=asymmetric,
            fused_activation_function="RELU",
        )
        yield _case(made, f"{name}, {_named(weights, asymmetric)}", work)
    made = cells.integer_svdf_case(np.random.default_rng(7), form, bias=True)
    yield _case(made, f"{name}, int8", work)


def gated_units() -> Iterator[Case]:
    """A gated recurrent unit of 128 over 32 steps, unrolled into dense layers."""
    for style in (FLOAT, HYBRID):
        yield _unrolled(style, steps=32, size=64, units=128)


def _unrolled(style: Style, *, steps: int, size: int, units: int) -> Case:
    drawing = Drawing()
    shapes = ((2 * units, size + units), (units, size + units))
    gates, new = (parameters(drawing, style, shape, 0) for shape in shapes)
    one = drawing.constant(np.ones(1, np.float32))
    splits = [drawing.integers(0, 0), drawing.integers(1, units), drawing.integers(0, units)]
    hidden = drawing.constant(np.zeros((1, units), np.float32))
    for _ in range(steps):
        source = drawing.input(F32, (1, size))
        joined = drawing.operation("CONCATENATION", [source, hidden], F32, axis=1)
        both = drawing.operation("FULLY_CONNECTED", [joined, *gates], F32)
        both = drawing.operation("LOGISTIC", [both], F32)
        update = drawing.operation("SLICE", [both, splits[0], splits[1]], F32)
        reset = drawing.operation("SLICE", [both, splits[2], splits[1]], F32)
        kept = drawing.operation("MUL", [reset, hidden], F32)
        joined = drawing.operation("CONCATENATION", [source, kept], F32, axis=1)
        found = drawing.operation("FULLY_CONNECTED", [joined, *new], F32)
        found = drawing.operation("TANH", [found], F32)
        old = drawing.operation("MUL", [update, hidden], F32)
        rest = drawing.operation("SUB", [one, update], F32)
        fresh = drawing.operation("MUL", [rest, found], F32)
        hidden = drawing.operation("ADD", [old, fresh], F32)
    name = f"gated unit {steps} x 1 x {size} to {units}, unrolled, {style.name}"
    return drawing.case(name, hidden, steps * 3 * units * (size + units), "MACs")


def _products(form: Form) -> int:
    gates = len(form.gates) * form.cells * (form.size + form.shown)
    return gates + (form.shown * form.cells if form.outputs else 0)


def _named(weights: DType, asymmetric: bool) -> str:
    if weights.is_float:
        return weights.value
    return "hybrid asymmetric" if asymmetric else "hybrid"


def _case(made: Recurrent, name: str, work: float) -> Case:
    feed = made.feeds(np.random.default_rng(7), 1)[0]
    return Case(name, work, "MACs", made.model(), feed)
