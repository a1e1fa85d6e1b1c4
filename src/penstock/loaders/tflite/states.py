"""Network state and hash tables: variables, and the state ports of entry subgraphs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock import errors
from penstock.export.tflite.fields import RANDOM_INPUTS
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.operation import Attributes
from penstock.ir.subgraph import StatePort, Subgraph, Variable
from penstock.ir.types import DType, byte_size, is_static
from penstock.loaders.tflite import calls
from penstock.loaders.tflite.body import Body, Lowered, duplicate_writer
from penstock.loaders.tflite.calls import handle_of, tensor_state, value_of
from penstock.loaders.tflite.operators import (
    BRANCHES,
    RESOURCE_OPERATORS,
    Key,
    RawOperator,
    RawSubgraph,
)

CONTROL_FLOW: Final = calls.CALLS | BRANCHES | calls.LOOPS
"""Operators that pass values to subgraphs, and therefore state."""


def lower_states(raw: list[RawSubgraph], data: memoryview, zero_limit: int) -> Lowered:
    """As `reader.lower`, for a file with state or with operators that enter subgraphs."""
    order = calls.call_order(raw)
    if any(o.type in RESOURCE_OPERATORS for s in raw for o in s.operators):
        calls.resolve_handles(raw, order)
        calls.lower_tables(raw)
    return StateLowering(raw, data, calls.find_state(raw, order), zero_limit).run()


class StateLowering:
    """Lowers all subgraphs of a file, and collects the variables of their state."""

    def __init__(
        self, raw: list[RawSubgraph], data: memoryview, use: calls.StateUse, zero_limit: int
    ) -> None:
        self.raw, self.data, self.use = raw, data, use
        self.types = calls.state_types(raw) if any(use.touched) else {}
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
        bodies = [StateBody(self, s) for s in self.raw]
        subgraphs = [b.lower() for b in bodies]
        self._assign_passed_on(subgraphs)
        return Lowered(subgraphs + self.extra, self.variables, [b.renamed for b in bodies])

    def _assign_passed_on(self, subgraphs: list[Subgraph]) -> None:
        """Assigns zeros to unassigned variables that are passed to control flow. Unassigned
        variables may not be read.
        """
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
        """The index of the variable for *key*, which is created on first use."""
        if key not in self.keys:
            self.keys[key] = len(self.variables)
            self.variables.append(self._variable(key))
        return self.keys[key]

    def _variable(self, key: Key) -> Variable:
        operand = self.state_operand(key)
        owner = f"subgraph_{key.subgraph}" if key.subgraph >= 0 else f"table_{key.number}"
        name = key.name or operand.name or f"{owner}/{key.kind}/{key.number}"
        given, quantization = self.initial.get(key), operand.quantization
        if given is None:
            value, assigned = self._zeros(key, operand), key.kind != "resource"
            return Variable(
                name, operand.dtype, operand.shape, quantization, value, assigned=assigned
            )
        held = (None, None) if self._is_zero(given) else (given.value, given.location)
        return Variable(name, given.dtype, given.shape, quantization, *held)

    def _is_zero(self, given: Operand) -> bool:
        place = given.location
        if place is None or place.pool:
            return given.value is not None and not any(given.value)
        return not np.frombuffer(
            self.data[place.offset : place.offset + place.length], np.uint8
        ).any()

    def _zeros(self, key: Key, operand: Operand) -> bytes | None:
        """The zero point of an int8 variable tensor. TFLite resets other types to zero bytes."""
        if key.kind != "tensor" or operand.dtype is not DType.INT8 or operand.quantization is None:
            return None
        zero_point = operand.quantization.zero_point % 256
        if not zero_point or operand.shape is None or not is_static(operand.shape):
            return None
        size = byte_size(operand.dtype, operand.shape) or 0
        self.zero_left -= size
        if self.zero_left < 0:
            raise errors.LimitExceeded(
                f"the initial value of variable tensor {operand.name!r} takes {size} bytes"
            )
        return bytes([zero_point]) * size

    def _find_roles(self) -> list[str]:
        """The role of each subgraph: entry, branch, cond, body, called or once. A subgraph with
        state has a single role.
        """
        roles = ["entry"] * len(self.raw)
        for subgraph in self.raw:
            for operator in subgraph.operators:
                for target, role in zip(operator.targets, _roles_of(operator), strict=False):
                    if roles[target] not in ("entry", role) and self.use.touched[target]:
                        raise errors.InvalidOperation(
                            f"subgraph {target} has network state and is used both as "
                            f"{roles[target]} and as {role}",
                            where=operator.place,
                        )
                    roles[target] = role
        if self.raw and roles[0] != "entry" and self.use.touched[0]:
            raise errors.InvalidOperation(
                "the main subgraph has network state and is entered by another",
                where=errors.Place(0),
            )
        return roles

    def _find_folded(self) -> dict[int, dict[Key, Operand]]:
        """The CALL_ONCE subgraphs that only assign initial values, with these values.

        A value is initial only if no entry subgraph touches the variable before CALL_ONCE.
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
        """A subgraph that returns unchanged the state that *init* touches: the branch of a
        CALL_ONCE that has already run.
        """
        if init not in self.skipping:
            body = StateBody(self, RawSubgraph(init, "", [], [], (), (), frozenset()))
            self.skipping[init] = len(self.raw) + len(self.extra)
            self.extra.append(body.lower())
        return self.skipping[init]

    def choice(self, types: tuple[DType, DType], second: bool) -> int:
        """A subgraph that takes two pairs of vectors and returns the first or the *second* pair."""
        if (types, second) not in self.choices:
            self.choices[types, second] = len(self.raw) + len(self.extra)
            operands = [Operand(t, (None,), Lifetime.SUBGRAPH_INPUT) for t in types * 2]
            result = (2, 3) if second else (0, 1)
            self.extra.append(Subgraph(tuple(operands), (), (0, 1, 2, 3), result))
        return self.choices[types, second]


def _roles_of(operator: RawOperator) -> Sequence[str]:
    """The role in which *operator* enters each of its subgraphs."""
    if operator.type in BRANCHES:
        return ("branch",) * len(operator.targets)
    if operator.type in calls.CALLS:
        return ("called",)
    if operator.type in calls.LOOPS:
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


class StateBody(Body):
    """Lowers one subgraph with state. *current* maps each piece of state to the operand that has
    its value.
    """

    def __init__(self, lowering: StateLowering, raw: RawSubgraph) -> None:
        super().__init__(raw)
        self.lowering = lowering
        self.inputs = frozenset(raw.inputs)
        self.current: dict[Key, int] = {}
        self.state_in: dict[Key, int] = {}
        self.changed: dict[Key, None] = {}

    @property
    def is_entry(self) -> bool:
        return self.lowering.roles[self.raw.index] == "entry"

    def lower(self) -> Subgraph:
        raw = self.raw
        if not self.is_entry:
            for key in self.lowering.use.touched[raw.index]:
                self.value(key)
        self.lower_operators()
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
            role = self.lowering.roles[raw.index]
            outputs += [self.current[k] for k in self.carried(raw.index, role)]
        return self.finish(inputs, outputs, states)

    def listed_inputs(self) -> list[int]:
        """The inputs that have values.

        A tensor that an entry subgraph lists several times is one input. If an operation passes the
        values, the tensor gets the last of them (LiteRT), and the others are not read.
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
        """The state that a subgraph returns to the operation that entered it."""
        use = self.lowering.use
        if role == "cond":
            return []
        return list(use.touched[index] if role == "body" else use.written[index])

    def ports(self) -> list[StatePort]:
        """State ports: resource variables that are read, variable tensors, then state that is only
        written.
        """
        keys = sorted(self.state_in, key=lambda k: k.kind == "tensor")
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
        match operator.type:
            case "VAR_HANDLE":
                return
            case "READ_VARIABLE":
                self.read_variable(operator)
            case "ASSIGN_VARIABLE":
                key = handle_of(self.raw, operator)
                self.current[key] = self.read(value_of(operator))
                self.changed[key] = None
            case "CALL_ONCE":
                self.call_once(operator)
            case "HASHTABLE_IMPORT":
                self.import_table(operator)
            case "HASHTABLE_FIND" | "HASHTABLE_SIZE" if operator.inputs[0] in self.raw.handles:
                self.look_up(operator)
            case kind if kind in RANDOM_INPUTS:
                self.random(operator)
            case _:
                super().operator(operator)

    def ordinary(self, operator: RawOperator) -> None:
        inputs = [self.read(i) for i in operator.inputs if i not in self.raw.handles]
        after = [operator.inputs[i] for i in calls.state_inputs(operator)]
        carried: list[Key] = []
        if operator.type in CONTROL_FLOW and operator.targets:
            target = operator.targets[-1]
            inputs += [self.entering(k) for k in self.lowering.use.touched[target]]
            carried = self.carried(target, "body" if operator.type in calls.LOOPS else "branch")
        outputs = [self.write(o) for o in operator.outputs if o not in self.raw.handles]
        outputs += [self.leaving(key) for key in carried]
        outputs += [self.next_state(tensor) for tensor in after]
        self.emit(operator.type, inputs, outputs, operator)

    def entering(self, key: Key) -> int:
        """The operand that passes *key* to a subgraph: the value of the state, or for a generator
        the start of its sequence.
        """
        if key.kind == "random":
            return self.add(Operand(DType.INT64, (), Lifetime.CONSTANT_COPY, value=bytes(8)))
        return self.value(key)

    def leaving(self, key: Key) -> int:
        """The operand that returns *key* from a subgraph. Generators and variable tensors restart
        at each entry of a subgraph (LiteRT), so the values that they return are not read.
        """
        if key.kind in calls.ENTERED_ANEW:
            return self.add(self.lowering.state_operand(key))
        return self.update(key)

    def look_up(self, operator: RawOperator) -> None:
        """HASHTABLE_FIND or HASHTABLE_SIZE of a table with state as its content."""
        keys, values, _ = calls.table_state(handle_of(self.raw, operator))
        held = (keys, values) if operator.type == "HASHTABLE_FIND" else (keys,)
        inputs = [self.value(k) for k in held] + [self.read(i) for i in operator.inputs[1:]]
        outputs = [self.write(o) for o in operator.outputs]
        self.emit(operator.type, inputs, outputs, operator)

    def import_table(self, operator: RawOperator) -> None:
        keys, values, filled = calls.table_state(handle_of(self.raw, operator))
        held = [self.value(filled), self.value(keys), self.value(values)]
        brought = [self.read(i) for i in operator.inputs[1:]]
        types = self.operands[held[1]].dtype, self.operands[held[2]].dtype
        targets = (self.lowering.choice(types, False), self.lowering.choice(types, True))
        outputs = [self.update(k) for k in (keys, values)]
        self.branch([*held, *brought], outputs, targets, operator)
        self.set_true(filled)

    def branch(
        self, inputs: list[int], outputs: list[int], targets: tuple[int, int], operator: RawOperator
    ) -> None:
        """Appends an IF in place of *operator*."""
        attributes = Attributes(then_subgraph_index=targets[0], else_subgraph_index=targets[1])
        self.append("IF", inputs, outputs, attributes, operator.origin)

    def random(self, operator: RawOperator) -> None:
        """A random operator. If its generator's position is state, it is an additional input and
        output.
        """
        if len(operator.inputs) != RANDOM_INPUTS[operator.type] or len(operator.outputs) != 1:
            raise errors.InvalidOperation(
                f"has {len(operator.inputs)} inputs and {len(operator.outputs)} outputs"
            )
        key = calls.random_state(self.raw.index, operator)
        inputs = [self.read(i) for i in operator.inputs]
        outputs = [self.write(o) for o in operator.outputs]
        if self.raw.index in self.lowering.use.restarted:
            role = self.lowering.roles[self.raw.index]
            if role == "cond" and any(operator.attributes[k] for k in ("seed", "seed2")):
                raise errors.InvalidOperation(
                    "draws from a seeded sequence in the condition of a loop"
                )
        else:
            inputs, outputs = [*inputs, self.value(key)], [*outputs, self.update(key)]
        self.emit(operator.type, inputs, outputs, operator)

    def set_true(self, key: Key) -> None:
        """Sets the boolean state *key*."""
        self.current[key] = self.add(Operand(DType.BOOL, (), Lifetime.CONSTANT_COPY, value=b"\1"))
        self.changed[key] = None

    def read(self, tensor: int) -> int:
        """The current operand of tensor *tensor*."""
        if tensor in self.raw.variables:
            return self.value(tensor_state(self.raw, tensor))
        return super().read(tensor)

    def write(self, tensor: int) -> int:
        """The operand that an operation writes for tensor *tensor*."""
        if tensor in self.raw.variables:
            return self.update(tensor_state(self.raw, tensor))
        return super().write(tensor)

    def next_state(self, tensor: int) -> int:
        """The extra output with the new value of *tensor*, the state of a recurrent operation."""
        if tensor in self.raw.variables:
            return self.update(tensor_state(self.raw, tensor))
        like = self.operands[tensor] if tensor >= 0 else Operand(DType.FLOAT32, None)
        return self.add(Operand(like.dtype, like.shape, quantization=like.quantization))

    def value(self, key: Key) -> int:
        """The operand with the state *key*: its state input, unless it was changed."""
        if key not in self.current:
            own = key.kind == "tensor" and key.subgraph == self.raw.index
            if own and key.number < len(self.raw.operands):
                index = key.number
            else:
                index = self.add(self.lowering.state_operand(key))
            self.current[key] = self.state_in[key] = index
        return self.current[key]

    def update(self, key: Key) -> int:
        """A new operand for the state *key*."""
        index = self.add(self.lowering.state_operand(key))
        self.current[key] = index
        self.changed[key] = None
        return index

    def read_variable(self, operator: RawOperator) -> None:
        key, tensor = handle_of(self.raw, operator), value_of(operator)
        index = self.value(key)
        held, wanted = self.operands[index], self.operands[tensor]
        if held.quantization != wanted.quantization:
            raise errors.InvalidQuantization(
                "reads a variable with other quantisation than the value it holds"
            )
        if wanted.is_constant or any(
            tensor in known for known in (self.written, self.renamed, self.inputs)
        ):
            raise duplicate_writer(tensor)
        self.renamed[tensor] = index

    def call_once(self, operator: RawOperator) -> None:
        if len(operator.targets) != 1 or operator.inputs or operator.outputs:
            raise errors.InvalidOperation("takes no inputs and no outputs")
        (init,) = operator.targets
        if self.lowering.raw[init].inputs or self.lowering.raw[init].outputs:
            raise errors.InvalidOperation(f"its subgraph {init} has inputs or outputs")
        touched = list(self.lowering.use.touched[init])
        if init in self.lowering.folded or not touched:
            return
        once = Key("once", subgraph=init)
        inputs = [self.value(once), *(self.value(k) for k in touched)]
        outputs = [self.leaving(k) for k in self.carried(init, "once")]
        self.branch(inputs, outputs, (self.lowering.skip_subgraph(init), init), operator)
        self.set_true(once)
