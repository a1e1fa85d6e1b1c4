"""Seeded damage to NNAPI models and their inputs, and one trial: lower, prepare and run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock import knobs
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import PenstockError
from penstock.hal import ExecutionConfig, HostMemory, PrepareConfig, Request
from penstock.ir import Model, NDArray, infer_shapes
from penstock.ir.types import static_shape
from penstock.nnapi.description import (
    ChannelQuantization,
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
    OperandType,
)
from penstock.nnapi.lowering import lower
from penstock.testing.vectors.derive import Run

INTEGERS = (0, -1, 1, 2, 3, 4, 5, 7, 100, -2, 2**31 - 1, -(2**31), 65536)
REALS = (0.0, -1.0, 1.0, 0.5, float("nan"), float("inf"), -float("inf"), 1e-30, 1e30)
SCALES = (0.0, 0.5, 1e-30, 1e30, 0.125, 2.0**-11, 1 / 256)
ZERO_POINTS = (0, 1, 128, -128, 255, 65535)
SIZES = (0, None, 1, 2, 3, 5, 1000)

TENSOR_LIMIT_MIB = 32
LOOP_TIMEOUT_NS = 100_000_000
ROOM = 1 << 16
"""Bytes that an output of unknown shape gets."""


@dataclass(frozen=True)
class Damaged:
    """A damaged model, and arrays for its inputs by operand, as far as there are any."""

    run: Run
    model: NnapiModel
    rng: random.Random

    @classmethod
    def of(cls, runs: Sequence[Run], seed: int) -> Damaged:
        """Number *seed*; one in five keeps its model, and is fed damaged values only."""
        rng = random.Random(seed)
        run = rng.choice(runs)
        model = run.model
        if rng.random() < 0.8:
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                model = damage(model, rng)
        return cls(run, model, rng)

    def trial(self) -> str:
        """How it ends: "ran", "unsupported", or the name of the error that refused it."""
        with knobs.override(tensor_limit_mib=TENSOR_LIMIT_MIB):
            try:
                model = lower(self.model, self.run.feature_level, self.run.omitted)
                fed = [self._array(i) for i in self._inputs()]
                model = infer_shapes(model, {at: a.shape for at, a in enumerate(fed)})
                device = ReferenceDevice()
                if not all(s.supported for s in device.supported_operations(model)):
                    return "unsupported"
                _execute(device, model, fed)
            except PenstockError as error:
                return type(error).__name__
        return "ran"

    def _inputs(self) -> list[int]:
        omitted = self.run.omitted
        return [i for at, i in enumerate(self.model.main.inputs) if at not in omitted]

    def _array(self, index: int) -> NDArray:
        """The recorded values of an input where they still fit, else ones; some are changed."""
        operand, recorded = self.model.main.operands[index], self.run.inputs.get(index)
        dtype = operand.type.dtype.numpy
        shape = tuple(
            self.rng.choice((0, 1, 2, 3)) if d is None else min(d, 1000)
            for d in operand.dimensions or ()
        )
        if recorded is not None and recorded.dtype == dtype and recorded.shape == shape:
            array = recorded.copy()
        else:
            array = np.ones(shape if np.prod(shape, dtype=float) < 1e6 else (1,), dtype)
        if array.size and self.rng.random() < 0.6:
            for _ in range(self.rng.choice((1, 3))):
                array.reshape(-1)[self.rng.randrange(array.size)] = _value(dtype, self.rng)
        return array


def _value(dtype: np.dtype[Any], rng: random.Random) -> NDArray:
    with np.errstate(all="ignore"):
        return np.array(rng.choice(INTEGERS if dtype.kind in "iub" else REALS)).astype(dtype)


def _execute(device: ReferenceDevice, model: Model, fed: Sequence[NDArray]) -> None:
    operands = [model.entry.operands[i] for i in model.entry.outputs]
    memory: list[NDArray] = []
    for operand in operands:
        shape = static_shape(operand.shape)
        if shape is None or np.prod(shape, dtype=float) > TENSOR_LIMIT_MIB << 20:
            memory.append(np.zeros(ROOM, np.uint8))
        else:
            memory.append(np.zeros(shape, operand.dtype.numpy))
    prepared = device.prepare_model(model, PrepareConfig())
    request = Request(tuple(map(HostMemory, fed)), tuple(map(HostMemory, memory)))
    prepared.execute(request, ExecutionConfig(loop_timeout_ns=LOOP_TIMEOUT_NS))


def damage(model: NnapiModel, rng: random.Random) -> NnapiModel:
    """*model* with one thing changed."""
    main = model.main
    operands, operations, inputs = list(main.operands), list(main.operations), main.inputs
    kind = rng.random()
    if kind < 0.75:
        at = rng.randrange(len(operands))
        before, operands[at] = operands[at], _operand(operands[at], rng)
        fed = operands[at].lifetime is NnapiLifetime.SUBGRAPH_INPUT
        if before.lifetime.is_constant and fed:
            inputs = (*inputs, at)
    else:
        at = rng.randrange(len(operations))
        if kind < 0.85:
            operations[at] = _operation(operations[at], len(operands), rng)
        else:
            operations[at] = replace(operations[at], type=rng.choice(_names()))
    changed = replace(main, operands=tuple(operands), operations=tuple(operations), inputs=inputs)
    return replace(model, main=changed)


def _names() -> list[str]:
    from penstock.nnapi.lowering import rules

    return sorted(rules())


def _operation(operation: NnapiOperation, operands: int, rng: random.Random) -> NnapiOperation:
    inputs = list(operation.inputs)
    if not inputs:
        return operation
    at, other = rng.randrange(len(inputs)), rng.randrange(len(inputs))
    match rng.randrange(4):
        case 0:
            del inputs[at]
        case 1:
            inputs.insert(at, inputs[other])
        case 2:
            inputs[at], inputs[other] = inputs[other], inputs[at]
        case _:
            inputs[at] = rng.randrange(operands)
    return replace(operation, inputs=tuple(inputs))


def _operand(operand: NnapiOperand, rng: random.Random) -> NnapiOperand:
    if operand.value and rng.random() < 0.6 and operand.type is not OperandType.SUBGRAPH:
        dtype = operand.type.dtype.numpy
        if len(operand.value) % dtype.itemsize == 0:
            values = np.frombuffer(operand.value, dtype).copy()
            values[rng.randrange(values.size)] = _value(dtype, rng)
            return replace(operand, value=values.tobytes())
    sizes = list(operand.dimensions or ())
    match rng.randrange(9):
        case 0:
            return replace(operand, type=rng.choice(list(OperandType)))
        case 1 if sizes:
            sizes[rng.randrange(len(sizes))] = rng.choice(SIZES)
        case 2 if sizes:
            del sizes[rng.randrange(len(sizes))]
        case 3:
            sizes.insert(rng.randrange(len(sizes) + 1), rng.choice((0, 1, 2)))
        case 4:
            return replace(operand, dimensions=None)
        case 5:
            return replace(operand, scale=rng.choice((*SCALES, operand.scale * 2)))
        case 6:
            return replace(operand, zero_point=rng.choice(ZERO_POINTS))
        case 7 if operand.channel_quantization is not None:
            scales = operand.channel_quantization.scales[: rng.randrange(4)] or (1.0,)
            channels = ChannelQuantization(rng.randrange(5), scales)
            return replace(operand, channel_quantization=channels)
        case _:
            constant = operand.lifetime.is_constant and rng.random() < 0.5
            lifetime = NnapiLifetime.SUBGRAPH_INPUT if constant else NnapiLifetime.NO_VALUE
            return replace(operand, lifetime=lifetime, value=None, location=None)
    return replace(operand, dimensions=tuple(sizes))
