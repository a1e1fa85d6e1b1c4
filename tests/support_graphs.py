"""Random models, random devices for them, and the plan: the subjects of property tests of
partitioning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from zlib import crc32

import numpy as np

from penstock import ir
from penstock.hal import Preference
from penstock.partitioning import ExecutionPlan, Policy, place
from penstock.partitioning.policy import PlacementRule
from tests.support_devices import NumpyDevice

BASE: Final = (4, 6)
FLOAT, INT = ir.DType.FLOAT32, ir.DType.INT32
BINARY: Final = ("ADD", "SUB", "MUL", "MAXIMUM")
UNARY: Final = ("RELU", "NEG")


@dataclass
class RandomGraph:
    """Grows a model operation by operation; *values* are what the next one may read.

    Values of one type and shape feed several operations, constants are copied and pooled, some
    outputs are read inside too, some operations are dead, some shapes are left unknown until run
    time.
    """

    rng: np.random.Generator
    builder: ir.ModelBuilder = field(default_factory=ir.ModelBuilder)
    values: list[tuple[int, ir.DType, tuple[int, ...]]] = field(default_factory=list)
    arrays: list[ir.NDArray] = field(default_factory=list)
    produced: list[int] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    branches: tuple[int, int] | None = None
    loops: tuple[int, int] | None = None
    hide_shapes: bool = False

    def make(self) -> ir.Model:
        for position in range(int(self.rng.integers(1, 4))):
            dtype = FLOAT if position == 0 or self.rng.random() < 0.7 else INT
            index = self.builder.input(dtype, BASE, f"input{position}")
            self._available(index, dtype, BASE)
            self.arrays.append(self._array(dtype, BASE))
        self.hide_shapes = bool(self.rng.random() < 0.2)
        for _ in range(int(self.rng.integers(4, 32))):
            self._grow()
        if self.rng.random() < 0.3:
            self._state()
        return self.builder.build(self._outputs())

    def _grow(self) -> None:
        index, dtype, shape = self._pick()
        choice = self.rng.random()
        if choice < 0.5:
            kind = str(self.rng.choice(BINARY))
            self._operation(kind, [index, self._partner(dtype, shape)], [(dtype, shape)])
        elif choice < 0.62:
            kind = str(self.rng.choice(UNARY)) if dtype is FLOAT else "NEG"
            self._operation(kind, [index], [(dtype, shape)])
        elif choice < 0.72 and shape[0] % 2 == 0:
            axis = self._constant(np.array(0, np.int32))
            parts = [(dtype, (shape[0] // 2, *shape[1:]))] * 2
            self._operation("SPLIT", [axis, index], parts, num_splits=2)
        elif choice < 0.8 and len(shape) > 1:
            parts = [(dtype, shape[1:])] * shape[0]
            self._operation("UNPACK", [index], parts, num=shape[0], axis=0)
        elif choice < 0.88 and dtype is FLOAT:
            top = (*shape[:-1], max(1, shape[-1] // 2))
            k = self._constant(np.array(top[-1], np.int32))
            self._operation("TOPK_V2", [index, k], [(dtype, top), (INT, top)])
        elif choice < 0.94:
            joined = (2 * shape[0], *shape[1:])
            if joined[0] <= 16:
                partner = self._partner(dtype, shape)
                self._operation("CONCATENATION", [index, partner], [(dtype, joined)], axis=0)
        elif dtype is FLOAT and shape == BASE:
            if self.rng.random() < 0.6:
                self._branch(index)
            else:
                self._loop(index)

    def _branch(self, index: int) -> None:
        then, otherwise = self.branches or (self._subgraph("NEG"), self._subgraph("RELU"))
        self.branches = then, otherwise
        truth = self._constant(np.array(self.rng.random() < 0.5))
        pair = (then, otherwise) if self.rng.random() < 0.5 else (otherwise, then)
        self._operation(
            "IF",
            [truth, index],
            [(FLOAT, BASE)],
            then_subgraph_index=pair[0],
            else_subgraph_index=pair[1],
        )

    def _loop(self, index: int) -> None:
        """A loop of none to four turns; how often it has turned can be no output."""
        condition, body = self.loops or self._loop_subgraphs()
        self.loops = condition, body
        begin = self._constant(np.array(self.rng.integers(0, 5), np.int32))
        operands = [
            ir.Operand(INT, ()),
            ir.Operand(FLOAT, BASE, name=f"WHILE_{len(self.produced)}"),
        ]
        attributes = {"cond_subgraph_index": condition, "body_subgraph_index": body}
        _, after = self.builder.operation("WHILE", [begin, index], operands, attributes)
        self.read.add(index)
        self.produced.append(after)
        self._available(after, FLOAT, BASE)

    def _loop_subgraphs(self) -> tuple[int, int]:
        condition = self.builder.subgraph("condition")
        turns = condition.input(INT, ())
        condition.input(FLOAT, BASE)
        most = condition.constant(np.array(4, np.int32))
        (goes_on,) = condition.operation(
            "LESS", [turns, most], [ir.Operand(ir.DType.BOOL, (), name="goes_on")]
        )
        body = self.builder.subgraph("body")
        turns, x = body.input(INT, ()), body.input(FLOAT, BASE)
        one = body.constant(np.array(1, np.int32))
        (more,) = body.operation("ADD", [turns, one], [ir.Operand(INT, (), name="more")])
        weights = body.constant(self._array(FLOAT, BASE))
        (y,) = body.operation(
            str(self.rng.choice(BINARY)), [x, weights], [ir.Operand(FLOAT, BASE, name="y")]
        )
        z_operand = ir.Operand(FLOAT, BASE, name="z")
        (z,) = body.operation(str(self.rng.choice(UNARY)), [y], [z_operand])
        return (
            self.builder.add_subgraph(condition.finish([goes_on])),
            self.builder.add_subgraph(body.finish([more, z])),
        )

    def _subgraph(self, kind: str) -> int:
        inner: ir.SubgraphBuilder = self.builder.subgraph(kind)
        x = inner.input(FLOAT, BASE)
        weights = inner.constant(self._array(FLOAT, BASE))
        (y,) = inner.operation(kind, [x], [ir.Operand(FLOAT, BASE, name=f"{kind}_inner")])
        (z,) = inner.operation("ADD", [y, weights], [ir.Operand(FLOAT, BASE, name=f"{kind}_sum")])
        return self.builder.add_subgraph(inner.finish([z]))

    def _operation(
        self,
        kind: str,
        inputs: list[int],
        outputs: list[tuple[ir.DType, tuple[int, ...]]],
        **attributes: int,
    ) -> None:
        hidden = self.hide_shapes and self.rng.random() < 0.5
        operands = [
            ir.Operand(
                dtype,
                self._hide(shape) if hidden else shape,
                name=f"{kind}_{len(self.produced) + k}",
            )
            for k, (dtype, shape) in enumerate(outputs)
        ]
        indexes = self.builder.operation(kind, inputs, operands, attributes)
        self.read.update(inputs)
        for index, (dtype, shape) in zip(indexes, outputs, strict=True):
            self.produced.append(index)
            self._available(index, dtype, shape)

    def _hide(self, shape: tuple[int, ...]) -> ir.Shape:
        return None if self.rng.random() < 0.3 else (None, *shape[1:])

    def _state(self) -> None:
        candidates = [v for v in self.values if v[0] in self.produced]
        if not candidates:
            return
        output, dtype, shape = candidates[int(self.rng.integers(len(candidates)))]
        variable = self.builder.variable("state", dtype, shape)
        operand = ir.Operand(dtype, shape, ir.Lifetime.SUBGRAPH_INPUT, "state_input")
        port = self.builder.operand(operand)
        self._available(port, dtype, shape)
        self.arrays.append(self._array(dtype, shape))
        (after,) = self.builder.operation(
            "ADD", [output, port], [ir.Operand(dtype, shape, name="state_output")]
        )
        self.produced.append(after)
        self.builder.state(variable, port, after)

    def _outputs(self) -> list[int]:
        count = min(len(self.produced), int(self.rng.integers(1, 6)))
        outputs = self.rng.choice(self.produced, count, replace=False).tolist() if count else []
        if self.rng.random() < 0.8:
            # What nobody reads is not run, and a graph of that is an easy one.
            outputs += [index for index in self.produced if index not in {*self.read, *outputs}]
        inside = sorted(self.read.intersection(self.produced).difference(outputs))
        if inside and self.rng.random() < 0.7:
            outputs.append(int(self.rng.choice(inside)))
        if self.rng.random() < 0.1:
            outputs.append(self.values[0][0])
        if self.rng.random() < 0.1 and self.constants:
            outputs.append(self.constants[0])
        if outputs and self.rng.random() < 0.1:
            outputs.append(outputs[0])
        return outputs or [self.values[0][0]]

    def _partner(self, dtype: ir.DType, shape: tuple[int, ...]) -> int:
        same = [index for index, d, s in self.values if d is dtype and s == shape]
        if self.rng.random() < 0.25:
            return self._constant(self._array(dtype, shape))
        return int(self.rng.choice(same))

    def _constant(self, value: ir.NDArray) -> int:
        self.constants.append(self.builder.constant(value))
        return self.constants[-1]

    def _array(self, dtype: ir.DType, shape: tuple[int, ...]) -> ir.NDArray:
        if dtype is INT:
            return self.rng.integers(-9, 9, shape).astype(np.int32)
        return self.rng.standard_normal(shape).astype(np.float32)

    def _pick(self) -> tuple[int, ir.DType, tuple[int, ...]]:
        return self.values[int(self.rng.integers(len(self.values)))]

    def _available(self, index: int, dtype: ir.DType, shape: tuple[int, ...]) -> None:
        self.values.append((index, dtype, shape))


def random_devices(rng: np.random.Generator, model: ir.Model) -> list[NumpyDevice]:
    """1 to 4 devices; every operation is taken by one of them (disjoint), or by any of several."""
    count = int(rng.choice([1, 2, 3, 4], p=[0.05, 0.3, 0.35, 0.3]))
    disjoint = bool(rng.random() < 0.5)
    takers: dict[str, frozenset[int]] = {}
    for index in range(len(model.operations)):
        first = int(rng.integers(count))
        others = () if disjoint else np.flatnonzero(rng.random(count) < 0.3).tolist()
        takers[model.entry.operation_name(index)] = frozenset({first, *others})

    def takes(position: int, operation: str) -> bool:
        """What stands in a subgraph is drawn by its name."""
        return position in takers.get(operation, {crc32(operation.encode()) % count})

    names = [f"device{k}" for k in range(count)]
    if rng.random() < 0.5:
        names[int(rng.integers(count))] = "reference"
    return [
        NumpyDevice(
            name,
            # A default, bound now.
            lambda _, operation, k=k: takes(k, operation),  # type: ignore[misc]
            {
                t: (float(rng.uniform(0.1, 2)), float(rng.uniform(0.1, 2)))
                for t in ("float32", "int32")
            },
            alignment=int(rng.choice([16, 64, 256])),
            padding=int(rng.choice([1, 64])),
            shares_host_memory=bool(rng.random() < 0.8),
        )
        for k, name in enumerate(names)
    ]


@dataclass(frozen=True)
class Case:
    graph: RandomGraph
    model: ir.Model
    devices: list[NumpyDevice]
    preference: Preference
    plan: ExecutionPlan

    def replaced(self, placement: PlacementRule) -> ExecutionPlan:
        """The plan by the rule of that name."""
        return place(self.model, self.devices, Policy(placement=placement), self.preference)

    def whole(self) -> ExecutionPlan:
        """The plan on one device that takes everything: a single step."""
        plan = place(self.model, [NumpyDevice("all")], Policy())
        if len(plan.steps) > 1:
            raise ValueError(f"{len(plan.steps)} steps on one device")
        return plan


@lru_cache(maxsize=1000)
def random_case(seed: int) -> Case:
    """Planned by "cost" for even seeds, by "nnapi" for odd ones. Tests of one process share it."""
    rng = np.random.default_rng(seed)
    graph = RandomGraph(rng)
    model = graph.make()
    devices = random_devices(rng, model)
    preference: Preference = "low_power" if rng.random() < 0.5 else "fast_single_answer"
    policy = Policy(placement="nnapi" if seed % 2 else "cost")
    plan = place(model, devices, policy, preference)
    return Case(graph, model, devices, preference, plan)
