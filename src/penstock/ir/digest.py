"""The canonical digest of a model: SHA-256 of its structure and of its constants.

Two models have equal digests if they compute the same result with the same operations, in whatever
way they were built. Operands are numbered in the order in which operations refer to them. So unused
operands, operand order, pool layout, names, origins, signatures and metadata do not affect the
digest. Every field is prefixed with its length, so that different models never hash the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Final

from penstock.interrupts import polled
from penstock.ir.form import Digest, Form
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.subgraph import ModelParts, constant_bytes
from penstock.ir.types import Quantization
from penstock.ir.validate import reachable, subgraph_references

if TYPE_CHECKING:
    from penstock.ir.operand import ExtensionType
    from penstock.ir.operation import AttributeValue, Operation
    from penstock.ir.subgraph import Subgraph, Variable

SCHEMA = b"penstock-ir-1"

CHUNK: Final = 1 << 24
"""Number of bytes that are hashed between two checks of the deadline."""


class _Hasher:
    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self.put("schema", SCHEMA)

    def put(self, label: str, *values: object) -> None:
        for value in (label, *values):
            data = value if isinstance(value, bytes | memoryview) else repr(value).encode()
            size = data.nbytes if isinstance(data, memoryview) else len(data)
            self.sha.update(struct.pack("<Q", size))
            for start in polled(range(0, size, CHUNK)) if size > CHUNK else ():
                self.sha.update(memoryview(data)[start : start + CHUNK])
            if size <= CHUNK:
                self.sha.update(data)


def digest_model(model: ModelParts) -> Digest:
    """The digest of *model*, entered through `model.main`. Unreachable subgraphs do not affect
    it.
    """
    constants = _Hasher()
    structure = _ModelHash(model, constants).structure
    _unload(model)
    return Digest(structure.sha.digest(), constants.sha.digest())


def _unload(model: ModelParts) -> None:
    """Unmaps constants that were read. A model from the cache runs without them."""
    for pool in model.pools:
        pool.unload()


def digest_structure(model: ModelParts) -> bytes:
    """The `structure` of `digest_model` alone, 32 bytes. No constant is read."""
    return _ModelHash(model, None).structure.sha.digest()


def form_of(model: ModelParts, operation: Operation) -> Form:
    """The form of an *operation* of *model*'s entry. It is the same if the operation is cut out of
    its model.
    """
    form = _Hasher()
    _form(model, operation, model.entry, form, {})
    operands = (model.operands[i] for i in (*operation.inputs, *operation.outputs))
    return Form(form.sha.hexdigest(), tuple(o.shape for o in operands if o.has_value))


def _form(
    model: ModelParts,
    operation: Operation,
    subgraph: Subgraph,
    form: _Hasher,
    known: dict[int, bytes],
) -> None:
    """*known* has the digests of subgraphs, so that each subgraph is hashed once."""
    form.put("operation", operation.key, _attributes(operation, {}))
    for index in (*operation.inputs, *operation.outputs):
        operand = subgraph.operands[index]
        if operand.lifetime is Lifetime.NO_VALUE:
            form.put("none")
            continue
        quantization = _quantization(operand.quantization)
        form.put("operand", operand.is_constant, operand.dtype.value, quantization)
        if operand.extension is not None:
            form.put("extension", *_extension(operand.extension))
    for target in subgraph_references(operation):
        if target not in known:
            inner, hashed = model.subgraphs[target], _Hasher()
            for each in polled(inner.operations):
                _form(model, each, inner, hashed, known)
            known[target] = hashed.sha.digest()
        form.put("subgraph", known[target])


class _ModelHash:
    """The hash of a model's structure. *constants*, if given, hashes the constants."""

    def __init__(self, model: ModelParts, constants: _Hasher | None) -> None:
        self.model, self.structure, self.constants = model, _Hasher(), constants
        self.read = 0
        """Bytes of constants that were read since constants were unloaded."""
        order = reachable(model, [model.main])
        self.subgraphs = {subgraph: at for at, subgraph in enumerate(order)}
        self.variables: dict[int, int] = {}
        for index in order:
            self._subgraph(model.subgraphs[index])
        for index in self.variables:
            self._variable(model.variables[index])

    def _subgraph(self, subgraph: Subgraph) -> None:
        numbers: dict[int, int] = {}

        def number(index: int) -> int:
            operand = subgraph.operands[index]
            if operand.lifetime is Lifetime.NO_VALUE:
                return -1
            if index not in numbers:
                numbers[index] = len(numbers)
                self._operand(operand)
            return numbers[index]

        put = self.structure.put
        put("inputs", *[number(i) for i in subgraph.inputs])
        for operation in polled(subgraph.operations):
            attributes = _attributes(operation, self.subgraphs)
            inputs = [number(i) for i in operation.inputs]
            while inputs and inputs[-1] == -1:
                inputs.pop()
            outputs = [number(i) for i in operation.outputs]
            put("operation", operation.type, attributes, inputs, outputs)
        put("outputs", *[number(i) for i in subgraph.outputs])
        for port in subgraph.states:
            variable = self.variables.setdefault(port.variable, len(self.variables))
            ends = [None if i is None else number(i) for i in (port.input, port.output)]
            put("state", variable, ends)

    def _operand(self, operand: Operand) -> None:
        role = "constant" if operand.is_constant else operand.lifetime.value
        quantization = _quantization(operand.quantization)
        self.structure.put("operand", role, operand.dtype.value, operand.shape, quantization)
        if not operand.shape_declared:
            self.structure.put("undeclared")
        if operand.extension is not None:
            self.structure.put("extension", *_extension(operand.extension))
        if operand.is_constant:
            self._constant("constant", operand)

    def _variable(self, variable: Variable) -> None:
        zero = variable.value is None and variable.location is None
        quantization = _quantization(variable.quantization)
        self.structure.put("variable", variable.dtype.value, variable.shape, quantization, zero)
        if not variable.assigned:
            self.structure.put("unassigned")
        if not zero:
            self._constant("variable", variable)

    def _constant(self, label: str, item: Operand | Variable) -> None:
        if self.constants is None:
            return
        content = constant_bytes(self.model.pools, item)
        self.constants.put(label, content)
        self.read += content.nbytes
        if self.read > CHUNK:
            self.read = 0
            _unload(self.model)


def _attributes(operation: Operation, subgraphs: dict[int, int]) -> list[tuple[str, object]]:
    """The attributes of *operation*, with the numbers of subgraphs in the digest."""
    from penstock.ir.operations import spec_of

    kinds = {a.name: a.kind for a in spec_of(operation).attributes}
    return [
        (name, _attribute(value, kinds.get(name), subgraphs))
        for name, value in operation.attributes.items()
    ]


def _attribute(value: AttributeValue, kind: str | None, subgraphs: dict[int, int]) -> object:
    if kind == "subgraph" and isinstance(value, int):
        return subgraphs.get(value, -1)
    if kind == "subgraphs" and isinstance(value, tuple):
        return [subgraphs.get(int(index), -1) for index in value]
    return _canonical(value)


def _extension(kind: ExtensionType) -> tuple[object, ...]:
    return kind.extension, kind.code, kind.byte_size, kind.is_tensor, kind.data


def _quantization(quantization: Quantization | None) -> object:
    if quantization is None:
        return None
    packed = struct.pack(f"<{len(quantization.scales)}d", *quantization.scales)
    return packed.hex(), [int(z) for z in quantization.zero_points], quantization.dimension


def _canonical(value: AttributeValue) -> object:
    """Floats as their bits, so that -0.0, 0.0 and 0 are different."""
    if isinstance(value, float):
        return "f" + struct.pack("<d", value).hex()
    if isinstance(value, tuple):
        return [_canonical(v) for v in value]
    return value
