"""Network state made explicit: variables, state ports, and extra operands of control flow.

- READ_VARIABLE becomes a use of the variable's current value, ASSIGN_VARIABLE makes its operand the current
  value; an entry subgraph takes the first value as a state input and gives the last as a state output.
- A variable tensor is the state input of its subgraph; the recurrent operation that changes it gives the new
  value as an extra output, after its own, in the order of its state inputs.
- Branches, loops and composites pass what their subgraphs touch as extra inputs and outputs, after their own.
- CALL_ONCE whose subgraph only assigns constants gives the variables their initial values; any other becomes an
  IF on a boolean variable.
- HASHTABLE_IMPORT of content that is not constant becomes an IF that keeps what the table holds already.
- A random operator takes its generator's position as another input, and gives it as another output.
- DENSIFY of a constant is the constant, which was made dense when it was read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import (
    DuplicateWriter,
    InvalidOperand,
    InvalidOperation,
    InvalidQuantization,
    LimitExceeded,
)
from penstock.export.tflite.state import RANDOM_INPUTS
from penstock.ir.model import StatePort, Subgraph, Variable
from penstock.ir.operand import OMITTED, Lifetime, Operand
from penstock.ir.operation import Attributes, Operation
from penstock.ir.types import DType, byte_size, is_static
from penstock.loaders.tflite.calls import (
    BRANCHES,
    CALLS,
    ENTERED_ANEW,
    LOOPS,
    RANDOM_OPERATORS,
    Key,
    RawSubgraph,
    StateUse,
    call_order,
    find_state,
    handle_of,
    random_state,
    resolve_handles,
    state_inputs,
    state_types,
    table_state,
    value_of,
)
from penstock.loaders.tflite.operators import RawOperator

RESOURCE_OPERATORS: Final = frozenset(
    {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"}
    | {"HASHTABLE", "HASHTABLE_IMPORT", "HASHTABLE_FIND", "HASHTABLE_SIZE"}
)

CONTROL_FLOW: Final = CALLS | BRANCHES | LOOPS


class Lowered(Struct):
    """What lowering gives: subgraphs, variables, and for each subgraph where its tensors went."""

    subgraphs: list[Subgraph]
    variables: list[Variable]
    renamed: list[dict[int, int]]


def lower(raw: list[RawSubgraph], data: memoryview, zero_limit: int) -> Lowered:
    """Lowers all subgraphs of a file with content *data*.

    *zero_limit* bounds the bytes of the initial values that the file does not hold.
    """
    order = call_order(raw)
    if any(o.type in RESOURCE_OPERATORS for s in raw for o in s.operators):
        resolve_handles(raw, order)
        from penstock.loaders.tflite.tables import lower_tables

        lower_tables(raw)
    return _Lowering(raw, data, find_state(raw, order), zero_limit).run()


class _Lowering:
    def __init__(
        self, raw: list[RawSubgraph], data: memoryview, use: StateUse, zero_limit: int
    ) -> None:
        self.raw, self.data, self.use = raw, data, use
        self.types = state_types(raw) if any(use.touched) else {}
        self.roles = self._find_roles()
        self.folded = self._find_folded()
        self.initial = {
            key: operand for values in self.folded.values() for key, operand in values.items()
        }
        self.keys: dict[Key, int] = {}
        self.variables: list[Variable] = []
        self.zero_left = zero_limit
        self.skipping: dict[int, int] = {}
        self.choices: dict[tuple[tuple[DType, DType], bool], int] = {}
        self.extra: list[Subgraph] = []

    def run(self) -> Lowered:
        bodies = [_Body(self, s) for s in self.raw]
        subgraphs = [b.lower() for b in bodies]
        self._assign_passed_on(subgraphs)
        return Lowered(subgraphs + self.extra, self.variables, [b.renamed for b in bodies])

    def _assign_passed_on(self, subgraphs: list[Subgraph]) -> None:
        """Gives zeros to unassigned variables that control flow takes: it may not read them at all."""
        for subgraph in subgraphs:
            taken = {i for o in subgraph.operations if o.type in CONTROL_FLOW for i in o.inputs}
            for port in subgraph.states:
                if port.input in taken:
                    variable = self.variables[port.variable]
                    self.variables[port.variable] = replace(variable, assigned=True)

    def state_operand(self, key: Key) -> Operand:
        """A temporary of the type of the state *key*."""
        match key.kind:
            case "once" | "filled":
                return Operand(DType.BOOL, ())
            case "random":
                return Operand(DType.INT64, ())
        tensor = key.kind == "tensor"
        known = self.raw[key.subgraph].operands[key.number] if tensor else self.types[key]
        return Operand(known.dtype, known.shape, name=known.name, quantization=known.quantization)

    def variable(self, key: Key) -> int:
        """The index of the variable for *key*, made on first use."""
        if key not in self.keys:
            self.keys[key] = len(self.variables)
            self.variables.append(self._variable(key))
        return self.keys[key]

    def _variable(self, key: Key) -> Variable:
        operand = self.state_operand(key)
        owner = f"subgraph_{key.subgraph}" if key.subgraph >= 0 else f"table_{key.number}"
        name = key.name or operand.name or f"{owner}/{key.kind}/{key.number}"
        given = self.initial.get(key)
        if given is not None:
            if self._is_zero(given):
                return Variable(name, given.dtype, given.shape, operand.quantization)
            return Variable(
                name, given.dtype, given.shape, operand.quantization, given.value, given.location
            )
        return Variable(
            name,
            operand.dtype,
            operand.shape,
            operand.quantization,
            self._zeros(key, operand),
            assigned=key.kind != "resource",
        )

    def _is_zero(self, given: Operand) -> bool:
        place = given.location
        if place is None or place.pool:
            return given.value is not None and not any(given.value)
        return not np.frombuffer(
            self.data[place.offset : place.offset + place.length], np.uint8
        ).any()

    def _zeros(self, key: Key, operand: Operand) -> bytes | None:
        """TFLite resets an int8 variable tensor to its zero point, every other one to zero bytes."""
        if key.kind != "tensor" or operand.dtype is not DType.INT8 or operand.quantization is None:
            return None
        zero_point = operand.quantization.zero_point % 256
        if not zero_point or operand.shape is None or not is_static(operand.shape):
            return None
        size = byte_size(operand.dtype, operand.shape) or 0
        self.zero_left -= size
        if self.zero_left < 0:
            raise LimitExceeded(
                f"the initial value of variable tensor {operand.name!r} takes {size} bytes"
            )
        return bytes([zero_point]) * size

    def _find_roles(self) -> list[str]:
        """How each subgraph is entered: entry, branch, cond, body, called or once. State needs one role each."""
        roles = ["entry"] * len(self.raw)
        for subgraph in self.raw:
            for operator in subgraph.operators:
                for target, role in zip(operator.targets, _roles_of(operator), strict=False):
                    if roles[target] not in ("entry", role) and self.use.touched[target]:
                        raise InvalidOperation(
                            f"subgraph {target} has network state and is used both as {roles[target]} and as {role}",
                            where=operator.place,
                        )
                    roles[target] = role
        if self.raw and roles[0] != "entry" and self.use.touched[0]:
            raise InvalidOperation(
                "the main subgraph has network state and is entered by another", where="subgraph 0"
            )
        return roles

    def _find_folded(self) -> dict[int, dict[Key, Operand]]:
        """The CALL_ONCE subgraphs that only give initial values, with these.

        An initial value is a variable's only when no entry subgraph touches it before CALL_ONCE.
        """
        found: dict[int, dict[Key, Operand]] = {}
        owners: dict[Key, int] = {}
        late: set[int] = set()
        for subgraph in self.raw:
            index = subgraph.index
            if self.roles[index] == "once" and (values := _constants_assigned(subgraph)):
                found[index] = values
                for key in values:
                    if owners.setdefault(key, index) != index:
                        late |= {index, owners[key]}
        for subgraph in self.raw:
            if owners and self.roles[subgraph.index] == "entry":
                late |= self._touched_before(subgraph, owners, found.keys())
        return {index: values for index, values in found.items() if index not in late}

    def _touched_before(
        self, subgraph: RawSubgraph, owners: Mapping[Key, int], inits: Collection[int]
    ) -> set[int]:
        """The subgraphs among *inits* whose variables *subgraph* touches before it enters them."""
        entered: set[int] = set()
        late: set[int] = set()
        for operator in subgraph.operators:
            if operator.type == "CALL_ONCE" and operator.targets[0] in inits:
                entered.add(operator.targets[0])
                continue
            touched = [k for t in operator.targets for k in self.use.touched[t]]
            if operator.type in ("READ_VARIABLE", "ASSIGN_VARIABLE"):
                touched.append(handle_of(subgraph, operator))
            late |= {owners[k] for k in touched if k in owners} - entered
        return late

    def skip_subgraph(self, init: int) -> int:
        """A subgraph that passes on unchanged what *init* touches: the branch of a CALL_ONCE already done."""
        if init not in self.skipping:
            body = _Body(self, RawSubgraph(init, "", [], [], (), (), frozenset()))
            self.skipping[init] = len(self.raw) + len(self.extra)
            self.extra.append(body.lower())
        return self.skipping[init]

    def choice(self, types: tuple[DType, DType], second: bool) -> int:
        """A subgraph of two pairs of vectors of these types that gives the first pair, or the *second*."""
        known = self.choices.get((types, second))
        if known is None:
            known = self.choices[types, second] = len(self.raw) + len(self.extra)
            operands = tuple(
                Operand(dtype, (None,), Lifetime.SUBGRAPH_INPUT) for dtype in types * 2
            )
            given = (2, 3) if second else (0, 1)
            self.extra.append(Subgraph(operands, (), (0, 1, 2, 3), given))
        return known


def _roles_of(operator: RawOperator) -> Sequence[str]:
    """How *operator* enters each of its subgraphs."""
    if operator.type in BRANCHES:
        return ("branch",) * len(operator.targets)
    if operator.type in CALLS:
        return ("called",)
    if operator.type in LOOPS:
        return ("cond", "body")
    return ("once",) if operator.type == "CALL_ONCE" else ()


def _constants_assigned(subgraph: RawSubgraph) -> dict[Key, Operand] | None:
    values: dict[Key, Operand] = {}
    if subgraph.inputs or subgraph.outputs:
        return None
    for operator in subgraph.operators:
        if operator.type == "ASSIGN_VARIABLE":
            key, operand = handle_of(subgraph, operator), subgraph.operands[value_of(operator)]
            if key in values or not operand.is_constant:
                return None
            values[key] = operand
        elif operator.type != "VAR_HANDLE":
            return None
    return values


class _Body:
    """Lowers one subgraph. *current* is the operand that holds each piece of state now."""

    def __init__(self, lowering: _Lowering, raw: RawSubgraph) -> None:
        self.lowering, self.raw = lowering, raw
        self.operands: list[Operand] = list(raw.operands)
        self.inputs = frozenset(raw.inputs)
        self.operations: list[Operation] = []
        self.current: dict[Key, int] = {}
        self.state_in: dict[Key, int] = {}
        self.changed: dict[Key, None] = {}
        self.renamed: dict[int, int] = {}
        self.written: set[int] = set()
        self.omitted: int | None = None

    @property
    def is_entry(self) -> bool:
        return self.lowering.roles[self.raw.index] == "entry"

    def lower(self) -> Subgraph:
        raw = self.raw
        use = self.lowering.use
        if not self.is_entry:
            for key in use.touched[raw.index]:
                self.value(key)
        for operator in raw.operators:
            self.operator(operator)
        inputs = self.listed_inputs()
        outputs = [self.read(o) for o in raw.outputs if o not in raw.handles]
        self.renamed.update({o: self.read(o) for o in raw.outputs if o in raw.variables})
        states: list[StatePort] = []
        if self.is_entry:
            states = self.ports()
            inputs += [p.input for p in states if p.input is not None]
            outputs += [p.output for p in states if p.output is not None]
        else:
            inputs += self.state_in.values()
            outputs += [
                self.current[k] for k in self.carried(raw.index, self.lowering.roles[raw.index])
            ]
        self.lifetimes(inputs, outputs)
        return Subgraph(
            tuple(self.operands),
            tuple(self.operations),
            tuple(inputs),
            tuple(outputs),
            tuple(states),
            raw.name,
        )

    def listed_inputs(self) -> list[int]:
        """The inputs that hold values. A tensor listed more than once is one input of an entry subgraph; where an
        operation hands the values over, it takes the last of them (LiteRT), and nobody reads the others.
        """
        inputs = [i for i in self.raw.inputs if i not in self.raw.handles]
        if len(set(inputs)) == len(inputs):
            return inputs
        if self.is_entry:
            return list(dict.fromkeys(inputs))
        return [
            self.add(replace(self.operands[i], origin=None)) if i in inputs[place + 1 :] else i
            for place, i in enumerate(inputs)
        ]

    def carried(self, index: int, role: str) -> list[Key]:
        """The state that a subgraph hands back to the operation that entered it."""
        use = self.lowering.use
        if role == "cond":
            return []
        return list(use.touched[index] if role == "body" else use.written[index])

    def ports(self) -> list[StatePort]:
        """State ports: resource variables first read, then variable tensors, then what is only written."""
        keys = [k for k in self.state_in if k.kind != "tensor"] + [
            k for k in self.state_in if k.kind == "tensor"
        ]
        keys += [k for k in self.changed if k not in self.state_in]
        return [
            StatePort(
                self.lowering.variable(key),
                self.state_in.get(key),
                self.current[key] if key in self.changed else None,
            )
            for key in keys
        ]

    def operator(self, operator: RawOperator) -> None:
        kind = operator.type
        if kind == "VAR_HANDLE":
            return
        if kind == "READ_VARIABLE":
            self.read_variable(operator)
        elif kind == "ASSIGN_VARIABLE":
            key = handle_of(self.raw, operator)
            self.current[key] = self.read(value_of(operator))
            self.changed[key] = None
        elif kind == "CALL_ONCE":
            self.call_once(operator)
        elif kind == "HASHTABLE_IMPORT":
            self.import_table(operator)
        elif (
            kind in ("HASHTABLE_FIND", "HASHTABLE_SIZE") and operator.inputs[0] in self.raw.handles
        ):
            self.look_up(operator)
        elif kind in RANDOM_OPERATORS:
            self.random(operator)
        elif (
            kind == "DENSIFY"
            and len(operator.inputs) == 1 == len(operator.outputs)
            and self.dense(operator.inputs[0])
        ):
            self.renamed[operator.outputs[0]] = operator.inputs[0]
        else:
            self.ordinary(operator)

    def dense(self, tensor: int) -> bool:
        return tensor >= 0 and self.operands[tensor].is_constant

    def ordinary(self, operator: RawOperator) -> None:
        inputs = [self.read(i) for i in operator.inputs if i not in self.raw.handles]
        after = [operator.inputs[i] for i in state_inputs(operator)]
        carried: list[Key] = []
        if operator.type in CONTROL_FLOW and operator.targets:
            target = operator.targets[-1]
            inputs += [self.entering(k) for k in self.lowering.use.touched[target]]
            carried = self.carried(target, "body" if operator.type in LOOPS else "branch")
        outputs = [self.write(o, operator) for o in operator.outputs if o not in self.raw.handles]
        outputs += [self.leaving(key) for key in carried]
        outputs += [self.next_state(tensor) for tensor in after]
        self.emit(operator.type, inputs, outputs, operator)

    def entering(self, key: Key) -> int:
        """What brings *key* to a subgraph: its value, which for variable tensors is the initial one; for a
        generator the beginning of its sequence.
        """
        if key.kind == "random":
            return self.add(Operand(DType.INT64, (), Lifetime.CONSTANT_COPY, value=bytes(8)))
        return self.value(key)

    def leaving(self, key: Key) -> int:
        """What takes *key* from a subgraph; nobody reads how far a generator came, nor what a variable tensor
        holds in the end: both begin anew wherever the subgraph is entered (LiteRT).
        """
        if key.kind in ENTERED_ANEW:
            return self.add(self.lowering.state_operand(key))
        return self.update(key)

    def emit(self, kind: str, inputs: list[int], outputs: list[int], operator: RawOperator) -> None:
        attributes = Attributes(operator.attributes)
        self.operations.append(
            Operation(kind, tuple(inputs), tuple(outputs), attributes, operator.origin)
        )
        self.written.update(outputs)

    def look_up(self, operator: RawOperator) -> None:
        """HASHTABLE_FIND or HASHTABLE_SIZE of a table whose content is state."""
        keys, values, _ = table_state(handle_of(self.raw, operator))
        held = (keys, values) if operator.type == "HASHTABLE_FIND" else (keys,)
        inputs = [self.value(k) for k in held] + [self.read(i) for i in operator.inputs[1:]]
        outputs = [self.write(o, operator) for o in operator.outputs]
        self.emit(operator.type, inputs, outputs, operator)

    def import_table(self, operator: RawOperator) -> None:
        keys, values, filled = table_state(handle_of(self.raw, operator))
        held = [self.value(filled), self.value(keys), self.value(values)]
        brought = [self.read(i) for i in operator.inputs[1:]]
        types = self.operands[held[1]].dtype, self.operands[held[2]].dtype
        attributes = Attributes(
            then_subgraph_index=self.lowering.choice(types, second=False),
            else_subgraph_index=self.lowering.choice(types, second=True),
        )
        outputs = tuple(self.update(k) for k in (keys, values))
        self.operations.append(
            Operation("IF", (*held, *brought), outputs, attributes, operator.origin)
        )
        self.written.update(outputs)
        self.set_true(filled)

    def random(self, operator: RawOperator) -> None:
        """A random operator with its generator's position before and after it, where that is kept."""
        if len(operator.inputs) != RANDOM_INPUTS[operator.type] or len(operator.outputs) != 1:
            raise InvalidOperation(
                f"has {len(operator.inputs)} inputs and {len(operator.outputs)} outputs",
                where=operator.place,
            )
        key = random_state(self.raw.index, operator)
        inputs = [self.read(i) for i in operator.inputs]
        outputs = [self.write(o, operator) for o in operator.outputs]
        if self.raw.index in self.lowering.use.restarted:
            role = self.lowering.roles[self.raw.index]
            if role == "cond" and any(operator.attributes[k] for k in ("seed", "seed2")):
                raise InvalidOperation(
                    "draws from a seeded sequence in the condition of a loop", where=operator.place
                )
            self.emit(operator.type, inputs, outputs, operator)
            return
        self.emit(operator.type, [*inputs, self.value(key)], [*outputs, self.update(key)], operator)

    def set_true(self, key: Key) -> None:
        """From now on the boolean state *key* is true."""
        self.current[key] = self.add(Operand(DType.BOOL, (), Lifetime.CONSTANT_COPY, value=b"\1"))
        self.changed[key] = None

    def key(self, tensor: int) -> Key:
        """The state that variable tensor *tensor* stands for."""
        return Key("tensor", subgraph=self.raw.index, number=tensor)

    def read(self, tensor: int) -> int:
        """The operand that holds tensor *tensor* now."""
        if tensor < 0:
            if self.omitted is None:
                self.omitted = self.add(OMITTED)
            return self.omitted
        if tensor in self.raw.variables:
            return self.value(self.key(tensor))
        return self.renamed.get(tensor, tensor)

    def write(self, tensor: int, operator: RawOperator) -> int:
        """The operand that an operation writes for tensor *tensor*."""
        if tensor in self.raw.variables:
            return self.update(self.key(tensor))
        if tensor in self.renamed:
            raise DuplicateWriter(
                f"writes tensor {tensor}, which has another writer", where=operator.place
            )
        return tensor

    def next_state(self, tensor: int) -> int:
        """The extra output that carries what a recurrent operation leaves in *tensor*."""
        if tensor in self.raw.variables:
            return self.update(self.key(tensor))
        like = self.operands[tensor] if tensor >= 0 else Operand(DType.FLOAT32, None)
        return self.add(Operand(like.dtype, like.shape, quantization=like.quantization))

    def value(self, key: Key) -> int:
        """The operand that holds the state *key* now: its state input unless it was changed."""
        if key not in self.current:
            own = key.kind == "tensor" and key.subgraph == self.raw.index
            if own and key.number < len(self.raw.operands):
                index = key.number
            else:
                index = self.add(self.lowering.state_operand(key))
            self.current[key] = self.state_in[key] = index
        return self.current[key]

    def update(self, key: Key) -> int:
        """A new operand that holds the state *key* from now on."""
        index = self.add(self.lowering.state_operand(key))
        self.current[key] = index
        self.changed[key] = None
        return index

    def add(self, operand: Operand) -> int:
        self.operands.append(operand)
        return len(self.operands) - 1

    def read_variable(self, operator: RawOperator) -> None:
        key, tensor = handle_of(self.raw, operator), value_of(operator)
        index = self.value(key)
        held, wanted = self.operands[index], self.operands[tensor]
        if held.quantization != wanted.quantization:
            raise InvalidQuantization(
                "reads a variable with other quantisation than the value it holds",
                where=operator.place,
            )
        if (
            tensor in self.written
            or tensor in self.renamed
            or tensor in self.inputs
            or wanted.is_constant
        ):
            raise DuplicateWriter(
                f"writes tensor {tensor}, which has another writer", where=operator.place
            )
        self.renamed[tensor] = index

    def call_once(self, operator: RawOperator) -> None:
        if len(operator.targets) != 1 or operator.inputs or operator.outputs:
            raise InvalidOperation("takes no inputs and no outputs", where=operator.place)
        (init,) = operator.targets
        if self.raw_of(init).inputs or self.raw_of(init).outputs:
            raise InvalidOperation(
                f"its subgraph {init} has inputs or outputs", where=operator.place
            )
        touched = list(self.lowering.use.touched[init])
        if init in self.lowering.folded or not touched:
            return
        once = Key("once", subgraph=init)
        inputs = [self.value(once), *(self.value(k) for k in touched)]
        outputs = [self.leaving(k) for k in self.carried(init, "once")]
        skip = self.lowering.skip_subgraph(init)
        attributes = Attributes(then_subgraph_index=skip, else_subgraph_index=init)
        self.operations.append(
            Operation("IF", tuple(inputs), tuple(outputs), attributes, operator.origin)
        )
        self.written.update(outputs)
        self.set_true(once)

    def raw_of(self, index: int) -> RawSubgraph:
        return self.lowering.raw[index]

    def lifetimes(self, inputs: list[int], outputs: list[int]) -> None:
        """Marks inputs and outputs, and gives operands that hold no elements their empty value."""
        operands = self.operands
        for index in inputs:
            operand = operands[index]
            if operand.dtype is DType.RESOURCE:
                raise InvalidOperand(
                    f"input operand {index} ({operand.name}) is a resource of unknown origin"
                )
            operands[index] = replace(
                operand, lifetime=Lifetime.SUBGRAPH_INPUT, value=None, location=None
            )
        known = self.written.union(inputs)
        read = (index for operation in self.operations for index in operation.inputs)
        for index in (*read, *outputs):
            operand = operands[index]
            if index not in known and _is_empty(operand):
                operands[index] = replace(operand, lifetime=Lifetime.CONSTANT_COPY, value=b"")
        for index in outputs:
            if operands[index].lifetime is Lifetime.TEMPORARY_VARIABLE:
                operands[index] = replace(operands[index], lifetime=Lifetime.SUBGRAPH_OUTPUT)


def _is_empty(operand: Operand) -> bool:
    """Whether a temporary holds no elements, so that nothing needs to write it."""
    return (
        operand.lifetime is Lifetime.TEMPORARY_VARIABLE
        and operand.shape is not None
        and 0 in operand.shape
        and is_static(operand.shape)
        and operand.dtype.bits is not None
    )
