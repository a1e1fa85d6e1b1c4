"""Equal models have equal digests however they are built; any edit that changes what they compute
changes it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from penstock import ir
from penstock.ir.digest import SCHEMA
from penstock.testing.contract.cases import every_case
from tests.unit.ir_core.samples import (
    F32,
    branching,
    counter,
    quantized,
    small,
    with_entry,
    with_operand,
    with_operation,
)

SAMPLES: tuple[Callable[[], ir.Model], ...] = (small, quantized, counter, branching)


def renumbered(subgraph: ir.Subgraph, order: list[int]) -> ir.Subgraph:
    """The same subgraph with its operands in another order: place i holds operand order[i]."""
    place = {old: new for new, old in enumerate(order)}

    def moved(indexes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(place[i] for i in indexes)

    return replace(
        subgraph,
        operands=tuple(subgraph.operands[i] for i in order),
        operations=tuple(
            replace(o, inputs=moved(o.inputs), outputs=moved(o.outputs))
            for o in subgraph.operations
        ),
        inputs=moved(subgraph.inputs),
        outputs=moved(subgraph.outputs),
        states=tuple(
            replace(
                p,
                input=None if p.input is None else place[p.input],
                output=None if p.output is None else place[p.output],
            )
            for p in subgraph.states
        ),
    )


@pytest.mark.parametrize("make", SAMPLES)
def test_building_twice_gives_one_digest(make: Callable[[], ir.Model]) -> None:
    assert make().digest == make().digest
    assert make() == make()
    assert hash(make()) == hash(make())
    assert len({make(), make()}) == 1


def test_different_models_differ() -> None:
    for models in ([make() for make in SAMPLES], [case.model for case in every_case()]):
        assert len({m.digest for m in models}) == len(models)
    assert small() != "a model"


@given(st.data())
def test_operand_order_does_not_count(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from([small(), counter(), *(c.model for c in every_case())]))
    order = data.draw(st.permutations(range(len(model.operands))))
    subgraphs = list(model.subgraphs)
    subgraphs[model.main] = renumbered(model.entry, order)
    assert replace(model, subgraphs=tuple(subgraphs)).digest == model.digest


def test_names_origins_signatures_and_metadata_do_not_count() -> None:
    model = small()
    changed = with_operand(model, 0, name="other", origin=ir.Origin(3, 4))
    changed = with_operation(changed, 0, origin=ir.Origin(1, 2, 3, 4))
    changed = with_entry(changed, name="elsewhere")
    changed = replace(
        changed,
        signatures={"s": ir.Signature(0, (("a", 0),), (("b", 3),))},
        metadata=ir.Metadata(name="m", files={"labels.txt": b"cat"}),
    )
    assert changed.digest == model.digest


def test_digest_ignores_the_place_of_a_constant() -> None:
    model = small()
    content = bytes(model.pools[0].view)
    inline = with_operand(
        model, 1, lifetime=ir.Lifetime.CONSTANT_COPY, location=None, value=content
    )
    assert replace(inline, pools=()).digest == model.digest
    operands = list(model.operands)
    operands[1] = replace(operands[1], location=ir.DataLocation(1, 24, 320))
    pools = (b"", b"x" * 24 + content + b"rest")
    moved = ir.Model(
        (replace(model.entry, operands=tuple(operands)),),
        tuple(ir.ConstantPool(memoryview(p)) for p in pools),
    )
    assert moved.digest == model.digest


def test_unused_operands_and_unreachable_subgraphs_do_not_count() -> None:
    model = small()
    spare = with_entry(model, operands=(*model.operands, ir.Operand(ir.DType.INT8, (9,))))
    assert spare.digest == model.digest
    more = replace(model, subgraphs=(model.entry, branching().subgraphs[1]))
    assert more.digest == model.digest


def test_an_omitted_input_at_the_end_is_as_good_as_none() -> None:
    def layer(*omitted: None) -> ir.Model:
        b = ir.ModelBuilder()
        x, w = b.input(F32, (1, 4), "x"), b.constant(np.ones((2, 4), np.float32))
        return b.build(b.operation("FULLY_CONNECTED", [x, w, *omitted], [(F32, (1, 2))]))

    assert layer().digest == layer(None).digest


def test_digest_ignores_the_order_of_referenced_subgraphs() -> None:
    model = branching()
    main, then, other = model.subgraphs
    attributes = ir.Attributes(then_subgraph_index=2, else_subgraph_index=1)
    swapped = replace(main, operations=(replace(main.operations[0], attributes=attributes),))
    assert ir.Model((swapped, other, then)).digest == model.digest
    attributes = ir.Attributes(then_subgraph_index=0, else_subgraph_index=1)
    moved = replace(main, operations=(replace(main.operations[0], attributes=attributes),))
    assert ir.Model((then, other, moved), main=2).digest == model.digest


def retyped(dtype: ir.DType) -> ir.Model:
    model = quantized()
    return with_entry(model, operands=tuple(replace(o, dtype=dtype) for o in model.operands))


def rescaled(quantization: ir.Quantization | None) -> ir.Model:
    return with_operand(quantized(), 0, quantization=quantization)


def flipped(model: ir.Model, place: int) -> ir.Model:
    content = bytearray(model.pools[0].view)
    content[place] ^= 1
    return replace(model, pools=(ir.ConstantPool(memoryview(bytes(content))),))


def more_inputs() -> ir.Model:
    model = small()
    spare = ir.Operand(F32, (1,), ir.Lifetime.SUBGRAPH_INPUT)
    return with_entry(model, operands=(*model.operands, spare), inputs=(0, 4))


def changed_variable(**changes: Any) -> ir.Model:
    model = counter()
    return replace(model, variables=(replace(model.variables[0], **changes),))


def exchanged() -> ir.Model:
    attributes = ir.Attributes(then_subgraph_index=2, else_subgraph_index=1)
    return with_operation(branching(), 0, attributes=attributes)


Edit = tuple[str, Callable[[], ir.Model], Callable[[], ir.Model]]

EDITS: tuple[Edit, ...] = (
    (
        "operation type",
        small,
        lambda: with_operation(small(), 1, type="RELU6", attributes=ir.Attributes()),
    ),
    (
        "attribute",
        small,
        lambda: with_operation(
            small(),
            0,
            attributes=ir.Attributes(
                {**small().operations[0].attributes, "pot_scale_int16": False}
            ),
        ),
    ),
    ("attribute left out", small, lambda: with_operation(small(), 0, attributes=ir.Attributes())),
    ("order of inputs", small, lambda: with_operation(small(), 0, inputs=(1, 0))),
    ("an input", small, lambda: with_operation(small(), 1, inputs=(0,))),
    ("dimension", small, lambda: with_operand(small(), 2, shape=(40, 2))),
    ("unknown dimension", small, lambda: with_operand(small(), 2, shape=(None, 40))),
    ("unknown rank", small, lambda: with_operand(small(), 2, shape=None)),
    ("shape left out of the file", small, lambda: with_operand(small(), 2, shape_declared=False)),
    (
        "zero dimension",
        lambda: with_operand(small(), 2, shape=(None, 40)),
        lambda: with_operand(small(), 2, shape=(0, 40)),
    ),
    ("type", quantized, lambda: retyped(ir.DType.UINT8)),
    ("scale", quantized, lambda: rescaled(ir.Quantization((0.25,), (3,)))),
    ("zero point", quantized, lambda: rescaled(ir.Quantization((0.5,), (4,)))),
    ("per channel", quantized, lambda: rescaled(ir.Quantization((0.5,) * 4, (3,) * 4, 0))),
    ("no quantisation", quantized, lambda: rescaled(None)),
    ("a constant's bits", small, lambda: flipped(small(), 0)),
    ("a constant's last bit", small, lambda: flipped(small(), 319)),
    ("outputs", small, lambda: with_entry(small(), outputs=(3, 0))),
    (
        "order of outputs",
        lambda: with_entry(small(), outputs=(3, 0)),
        lambda: with_entry(small(), outputs=(0, 3)),
    ),
    ("an output twice", small, lambda: with_entry(small(), outputs=(3, 3))),
    ("a spare input", small, more_inputs),
    ("initial value", counter, lambda: changed_variable(value=np.zeros(2, np.float32).tobytes())),
    (
        "zeros given or understood",
        lambda: changed_variable(value=bytes(8)),
        lambda: changed_variable(value=None),
    ),
    ("variable shape", counter, lambda: changed_variable(shape=(None,), value=None)),
    ("no state", counter, lambda: with_entry(counter(), states=())),
    ("branches", branching, exchanged),
    ("entry", branching, lambda: replace(branching(), main=1)),
)


@pytest.mark.parametrize(("before", "after"), [e[1:] for e in EDITS], ids=[e[0] for e in EDITS])
def test_a_semantic_edit_changes_the_digest(
    before: Callable[[], ir.Model], after: Callable[[], ir.Model]
) -> None:
    assert before().digest != after().digest
    assert before() != after()


def test_constants_and_structure_are_told_apart() -> None:
    one, other = small().digest, flipped(small(), 5).digest
    assert one.structure == other.structure
    assert one.constants != other.constants
    assert len(one.structure) == len(one.constants) == 32
    assert one.hex() == one.structure.hex() + one.constants.hex()


def test_a_byte_moved_between_neighbouring_constants_changes_it() -> None:
    def pair(first: bytes, second: bytes) -> ir.Model:
        b = ir.ModelBuilder()
        x = b.input(ir.DType.UINT8, (1,), "x")
        k = [b.constant(np.frombuffer(v, np.uint8)) for v in (first, second)]
        (s,) = b.operation("CONCATENATION", [x, *k], [(ir.DType.UINT8, (4,))], {"axis": 0})
        return b.build([s])

    assert pair(b"a", b"bc").digest.constants != pair(b"ab", b"c").digest.constants
    assert pair(b"", b"abc").digest.constants != pair(b"abc", b"").digest.constants


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=4), st.data())
def test_no_two_lists_of_constants_hash_alike(chunks: list[bytes], data: st.DataObject) -> None:
    def model(values: list[bytes]) -> ir.Model:
        b = ir.ModelBuilder()
        k = [b.constant(np.frombuffer(v, np.uint8)) for v in values]
        total = sum(map(len, values))
        return b.build(b.operation("CONCATENATION", k, [(ir.DType.UINT8, (total,))], {"axis": 0}))

    joined = b"".join(chunks)
    cuts = sorted(
        data.draw(
            st.lists(
                st.integers(0, len(joined)), min_size=len(chunks) - 1, max_size=len(chunks) - 1
            )
        )
    )
    edges = [0, *cuts, len(joined)]
    other = [joined[a:b] for a, b in pairwise(edges)]
    assert (model(chunks).digest.constants == model(other).digest.constants) == (chunks == other)


def test_floats_count_by_their_bits() -> None:
    def leaky(alpha: float) -> ir.Model:
        b = ir.ModelBuilder()
        x = b.input(F32, (2,), "x")
        return b.build(b.operation("LEAKY_RELU", [x], [(F32, (2,))], {"alpha": alpha}))

    digests = [leaky(a).digest for a in (0.0, -0.0, 0.1, float(np.float32(0.1)), 1, 1.0)]
    assert len(set(digests)) == len(digests)


def test_digest_is_computed_once_and_survives_pickling() -> None:
    model = small()
    assert model.digest is model.digest
    copy = pickle.loads(pickle.dumps(model))  # noqa: TID251  # our own bytes
    assert copy.digest == model.digest
    assert copy.subgraphs == model.subgraphs
    assert np.array_equal(copy.constant(copy.operands[1]), model.constant(model.operands[1]))


def test_a_stored_digest_stays_what_it_is() -> None:
    """Digests are part of cache keys and of `show()`: a change of their making is a change of
    SCHEMA.
    """
    assert SCHEMA == b"penstock-ir-1"
    assert small().digest.structure.hex()[:16] == "31800bfffc59910c"
    assert small().digest.constants.hex()[:16] == "0827bbabb73bf53c"


def test_constants_are_unloaded_once_they_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    unloads: list[None] = []

    class Owner:
        def unload(self) -> None:
            unloads.append(None)

    def hashed() -> ir.Model:
        model = small()
        pool = ir.ConstantPool(model.pools[0].view, Owner())
        made = replace(model, pools=(pool,))
        assert made.digest == model.digest
        return made

    hashed()
    assert len(unloads) == 1
    # Large constants are unloaded meanwhile, too.
    monkeypatch.setattr("penstock.ir.digest.CHUNK", 100)
    hashed()
    assert len(unloads) == 3
