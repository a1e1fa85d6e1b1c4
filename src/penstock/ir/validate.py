"""Validation of a `Model`, once, in its constructor (NNAPI sections 8.2 and 8.4).

It checks indexes; each operand separately (size of its constant, quantisation); that each operand
has one writer and is written before it is read; inputs and outputs; each operation against its row
of the operation table; subgraph references, which must not recurse; and state ports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock import errors
from penstock.arguments import check_kind
from penstock.interrupts import polled
from penstock.ir.operand import ExtensionType, Lifetime, Operand, type_fault
from penstock.ir.operations import spec_of
from penstock.ir.subgraph import ModelParts, Signature, Subgraph, Variable
from penstock.ir.types import MAX_RANK, DType, Quantization, byte_size, is_static

if TYPE_CHECKING:
    from penstock.ir.operation import Operation

MAX_DEPTH: Final = 128
"""Greatest nesting depth of subgraphs."""


def validate(model: ModelParts) -> None:
    """Raises the `ModelError` of the first defect. Returns if there is none."""
    check_kind(
        model.subgraphs, (tuple, list), "a model (ModelBuilder makes one) has a tuple of Subgraphs"
    )
    for subgraph in model.subgraphs:
        check_kind(subgraph, Subgraph, "a model (ModelBuilder makes one) is made of Subgraphs")
    if not 0 <= model.main < len(model.subgraphs):
        raise errors.IndexOutOfRange(f"main subgraph {model.main} of {len(model.subgraphs)}")
    for index, variable in enumerate(model.variables):
        try:
            _check_variable(model, variable)
        except errors.ModelError as error:
            raise error.at(f"variable {index} ({variable.name})") from None
    for index, subgraph in enumerate(model.subgraphs):
        _Checker(model, subgraph, index).run()
    _check_calls(model)
    ports: dict[int, _Ports] = {}
    for name, signature in model.signatures.items():
        try:
            _check_signature(model, signature, ports)
        except errors.ModelError as error:
            raise error.at(f"signature {name!r}") from None


def subgraph_references(operation: Operation) -> list[int]:
    """The subgraphs that *operation* refers to, in the order of its attributes."""
    found: list[int] = []
    for spec in spec_of(operation).attributes:
        if spec.kind == "subgraph" and operation.attributes.get(spec.name, -1) != -1:
            found.append(operation.attributes.integer(spec.name))
        elif spec.kind == "subgraphs" and spec.name in operation.attributes:
            found += operation.attributes.integers(spec.name)
    return found


def reachable(model: ModelParts, roots: Iterable[int]) -> list[int]:
    """The subgraphs *roots* and all that they enter, directly or indirectly, breadth first."""
    order: dict[int, None] = {}
    pending = deque(roots)
    while pending:
        index = pending.popleft()
        if index not in order:
            order[index] = None
            operations = model.subgraphs[index].operations
            pending += [t for o in operations for t in subgraph_references(o)]
    return list(order)


class _Checker:
    def __init__(self, model: ModelParts, subgraph: Subgraph, index: int) -> None:
        self.model, self.subgraph, self.index = model, subgraph, index
        self.count = len(subgraph.operands)

    def run(self) -> None:
        subgraph = self.subgraph
        place = errors.Place(self.index)
        try:
            for index, operand in enumerate(polled(subgraph.operands)):
                place = errors.Place(self.index, operand=index, name=operand.name)
                _check_operand(self.model, operand)
            place = errors.Place(self.index)
            self._check_lists()
            written: set[int] = set(subgraph.inputs)
            produced = {o for operation in subgraph.operations for o in operation.outputs}
            for index, operation in enumerate(polled(subgraph.operations)):
                place = errors.Place(self.index, index, type=operation.type)
                self._check_operation(operation, written, produced)
            place = errors.Place(self.index)
            for output in subgraph.outputs:
                operand = subgraph.operands[output]
                if operand.lifetime is Lifetime.SUBGRAPH_OUTPUT and output not in written:
                    raise errors.UnwrittenOperand(
                        f"output operand {output} ({operand.name}) is never written"
                    )
            self._check_states()
        except errors.ModelError as error:
            raise error.at(place) from None

    def _check_lists(self) -> None:
        subgraph = self.subgraph
        for kind, indexes in (("input", subgraph.inputs), ("output", subgraph.outputs)):
            for index in indexes:
                if not 0 <= index < self.count:
                    raise errors.IndexOutOfRange(f"{kind} operand {index} of {self.count}")
        inputs, outputs = set(subgraph.inputs), set(subgraph.outputs)
        if len(inputs) != len(subgraph.inputs):
            raise errors.DuplicateWriter("an operand is listed as input twice")
        for index, operand in enumerate(subgraph.operands):
            lifetime = operand.lifetime
            fault = ""
            if (lifetime is Lifetime.SUBGRAPH_INPUT) != (index in inputs):
                fault = f"is {'' if index in inputs else 'not '}listed as input"
            elif lifetime is Lifetime.SUBGRAPH_OUTPUT and index not in outputs:
                fault = "is not listed as output"
            elif index in outputs and lifetime in (
                Lifetime.TEMPORARY_VARIABLE,
                Lifetime.NO_VALUE,
            ):
                fault = "is listed as output"
            if fault:
                raise errors.InvalidOperand(
                    f"operand {index} ({operand.name}) has lifetime {lifetime.value} and {fault}"
                )

    def _check_operation(self, operation: Operation, written: set[int], produced: set[int]) -> None:
        operands = self.subgraph.operands
        for index in (*operation.inputs, *operation.outputs):
            if not 0 <= index < self.count:
                raise errors.IndexOutOfRange(f"operand {index} of {self.count}")
        for index in operation.inputs:
            operand = operands[index]
            if index in written or operand.is_constant or operand.lifetime is Lifetime.NO_VALUE:
                continue
            if index in produced:
                raise errors.CyclicModel(
                    f"reads operand {index} ({operand.name}), which is only written later"
                )
            raise errors.UnwrittenOperand(
                f"reads operand {index} ({operand.name}), which nothing writes"
            )
        spec_of(operation).check(operation, operands)
        for index in operation.outputs:
            lifetime = operands[index].lifetime
            if index in written or lifetime not in (
                Lifetime.TEMPORARY_VARIABLE,
                Lifetime.SUBGRAPH_OUTPUT,
            ):
                raise errors.DuplicateWriter(
                    f"writes operand {index} ({operands[index].name}), which "
                    + ("has another writer" if index in written else f"is a {lifetime.value}")
                )
            written.add(index)
        for target in subgraph_references(operation):
            if not 0 <= target < len(self.model.subgraphs):
                raise errors.IndexOutOfRange(
                    f"refers to subgraph {target} of {len(self.model.subgraphs)}"
                )

    def _check_states(self) -> None:
        subgraph, variables = self.subgraph, self.model.variables
        ins = tuple(p.input for p in subgraph.states if p.input is not None)
        outs = tuple(p.output for p in subgraph.states if p.output is not None)
        for kind, listed, states in (("in", subgraph.inputs, ins), ("out", subgraph.outputs, outs)):
            if listed[len(listed) - len(states) :] != states:
                raise errors.InvalidOperand(
                    f"state {kind}puts must end the list of {kind}puts, in the order of the ports"
                )
        used = [port.variable for port in subgraph.states]
        if len(set(used)) != len(used):
            raise errors.DuplicateWriter("a variable has two state ports")
        for port in subgraph.states:
            if not 0 <= port.variable < len(variables):
                raise errors.IndexOutOfRange(f"variable {port.variable} of {len(variables)}")
            variable = variables[port.variable]
            for index in (port.input, port.output):
                if index is not None and subgraph.operands[index].dtype is not variable.dtype:
                    raise errors.InvalidOperand(
                        f"state operand {index} is {subgraph.operands[index].dtype.value}, "
                        f"variable {variable.name!r} is {variable.dtype.value}"
                    )


def _check_variable(model: ModelParts, variable: Variable) -> None:
    _check_shape(variable)
    if variable.value is not None and variable.location is not None:
        raise errors.InvalidOperand("an initial value stands in the model or in a pool, not both")
    if not variable.assigned and (variable.value is not None or variable.location is not None):
        raise errors.InvalidOperand("an unassigned variable has an initial value")
    _check_value(model, variable)


def _check_operand(model: ModelParts, operand: Operand) -> None:
    _check_shape(operand)
    if operand.is_constant:
        copied = operand.lifetime is Lifetime.CONSTANT_COPY
        if copied in (operand.value is None, operand.location is not None):
            raise errors.InvalidOperand(
                "a constant_copy has a value, a constant_pool a location, never both"
            )
        _check_value(model, operand)
    elif operand.value is not None or operand.location is not None:
        raise errors.InvalidOperand(f"a {operand.lifetime.value} operand cannot hold a value")


def _check_shape(item: Operand | Variable) -> None:
    shape = item.shape
    if shape is not None:
        if not isinstance(shape, tuple):
            raise errors.InvalidOperand(f"a shape must be a tuple, not a {type(shape).__name__}")
        if len(shape) > MAX_RANK:
            raise errors.ShapeOverflow(f"{len(shape)} dimensions; the limit is {MAX_RANK}")
        for dimension in shape:
            if dimension is None:
                continue
            if type(dimension) is not int:
                raise errors.InvalidOperand(f"dimension {dimension!r} is not an int")
            if dimension < 0:
                raise errors.ShapeOverflow(f"dimension {dimension} is negative")
        if is_static(shape):
            byte_size(item.dtype, shape)
    if item.quantization is not None:
        _check_quantization(item, item.quantization)
    if isinstance(item, Operand) and item.extension is not None:
        _check_extension(item, item.extension)


def _check_extension(operand: Operand, kind: ExtensionType) -> None:
    check_kind(kind, ExtensionType, "an operand's extension is an ExtensionType")
    if fault := type_fault(kind):
        raise errors.InvalidOperand(fault)
    shape = operand.shape
    rank = None if shape is None else len(shape)
    fits = kind.is_tensor if shape is None else shape[-1:] == (kind.byte_size,)
    if (
        operand.dtype is not DType.UINT8
        or operand.quantization is not None
        or not (fits and (kind.is_tensor or rank == 1))
    ):
        raise errors.InvalidOperand(
            f"an operand of the {'tensor' if kind.is_tensor else 'scalar'} type {kind.name} is "
            "uint8 without quantisation "
            f"whose last{'' if kind.is_tensor else ' and only'} dimension is {kind.byte_size}, "
            f"not {operand.dtype.value} of shape {shape}"
        )


def _check_quantization(item: Operand | Variable, quantization: Quantization) -> None:
    axis, shape, dtype = quantization.dimension, item.shape, item.dtype
    if isinstance(item, Operand) and not item.shape_declared:
        # Until its rank is inferred, it looks like a scalar.
        shape = shape or None
    if axis is not None and shape is not None:
        if not 0 <= axis < len(shape):
            raise errors.InvalidQuantization(
                f"quantised dimension {axis} of a rank-{len(shape)} operand"
            )
        if shape[axis] not in (None, len(quantization.scales)):
            raise errors.InvalidQuantization(
                f"{len(quantization.scales)} scales for dimension {axis} of size {shape[axis]}"
            )
    if dtype.is_integer and dtype.bits is not None and dtype.bits <= 16:
        low = -(1 << (dtype.bits - 1)) if dtype.value.startswith("int") else 0
        high = low + (1 << dtype.bits) - 1
        for zero_point in quantization.zero_points:
            if not low <= zero_point <= high:
                raise errors.InvalidQuantization(
                    f"zero point {zero_point} is outside [{low}, {high}] of {dtype.value}"
                )


def _check_value(model: ModelParts, item: Operand | Variable) -> None:
    if (place := item.location) is not None:
        if not 0 <= place.pool < len(model.pools):
            raise errors.IndexOutOfRange(f"pool {place.pool} of {len(model.pools)}")
        end, size = place.offset + place.length, len(model.pools[place.pool])
        if place.offset < 0 or place.length < 0 or end > size:
            raise errors.OffsetOutOfBounds(f"[{place.offset}, {end}) of a pool of {size} bytes")
        length = place.length
    elif item.value is not None:
        length = len(item.value)
    else:
        return
    if not is_static(item.shape) or item.shape is None:
        raise errors.InvalidOperand("a constant's shape must be fully known")
    expected = byte_size(item.dtype, item.shape)
    if expected is not None and expected != length:
        raise errors.InvalidOperand(
            f"{item.dtype.value} of shape {item.shape} takes {expected} bytes, its value has "
            f"{length}"
        )


RUNS_SUBGRAPHS: Final = frozenset({"IF", "WHILE", "CALL", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE"})


def _check_calls(model: ModelParts) -> None:
    """Checks references to subgraphs (NNAPI section 8.5).

    Subgraphs must not recurse, and entered subgraphs have no state ports. The values that an
    operation passes and receives must match the subgraph's inputs and outputs.
    """
    entered: list[list[int]] = []
    calls: list[tuple[int, int, list[int]]] = []
    for index, subgraph in enumerate(polled(model.subgraphs)):
        references = [subgraph_references(operation) for operation in subgraph.operations]
        entered.append(sorted({target for targets in references for target in targets}))
        calls += [
            (index, at, targets)
            for at, (operation, targets) in enumerate(
                zip(subgraph.operations, references, strict=True)
            )
            if targets or operation.type in RUNS_SUBGRAPHS
        ]
    callees_first(entered)
    for index, at, targets in calls:
        subgraph = model.subgraphs[index]
        operation = subgraph.operations[at]
        try:
            for target in targets:
                if model.subgraphs[target].states:
                    raise errors.InvalidOperation(
                        f"subgraph {target} has state ports, which only an entry subgraph can have"
                    )
            if operation.type in RUNS_SUBGRAPHS:
                _check_arguments(model, subgraph, operation, targets)
        except errors.ModelError as error:
            raise error.at(errors.Place(index, at, type=operation.type)) from None


def _check_arguments(
    model: ModelParts, subgraph: Subgraph, operation: Operation, targets: list[int]
) -> None:
    inputs, outputs = operation.inputs, operation.outputs
    if operation.type == "WHILE":
        names = ("cond_subgraph_index", "body_subgraph_index")
        condition, body = (operation.attributes.integer(name) for name in names)
        if -1 in {condition, body}:
            raise errors.InvalidOperation("WHILE needs a condition and a body")
        _check_call(model, subgraph, condition, inputs, None)
        targets = [body]
    else:
        inputs = tuple(i for i in inputs if subgraph.operands[i].has_value)
        inputs = inputs[1:] if operation.type in {"IF", "STABLEHLO_CASE"} else inputs
    for target in dict.fromkeys(targets):
        _check_call(model, subgraph, target, inputs, outputs)


def _check_call(
    model: ModelParts,
    caller: Subgraph,
    target: int,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...] | None,
) -> None:
    """*outputs* is None for a condition, which gives one boolean."""
    called = model.subgraphs[target]
    pairs = [("takes", inputs, called.inputs)]
    if outputs is not None:
        pairs.append(("gives", outputs, called.outputs))
    elif [called.operands[i].dtype for i in called.outputs] != [DType.BOOL]:
        raise errors.InvalidOperation(f"condition {target} does not give one bool")
    for verb, passed, listed in pairs:
        given = [_kind(caller.operands[i]) for i in passed]
        wanted = [_kind(called.operands[i]) for i in listed]
        if given != wanted:
            raise errors.InvalidOperation(
                f"subgraph {target} {verb} {', '.join(wanted) or 'nothing'}, "
                f"not {', '.join(given) or 'nothing'}"
            )
        for one, other in zip(passed, listed, strict=True):
            if caller.operands[one].extension != called.operands[other].extension:
                raise errors.InvalidOperation(
                    f"operand {other} that subgraph {target} {verb} has other extension data"
                )


def _kind(operand: Operand) -> str:
    """The element type of the values."""
    return operand.dtype.value if operand.extension is None else operand.extension.name


_Ports: TypeAlias = tuple[frozenset[int], frozenset[int]]
"""The inputs and the outputs of a subgraph that signatures name."""


def _check_signature(model: ModelParts, signature: Signature, ports: dict[int, _Ports]) -> None:
    """*ports* are the ports of the subgraphs of earlier signatures."""
    subgraph = signature.subgraph
    if not 0 <= subgraph < len(model.subgraphs):
        raise errors.InvalidSignature(f"subgraph {subgraph} of {len(model.subgraphs)}")
    if subgraph not in ports:
        target = model.subgraphs[subgraph]
        ports[subgraph] = frozenset(target.ordinary_inputs), frozenset(target.ordinary_outputs)
    named = (("input", signature.inputs), ("output", signature.outputs))
    for (kind, pairs), known in zip(named, ports[subgraph], strict=True):
        labels = [label for label, _ in pairs]
        if len(set(labels)) != len(labels):
            raise errors.InvalidSignature(f"two {kind}s have one name")
        for label, operand in pairs:
            if operand not in known:
                raise errors.InvalidSignature(
                    f"{kind} {label!r} is operand {operand}, not an {kind} of it"
                )


def callees_first(calls: Sequence[Sequence[int]]) -> list[int]:
    """The subgraphs, each after all those that it enters. *calls* has the indexes that each one
    enters.

    Raises `CyclicModel` if a subgraph enters itself, directly or indirectly, and `LimitExceeded` if
    they are nested more than `MAX_DEPTH` deep. Each is visited once, whatever the number of
    references.
    """
    order: list[int] = []
    # The nesting depth below each finished subgraph. Not recursive: a file may chain as many
    # subgraphs as it contains.
    depths: dict[int, int] = {}
    for root in range(len(calls)):
        if root in depths:
            continue
        stack, path = [(root, iter(calls[root]))], {root}
        while stack:
            node, pending = stack[-1]
            target = next(pending, None)
            if target is None:
                stack.pop()
                path.discard(node)
                depths[node] = depth = 1 + max((depths[t] for t in calls[node]), default=-1)
                if depth > MAX_DEPTH:
                    raise errors.LimitExceeded(
                        f"it enters subgraphs {depth} deep; the limit is {MAX_DEPTH}",
                        where=errors.Place(node),
                    )
                order.append(node)
            elif target in path:
                raise errors.CyclicModel(
                    f"subgraph {target} is entered again from within itself",
                    where=errors.Place(node),
                )
            elif target not in depths:
                path.add(target)
                stack.append((target, iter(calls[target])))
    return order
