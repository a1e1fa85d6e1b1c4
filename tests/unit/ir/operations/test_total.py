"""Rules are total: whatever an operation says, inference answers or raises one named error,
soon.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from penstock.errors import ModelError
from penstock.ir import DType, ModelBuilder, infer_shapes
from penstock.ir.operation import AttributeValue
from penstock.ir.operations import OPERATIONS, AttributeSpec, OperationSpec, Port

HUGE: Final = 2**31 - 1
EXAMPLES: Final = max(settings().max_examples, 250)

sizes = st.one_of(st.integers(0, 5), st.sampled_from([None, 1, 2, 2**16, HUGE]))
shapes = st.one_of(st.none(), st.lists(sizes, max_size=6).map(tuple))
numbers = st.one_of(st.integers(-3, 6), st.sampled_from([-HUGE - 1, HUGE, 2**16]))


@st.composite
def attribute(draw: Any, spec: AttributeSpec) -> AttributeValue:
    value: Any = None
    match spec.kind:
        case "int":
            value = draw(numbers)
        case "subgraph":
            value = draw(st.sampled_from([-1, 1]))
        case "float":
            value = draw(st.floats(allow_nan=True))
        case "bool":
            value = draw(st.booleans())
        case "enum":
            value = draw(st.sampled_from(spec.choices))
        case "str":
            value = draw(st.text(max_size=3))
        case "bytes":
            value = draw(st.binary(max_size=40))
        case "ints":
            value = tuple(draw(st.lists(numbers, max_size=6)))
        case "subgraphs":
            value = tuple(draw(st.lists(st.just(1), max_size=3)))
        case "floats":
            value = tuple(draw(st.lists(st.floats(), max_size=3)))
    result: AttributeValue = value
    return result


@st.composite
def value(draw: Any, port: Port, bound: dict[str, DType]) -> tuple[DType, Any]:
    """A type that *port* admits with a shape, or with a small constant."""
    admitted = sorted(port.types or set(DType), key=lambda t: t.value)
    dtype = bound.get(port.var) or draw(st.sampled_from(admitted))
    if port.var:
        bound[port.var] = dtype
    if dtype in {DType.INT32, DType.INT64, DType.INT16} and draw(st.booleans()):
        low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        kept = numbers.filter(lambda n: low <= n <= high)
        dimensions = draw(st.sampled_from([(), (1,), (2,), (3,), (4,), (0,), (2, 2), (3, 2)]))
        count = int(np.prod(dimensions))
        elements = draw(st.lists(kept, min_size=count, max_size=count))
        return dtype, np.array(elements, dtype.numpy).reshape(dimensions)
    return dtype, draw(shapes)


def build(draw: Any, row: OperationSpec) -> Any:
    builder = ModelBuilder()
    inner = builder.subgraph()
    passed = inner.input(DType.FLOAT32, (2, 3))
    builder.add_subgraph(inner.finish(inner.operation("RELU", [passed], [(DType.FLOAT32, None)])))
    bound: dict[str, DType] = {}
    inputs: list[int | None] = []
    for port in row.inputs:
        for _ in range(draw(st.integers(0, 3)) if port.variadic else 1):
            if port.optional and draw(st.booleans()):
                inputs.append(None)
                continue
            dtype, content = draw(value(port, bound))
            known = isinstance(content, np.ndarray)
            inputs.append(
                builder.constant(content, dtype=dtype) if known else builder.input(dtype, content)
            )
    outputs = []
    for port in row.outputs:
        for _ in range(draw(st.integers(0, 3)) if port.variadic else 1):
            if port.optional and draw(st.booleans()):
                break
            dtype, content = draw(value(port, bound))
            outputs.append((dtype, content.shape if isinstance(content, np.ndarray) else content))
    attributes = {a.name: draw(attribute(a)) for a in row.attributes if a.name != "custom_code"}
    if row.vocabulary == "custom":
        attributes["custom_code"] = row.name.partition(":")[2] or "Anything"
    made = builder.operation(row.name.partition(":")[0], inputs, outputs, attributes)
    return builder.build(made)


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(list(OPERATIONS)), data=st.data())
def test_any_operation_has_shapes_or_a_named_error(name: str, data: Any) -> None:
    row = OPERATIONS[name]
    start = time.process_time()
    try:
        model = build(data.draw, row)
        inferred = infer_shapes(model)
    except ModelError:
        pass
    else:
        for operand in inferred.outputs:
            for size in operand.shape or ():
                assert size is None or size >= 0
    assert time.process_time() - start < 5
