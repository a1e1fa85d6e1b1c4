from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.errors import InputError, LimitExceeded, ShapeMismatch
from penstock.ir import DType, Lifetime, Model, ModelBuilder, Operand, Shape, infer_shapes
from penstock.ir.infer import Inferred, infer_subgraph
from penstock.testing.contract.cases import every_case
from tests.unit.ir_core.samples import F32, branching, small

I32 = DType.INT32


def chain(*shape: int | None) -> Model:
    """x + x, RELU of it, with every shape but the input's unknown."""
    b = ModelBuilder()
    x = b.input(F32, shape, "x")
    (s,) = b.operation("ADD", [x, x], [(F32, None)])
    return b.build(b.operation("RELU", [s], [(F32, None)]))


def folding() -> Model:
    """RESHAPE x to [rows of x, product of the rest], computed by SHAPE, STRIDED_SLICE, MUL and
    PACK.
    """
    b = ModelBuilder()
    x = b.input(F32, (None, 3, 4), "x")
    (shape,) = b.operation("SHAPE", [x], [(I32, None)], {"out_type": "INT32"})

    def element(at: int) -> int:
        bounds = [b.constant(np.array([v], np.int32)) for v in (at, at + 1, 1)]
        attributes = {"shrink_axis_mask": 1}
        return b.operation("STRIDED_SLICE", [shape, *bounds], [(I32, None)], attributes)[0]

    (rest,) = b.operation("MUL", [element(1), element(2)], [(I32, None)])
    (target,) = b.operation("PACK", [element(0), rest], [(I32, None)], {"values_count": 2})
    return b.build(b.operation("RESHAPE", [x, target], [(F32, None)]))


def shapes(model: Model) -> list[Shape]:
    return [o.shape for o in model.outputs]


def test_shapes_flow_from_the_inputs() -> None:
    assert shapes(infer_shapes(chain(2, 3))) == [(2, 3)]
    assert shapes(infer_shapes(chain(None, 3))) == [(None, 3)]
    assert shapes(infer_shapes(chain(None, 3), {0: (7, 3)})) == [(7, 3)]


def test_given_shapes_replace_declared_ones() -> None:
    inferred = infer_shapes(chain(2, 3), {0: (5,)})
    assert inferred.inputs[0].shape == (5,)
    assert shapes(inferred) == [(5,)]


def test_declared_shapes_of_results_are_not_trusted() -> None:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    model = b.build(b.operation("RELU", [x], [(F32, (9, 9))]))
    assert shapes(infer_shapes(model)) == [(2, 3)]


def test_a_model_that_is_inferred_already_comes_back_as_it_is() -> None:
    for case in every_case():
        once = infer_shapes(case.model)
        assert once is case.model
        assert infer_shapes(once) is once
    assert infer_shapes(small()) == small()


def test_inference_changes_nothing_but_shapes() -> None:
    model = chain(None, 3)
    inferred = infer_shapes(model, {0: (2, 3)})
    assert inferred.operations == model.operations
    assert [o.lifetime for o in inferred.operands] == [o.lifetime for o in model.operands]
    assert model.inputs[0].shape == (None, 3)


def test_zero_is_a_dimension() -> None:
    assert shapes(infer_shapes(chain(None, 3), {0: (0, 3)})) == [(0, 3)]


def test_an_unknown_rank_stays_unknown() -> None:
    b = ModelBuilder()
    x = b.input(F32, None, "x")
    model = b.build(b.operation("RELU", [x], [(F32, (1,))]))
    assert shapes(infer_shapes(model)) == [None]


def test_shapes_that_do_not_fit_are_named_with_their_place() -> None:
    b = ModelBuilder()
    x, y = b.input(F32, (2, 3), "x"), b.input(F32, (None, 3), "y")
    model = b.build(b.operation("ADD", [x, y], [(F32, None)]))
    assert shapes(infer_shapes(model)) == [(2, 3)]
    with pytest.raises(ShapeMismatch, match=r"subgraph 0, operation 0 \(ADD\)"):
        infer_shapes(model, {1: (4, 3)})


@pytest.mark.parametrize("position", [-1, 1])
def test_an_input_that_is_not_there_is_refused(position: int) -> None:
    with pytest.raises(InputError, match="of 1"):
        infer_shapes(chain(2, 3), {position: (2, 3)})


def test_shape_computations_are_followed() -> None:
    model = folding()
    assert shapes(infer_shapes(model, {0: (5, 3, 4)})) == [(5, 12)]
    assert shapes(infer_shapes(model, {0: (0, 3, 4)})) == [(0, 12)]


def test_shape_known_only_in_the_run_stays_unknown() -> None:
    b = ModelBuilder()
    x = b.input(F32, (6,), "x")
    target = b.input(I32, (2,), "target")
    model = b.build(b.operation("RESHAPE", [x, target], [(F32, None)]))
    assert shapes(infer_shapes(model)) == [(None, None)]


def test_a_target_shape_has_a_limit() -> None:
    """The product of many large dimensions takes for ever."""
    b = ModelBuilder()
    x = b.input(F32, (6,), "x")
    made = b.operation("RESHAPE", [x], [(F32, None)], {"new_shape": (2**31 - 1,) * 65})
    with pytest.raises(ShapeMismatch, match="65 dimensions"):
        infer_shapes(b.build(made))


def test_branches_agree_or_leave_dimensions_unknown() -> None:
    assert shapes(infer_shapes(branching())) == [(3,)]
    assert shapes(infer_shapes(branching(), {1: (5,)})) == [(5,)]


def nested(depth: int, attributes: tuple[str, ...]) -> Model:
    """Subgraphs of which each enters the next once for each of the *attributes*: of an IF, or of a
    CALL.
    """
    b = ModelBuilder()
    chosen, x = b.input(DType.BOOL, (), "chosen"), b.input(F32, (3,), "x")
    kind = "IF" if len(attributes) > 1 else "CALL"
    given = [chosen, x] if kind == "IF" else [x]
    out = b.operation(kind, given, [(F32, (3,))], dict.fromkeys(attributes, 1))
    for level in range(1, depth + 1):
        inner = b.subgraph(f"level{level}")
        i = inner.input(F32, (3,), "i")
        if level == depth:
            made = inner.operation("RELU", [i], [(F32, (3,))])
        else:
            flags = [inner.constant(np.array(True))] if kind == "IF" else []
            following = dict.fromkeys(attributes, level + 1)
            made = inner.operation(kind, [*flags, i], [(F32, (3,))], following)
        assert b.add_subgraph(inner.finish(made)) == level
    return b.build(out)


def test_calls_of_calls_are_inferred_once() -> None:
    """Each of 12 subgraphs enters the next one twice: 4,096 operations, were they not
    remembered.
    """
    model = nested(12, ("then_subgraph_index", "else_subgraph_index"))
    known = Inferred()
    infer_subgraph(model, 0, [(), (3,)], known)
    assert known.operations == 12


def test_calls_of_calls_are_bounded() -> None:
    with pytest.raises(LimitExceeded, match="129 deep; the limit is 128"):
        infer_shapes(nested(129, ("subgraph",)))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.data())
def test_every_unknown_dimension_can_be_filled_in_later(
    dims: list[int], data: st.DataObject
) -> None:
    hidden = tuple(None if data.draw(st.booleans()) else d for d in dims)
    partly, fully = infer_shapes(chain(*hidden)), infer_shapes(chain(*hidden), {0: tuple(dims)})
    assert shapes(partly) == [hidden]
    assert shapes(fully) == [tuple(dims)]
    assert shapes(infer_shapes(partly, {0: tuple(dims)})) == [tuple(dims)]


def test_state_inputs_keep_their_shapes() -> None:
    b = ModelBuilder()
    x = b.input(F32, (None,), "x")
    before = b.operand(Operand(F32, (2,), Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = b.operation("ADD", [before, x], [(F32, None)])
    b.state(b.variable("v", F32, (2,)), before, after)
    model = b.build([after])
    assert shapes(infer_shapes(model)) == [(2,)]
    with pytest.raises(InputError):
        infer_shapes(model, {1: (2,)})
