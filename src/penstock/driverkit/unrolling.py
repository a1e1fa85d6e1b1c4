"""Loop unrolling: a WHILE whose number of rounds is known becomes the operations of its rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.ir import Attributes, DType, Lifetime, Model, NDArray, Operand, Operation, Subgraph
from penstock.ir.infer import follow
from penstock.ir.operand import MAX_COPIED_VALUE
from penstock.ir.operations import spec_of
from penstock.ir.transforms import branches_of, has_control_flow, specialized
from penstock.ir.types import is_static, static_shape

KEPT: Final = "_flattened"
"""The attribute in which a model caches its unrolled form."""

WHOLE: Final = frozenset({DType.INT32, DType.INT64, DType.BOOL})
"""Element types of the values that are folded: counters, indexes, booleans."""

MOST_OPERATIONS: Final = 4096
"""Greatest number of operations after the loops of a model are unrolled."""


MOST_ROUNDS: Final = 256
"""Greatest number of rounds of a loop that is unrolled."""

Values = Mapping[int, NDArray]


class Unrolled(Struct, frozen=True):
    """A model whose loops were unrolled. *origins* is, for each of its operations, the index of
    that operation or its loop in the original model. Operands keep their indexes; new ones follow.
    """

    model: Model
    origins: tuple[int, ...]


def flattened(model: Model) -> Unrolled:
    """The unrolled form of *model*, which engines compile; *model* itself if it has no control
    flow. Branches get subgraphs with static shapes. The result is cached in the model.
    """
    if not has_control_flow(model):
        return Unrolled(model, tuple(range(len(model.operations))))
    # Several devices are asked about the same model, some of them more than once.
    known: Unrolled | None = model.__dict__.get(KEPT)
    if known is None:
        known = model.__dict__[KEPT] = unroll(specialized(model))
    return known


def unroll(model: Model) -> Unrolled:
    """Unrolls the loops of the entry subgraph of a `specialized` model, to at most
    `MOST_OPERATIONS` operations. Values that are known before the run become constants.
    """
    everything = tuple(range(len(model.operations)))
    if all(operation.type != "WHILE" for operation in model.operations):
        return Unrolled(model, everything)
    entry, room = model.entry, MOST_OPERATIONS
    writer = _Writer(model)
    origins: list[int] = []
    written, needed = set[int](), set(entry.outputs)
    for index, operation in enumerate(entry.operations):
        rounds = _rounds(model, operation, room) if operation.type == "WHILE" else None
        if rounds is None:
            writer.operations.append(operation)
            needed.update(operation.inputs)
        else:
            body = model.subgraphs[branches_of(operation)[1]]
            room -= (len(rounds) - 1) * len(body.operations)
            written.add(index)
            writer.loop(operation, body, rounds)
        origins += [index] * (len(writer.operations) - len(origins))
    used = live(writer.operations, needed)
    kept = [i for i, origin in enumerate(origins) if origin not in written or i in used]
    flat = replace(
        entry, operands=tuple(writer.operands), operations=tuple(writer.operations[i] for i in kept)
    )
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = flat
    return Unrolled(replace(model, subgraphs=tuple(subgraphs)), tuple(origins[i] for i in kept))


class _Writer:
    """Collects the operands and operations of the unrolled entry subgraph."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.operands: list[Operand] = list(model.entry.operands)
        self.operations: list[Operation] = []

    def loop(self, operation: Operation, body: Subgraph, rounds: Sequence[Values]) -> None:
        """Adds the operations of all rounds of *operation*, and copies to its outputs."""
        constants = {
            i: self._add(replace(o, origin=None))
            for i, o in enumerate(body.operands)
            if o.is_constant or not o.has_value
        }
        current: list[int] = list(operation.inputs)
        target = branches_of(operation)[1]
        whole = [i for o in body.operations for i in o.outputs if body.operands[i].dtype in WHOLE]
        for known in rounds[:-1]:
            number = dict(constants)
            for at, index in enumerate(body.inputs):
                number[index] = self._known(known.get(at), current[at])
            given = {body.inputs[at]: value for at, value in known.items()}
            folded = {
                index: self._add(constant_of(value))
                for index, value in follow(self.model, target, given, whole).items()
                if value.nbytes <= MAX_COPIED_VALUE
            }
            number.update(folded)
            for inner in body.operations:
                if all(index in folded for index in inner.outputs):
                    continue
                for index in inner.outputs:
                    lifetime, made = Lifetime.TEMPORARY_VARIABLE, body.operands[index]
                    number[index] = self._add(replace(made, lifetime=lifetime, origin=None))
                ports = [tuple(number[i] for i in ids) for ids in (inner.inputs, inner.outputs)]
                self.operations.append(replace(inner, inputs=ports[0], outputs=ports[1]))
            current = [number[i] for i in body.outputs]
        for at, output in enumerate(operation.outputs):
            source, shape = (
                self._known(rounds[-1].get(at), current[at]),
                self.operands[output].shape,
            )
            copy = Operation("RESHAPE", (source,), (output,), Attributes())
            new_shape = {"new_shape": static_shape(shape) or ()}
            self.operations.append(replace(copy, attributes=spec_of(copy).complete(new_shape)))

    def _add(self, operand: Operand) -> int:
        self.operands.append(operand)
        return len(self.operands) - 1

    def _known(self, value: NDArray | None, index: int) -> int:
        """A constant if the *value* of operand *index* is known and small; otherwise *index*."""
        if value is None or self.operands[index].is_constant or value.nbytes > MAX_COPIED_VALUE:
            return index
        return self._add(constant_of(value))


def constant_of(value: NDArray) -> Operand:
    """A constant operand, of `MAX_COPIED_VALUE` bytes at most."""
    dtype = DType(value.dtype.name)
    return Operand(dtype, value.shape, Lifetime.CONSTANT_COPY, value=value.tobytes())


def _rounds(model: Model, operation: Operation, room: int) -> list[Values] | None:
    """The known rounds of a loop of one type and shape; None if they take more than *room*."""
    body = model.subgraphs[branches_of(operation)[1]]
    rows = zip(
        (model.entry.operands[i] for i in operation.inputs),
        (body.operands[i] for i in body.inputs),
        (body.operands[i] for i in body.outputs),
        (model.entry.operands[i] for i in operation.outputs),
        strict=True,
    )
    for first, *others in rows:
        kept = all(
            (o.dtype, o.shape, o.quantization) == (first.dtype, first.shape, first.quantization)
            for o in others
        )
        if not kept or not is_static(first.shape):
            return None
    rounds = rounds_of(model, operation)
    if rounds is None or (len(rounds) - 1) * len(body.operations) > room:
        return None
    return rounds


def live(operations: Sequence[Operation], wanted: Collection[int]) -> set[int]:
    """The operations that the operands *wanted* depend on (dead code is the rest)."""
    needed, found = set(wanted), set()
    for index in range(len(operations) - 1, -1, -1):
        if not needed.isdisjoint(operations[index].outputs):
            needed.update(operations[index].inputs)
            found.add(index)
    return found


def fits(graph: Subgraph, inputs: Sequence[Operand | None], outputs: Sequence[Operand]) -> bool:
    """Whether a subgraph takes *inputs* and returns *outputs*: same types and static shapes."""
    pairs = [
        (inputs, [graph.operands[i] for i in graph.inputs]),
        (outputs, [graph.operands[i] for i in graph.outputs]),
    ]
    return all(
        len(ours) == len(theirs)
        and all(
            a is not None and a.dtype is b.dtype and a.shape == b.shape and is_static(a.shape)
            for a, b in zip(ours, theirs, strict=True)
        )
        for ours, theirs in pairs
    )


def rounds_of(model: Model, operation: Operation) -> list[Values] | None:
    """The values of a WHILE of a `specialized` model that constant folding knows, by position:
    before each round, and after the last. None if the number of rounds is unknown or above
    `MOST_ROUNDS`.
    """
    condition, body = branches_of(operation)
    operands = model.entry.operands
    values: Values = {
        at: model.constant(operands[i])
        for at, i in enumerate(operation.inputs)
        if operands[i].is_constant
    }
    found = []
    for _ in range(MOST_ROUNDS + 1):
        found.append(values)
        (truth,) = model.subgraphs[condition].outputs
        going = _followed(model, condition, values, [truth]).get(truth)
        if going is None or going.size != 1:
            return None
        if not going.reshape(-1)[0]:
            return found
        outputs = model.subgraphs[body].outputs
        made = _followed(model, body, values, outputs)
        values = {at: made[i] for at, i in enumerate(outputs) if i in made}
    return None


def _followed(
    model: Model, subgraph: int, values: Values, wanted: Sequence[int]
) -> dict[int, NDArray]:
    inputs = model.subgraphs[subgraph].inputs
    return follow(model, subgraph, {inputs[at]: v for at, v in values.items()}, wanted)
