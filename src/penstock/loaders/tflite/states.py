"""Network state and hash tables: variables, and the state ports of entry subgraphs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from penstock import errors
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.subgraph import Subgraph, Variable
from penstock.ir.types import DType, byte_size, is_static
from penstock.loaders.tflite.body import Lowered
from penstock.loaders.tflite.calls import (
    CALLS,
    LOOPS,
    StateUse,
    call_order,
    find_state,
    handle_of,
    resolve_handles,
    state_types,
    value_of,
)
from penstock.loaders.tflite.operators import BRANCHES, Key, RawOperator, RawSubgraph
from penstock.loaders.tflite.state_bodies import CONTROL_FLOW, StateBody

RESOURCE_OPERATORS: Final = frozenset(
    {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"}
    | {"HASHTABLE", "HASHTABLE_IMPORT", "HASHTABLE_FIND", "HASHTABLE_SIZE"}
)


def lower_states(raw: list[RawSubgraph], data: memoryview, zero_limit: int) -> Lowered:
    """As `reader.lower`, for a file with state or with operators that enter subgraphs."""
    order = call_order(raw)
    if any(o.type in RESOURCE_OPERATORS for s in raw for o in s.operators):
        resolve_handles(raw, order)
        lower_tables(raw)
    return StateLowering(raw, data, find_state(raw, order), zero_limit).run()


class StateLowering:
    """Lowers all subgraphs of a file, and collects the variables of their state."""

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
        known = self.choices.get((types, second))
        if known is None:
            known = self.choices[types, second] = len(self.raw) + len(self.extra)
            operands = [Operand(t, (None,), Lifetime.SUBGRAPH_INPUT) for t in types * 2]
            result = (2, 3) if second else (0, 1)
            self.extra.append(Subgraph(tuple(operands), (), (0, 1, 2, 3), result))
        return known


def _roles_of(operator: RawOperator) -> Sequence[str]:
    """The role in which *operator* enters each of its subgraphs."""
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


Table: TypeAlias = "tuple[Operand, Operand]"
"""Keys and values, both constants."""


def lower_tables(subgraphs: list[RawSubgraph]) -> None:
    """Rewrites the operators of hash tables with constant content; `resolve_handles` has run.

    TFLite imports keys and values once. Later imports have no effect, and no other operator changes
    a table. A table with a constant import is therefore a pair of constants: HASHTABLE_FIND takes
    keys, values, query and default, HASHTABLE_SIZE the keys. Other tables are state.
    """
    kinds = ("HASHTABLE_IMPORT", "HASHTABLE_FIND", "HASHTABLE_SIZE")
    users = [(s, o) for s in subgraphs for o in s.operators if o.type in kinds]
    tables: dict[Key, Table | None] = {}
    for subgraph, operator in users:
        if operator.type == "HASHTABLE_IMPORT":
            key, content = handle_of(subgraph, operator), _content(subgraph, operator)
            if tables.setdefault(key, content) != content:
                tables[key] = None
    copies: dict[tuple[int, Key], tuple[int, int]] = {}
    for subgraph, operator in users:
        key = handle_of(subgraph, operator)
        if key not in tables:
            raise errors.InvalidOperation("its table is never imported", where=operator.place)
        table = tables[key]
        if operator.type != "HASHTABLE_IMPORT" and table is not None:
            keys, values = _place(subgraph, key, table, copies)
            given = (keys, values) if operator.type == "HASHTABLE_FIND" else (keys,)
            operator.inputs = (*given, *operator.inputs[1:])
    for subgraph in subgraphs:
        subgraph.operators = [
            o
            for o in subgraph.operators
            if o.type != "HASHTABLE"
            and not (o.type == "HASHTABLE_IMPORT" and tables[handle_of(subgraph, o)] is not None)
        ]


def _content(subgraph: RawSubgraph, operator: RawOperator) -> Table | None:
    """The keys and values of an import, if both are constants."""
    if len(operator.inputs) != 3 or min(operator.inputs) < 0:
        raise errors.InvalidOperation("needs a table, keys and values", where=operator.place)
    keys, values = (subgraph.operands[i] for i in operator.inputs[1:])
    return (keys, values) if keys.is_constant and values.is_constant else None


def _place(
    subgraph: RawSubgraph,
    key: Key,
    table: Table,
    copies: dict[tuple[int, Key], tuple[int, int]],
) -> tuple[int, int]:
    """Operand indexes of the table's keys and values in the subgraph that uses it."""
    known = copies.get((subgraph.index, key))
    if known is None:
        known = len(subgraph.operands), len(subgraph.operands) + 1
        subgraph.operands += [replace(o, origin=None) for o in table]
        copies[subgraph.index, key] = known
    return known
