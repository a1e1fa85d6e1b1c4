"""Random models, valid by construction, of operations that both the table and a device have.

Every operation in the mix works element by element. Results can therefore be compared bit for bit,
however a model is partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from penstock.hal import Device
from penstock.ir import DType, Lifetime, Model, ModelBuilder, NDArray, Operand
from penstock.ir.operations import OPERATIONS

F32: Final = DType.FLOAT32
SIDES: Final = (1, 2, 3, 4, 6)
PROBES: Final = 8

Dag: TypeAlias = tuple[tuple[int, ...], ...]
"""Node i reads the nodes in entry i, all smaller than i. Nodes that read none are inputs."""


class Value(NamedTuple):
    """An operand that an operation may read, and its shape."""

    operand: int
    shape: tuple[int, ...]


class RandomModel(NamedTuple):
    """A model and inputs to run it on, state inputs included."""

    model: Model
    inputs: tuple[NDArray, ...]


@dataclass
class Growth:
    """A model under construction, extended operation by operation."""

    random: Random
    builder: ModelBuilder = field(default_factory=ModelBuilder)
    values: list[Value] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    arrays: list[NDArray] = field(default_factory=list)
    read: set[int] = field(default_factory=set)

    def give(self, shape: tuple[int, ...]) -> None:
        """Adds an input and an array for it."""
        operand = self.builder.input(F32, shape, f"input{len(self.given)}")
        self.start(operand, shape)

    def start(self, operand: int, shape: tuple[int, ...]) -> None:
        """Makes *operand*, an input, readable by operations."""
        self.values.append(Value(operand, shape))
        self.given.append(operand)
        self.arrays.append(integers(self.random, shape))

    def pick(self) -> Value:
        """A random value; with probability 0.6 one that no operation has read yet."""
        fresh = [v for v in self.values if v.operand not in self.read]
        value = self.random.choice(fresh if fresh and self.random.random() < 0.6 else self.values)
        self.read.add(value.operand)
        return value

    def partner(self, shape: tuple[int, ...]) -> Value:
        """A value of *shape*, or a constant that broadcasts to it."""
        same = [v for v in self.values if v.shape == shape]
        if same and self.random.random() < 0.7:
            value = self.random.choice(same)
            self.read.add(value.operand)
            return value
        kept = tuple(d if self.random.random() < 0.7 else 1 for d in shape)
        return Value(self.builder.constant(integers(self.random, kept)), kept)

    def add(
        self,
        kind: str,
        inputs: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        **attributes: int | str | tuple[int, ...],
    ) -> None:
        """Appends an operation whose outputs have *shapes*."""
        made = self.builder.operation(kind, inputs, [(F32, s) for s in shapes], attributes)
        self.values += [Value(i, s) for i, s in zip(made, shapes, strict=True)]


Recipe: TypeAlias = Callable[[Growth], None]
"""Adds one operation of its kind to a growing model."""


def _binary(kind: str) -> Recipe:
    def grow(growth: Growth) -> None:
        first = growth.pick()
        second = growth.partner(first.shape)
        pair = [first.operand, second.operand]
        growth.add(kind, pair if growth.random.random() < 0.5 else pair[::-1], [first.shape])

    return grow


def _unary(kind: str) -> Recipe:
    def grow(growth: Growth) -> None:
        value = growth.pick()
        growth.add(kind, [value.operand], [value.shape])

    return grow


def _split(growth: Growth) -> None:
    value = growth.pick()
    axis = next((i for i, d in enumerate(value.shape) if d % 2 == 0 and d > 0), None)
    if axis is None:
        _unary("RELU")(growth)
        return
    half = (*value.shape[:axis], value.shape[axis] // 2, *value.shape[axis + 1 :])
    at = growth.builder.constant(np.array(axis, np.int32))
    growth.add("SPLIT", [at, value.operand], [half, half], num_splits=2)


def _concatenation(growth: Growth) -> None:
    first = growth.pick()
    second = growth.partner(first.shape)
    if second.shape != first.shape or sum(first.shape) > 64:
        growth.add("RELU", [first.operand], [first.shape])
        return
    joined = (first.shape[0] * 2, *first.shape[1:])
    growth.add("CONCATENATION", [first.operand, second.operand], [joined], axis=0)


def _reshape(growth: Growth) -> None:
    value = growth.pick()
    target = value.shape[::-1]
    shape = growth.builder.constant(np.array(target, np.int32))
    growth.add("RESHAPE", [value.operand, shape], [target])


RECIPES: Final[dict[str, Recipe]] = {
    **{kind: _binary(kind) for kind in ("ADD", "SUB", "MAXIMUM", "MINIMUM")},
    **{kind: _unary(kind) for kind in ("RELU", "NEG", "ABS")},
    "SPLIT": _split,
    "CONCATENATION": _concatenation,
    "RESHAPE": _reshape,
}
"""The operations of random models. RELU replaces an operation that does not fit."""


def recipes_for(device: Device | None) -> dict[str, Recipe]:
    """The recipes of operations that *device* (None: any) supports; RELU is required.

    Raises `ValueError` for a device without RELU: no model can be generated for it.
    """
    known = {kind: recipe for kind, recipe in RECIPES.items() if kind in OPERATIONS}
    if device is not None:
        known = {kind: recipe for kind, recipe in known.items() if _supports(device, recipe)}
    if "RELU" not in known:
        raise ValueError("random models need RELU")
    return known


def random_model(
    random: Random,
    device: Device | None = None,
    *,
    operations: tuple[int, int] = (1, 12),
    state: float = 0.2,
) -> RandomModel:
    """A model whose number of operations is in the range *operations*.

    It has a state with probability *state*. It may have several outputs, outputs that operations
    read, unread results, constants that broadcast, and operations with two outputs. Equal seeds
    give equal models.
    """
    recipes = recipes_for(device)
    growth = Growth(random)
    for _ in range(random.randint(1, 3)):
        growth.give((random.choice(SIDES), random.choice(SIDES)))
    before: Value | None = None
    if random.random() < state:
        shape = growth.values[0].shape
        operand = Operand(F32, shape, Lifetime.SUBGRAPH_INPUT, "before")
        growth.start(growth.builder.operand(operand), shape)
        before = growth.values[-1]
    for _ in range(random.randint(*operations)):
        random.choice(list(recipes.values()))(growth)
    produced = [v.operand for v in growth.values if v.operand not in growth.given]
    unread = [operand for operand in produced if operand not in growth.read]
    outputs = list(dict.fromkeys([*unread, *(o for o in produced if random.random() < 0.2)]))
    random.shuffle(outputs)
    if before is not None:
        adds = "ADD" in recipes
        read = [before.operand, *([growth.partner(before.shape).operand] if adds else [])]
        kind, b = "ADD" if adds else "RELU", growth.builder
        (after,) = b.operation(kind, read, [(F32, before.shape)])
        b.state(b.variable("state", F32, before.shape), before.operand, after)
    return RandomModel(growth.builder.build(outputs), tuple(growth.arrays))


def random_dag(random: Random, nodes: tuple[int, int] = (1, 16), reads: int = 3) -> Dag:
    """A directed acyclic graph whose nodes each read at most *reads* other nodes."""
    return tuple(
        tuple(sorted(random.sample(range(node), random.randint(0, min(node, reads)))))
        for node in range(random.randint(*nodes))
    )


def model_of_dag(dag: Dag, shape: tuple[int, ...] = (2, 3)) -> RandomModel:
    """The graph as a model: nodes that read none are inputs, one is RELU, more are chains of ADD.

    Every unread node is an output.
    """
    b = ModelBuilder()
    at: list[int] = []
    inputs = []
    for node, reads in enumerate(dag):
        if not reads:
            at.append(b.input(F32, shape, f"input{node}"))
            inputs.append((np.arange(np.prod(shape)) % 5 - 2 + node % 3).astype(np.float32))
        elif len(reads) == 1:
            at += b.operation("RELU", [at[reads[0]]], [(F32, shape)])
        else:
            total = at[reads[0]]
            for other in reads[1:]:
                (total,) = b.operation("ADD", [total, at[other]], [(F32, shape)])
            at.append(total)
    read = {r for reads in dag for r in reads}
    outputs = [at[node] for node in range(len(dag)) if node not in read]
    return RandomModel(b.build(outputs), tuple(a.reshape(shape) for a in inputs))


def integers(random: Random, shape: tuple[int, ...]) -> NDArray:
    """A float32 array of integers from -8 to 8."""
    count = int(np.prod(shape))
    return np.array([random.randint(-8, 8) for _ in range(count)], np.float32).reshape(shape)


def _supports(device: Device, recipe: Recipe) -> bool:
    """Whether *device* supports the operation of *recipe*, with and without constants."""
    for seed in range(PROBES):
        growth = Growth(Random(seed))  # noqa: S311  # models, not secrets
        growth.give((4, 6))
        growth.give((4, 6))
        recipe(growth)
        made = [v.operand for v in growth.values if v.operand not in growth.given]
        model = growth.builder.build(made)
        if not all(answer.supported for answer in device.supported_operations(model)):
            return False
    return True
