"""Prepared models: from several threads, with state, with shapes known late, and once they are
closed.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest

import penstock
from penstock import errors, hal
from penstock.drivers.xnnpack import engine
from penstock.ir import DType, Lifetime, Model, ModelBuilder, NDArray, Operand, infer_shapes
from tests.support_python_goes_on import goes_on_during
from tests.support_xnnpack import F32, device, drawn, needs_litert, one, q, run_on

pytestmark = needs_litert

PLAIN = hal.ExecutionConfig()
I32 = DType.INT32


def prepared(model: Model, accuracy: str = "faithful", threads: int = 1) -> hal.PreparedModelBase:
    # A literal.
    config = hal.PrepareConfig(accuracy=accuracy, num_threads=threads)  # type: ignore[arg-type]
    return device().prepare_model(model, config)


def execute(
    each: hal.PreparedModelBase, inputs: Sequence[NDArray], outputs: Sequence[NDArray]
) -> tuple[tuple[int, ...], ...]:
    """The shapes that were reported; *outputs* are written."""
    request = hal.Request(tuple(map(hal.HostMemory, inputs)), tuple(map(hal.HostMemory, outputs)))
    return tuple(s.dimensions for s in each.execute(request, PLAIN).output_shapes)


def deep(size: int = 400, layers: int = 12) -> Model:
    """Matrix products that take a while."""
    builder = ModelBuilder()
    x = builder.input(F32, (size, size), "x")
    y = x
    for _ in range(layers):
        (y,) = builder.operation("BATCH_MATMUL", [y, x], [(F32, (size, size))])
    return builder.build([y])


def test_concurrent_runs_do_not_interfere() -> None:
    model = one("MUL", [(F32, (64,)), (F32, (64,))], [(F32, (64,))])
    each = prepared(model)

    def run(number: int) -> bool:
        given, out = np.full(64, number, np.float32), np.empty(64, np.float32)
        return all(
            execute(each, [given, given], [out]) == () and bool(np.all(out == number * number))
            for _ in range(50)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


def test_other_python_threads_run_during_a_run() -> None:
    each, out = prepared(deep()), np.empty((400, 400), np.float32)
    given = np.zeros((400, 400), np.float32)
    assert goes_on_during(lambda: execute(each, [given], [out]))


def test_num_threads_is_passed_to_litert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are those of one thread."""
    litert = engine._engine.get()
    real, told = litert.Interpreter, list[int]()

    def watched(**options: Any) -> Any:
        told.append(options["num_threads"])
        return real(**options)

    monkeypatch.setattr(litert, "Interpreter", watched)
    model = deep(64, 2)
    given, results = drawn(model), list[NDArray]()
    for threads in (1, 3):
        out = np.empty((64, 64), np.float32)
        execute(prepared(model, threads=threads), given, [out])
        assert set(told) == {threads}
        told.clear()
        results.append(out)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)


def test_scalar_inputs_and_outputs_are_supported() -> None:
    model = one("ADD", [(F32, ()), (F32, ())], [(F32, ())])
    out = np.empty((), np.float32)
    execute(prepared(model), [np.array(2, np.float32), np.array(3, np.float32)], [out])
    assert out == 5


@pytest.mark.parametrize("shape", [(), (3,)])
def test_closed_model_frees_its_interpreters_without_garbage_collection(
    shape: tuple[int, ...],
) -> None:
    each = prepared(one("ADD", [(F32, shape), (F32, shape)], [(F32, shape)]))
    # Its own.
    (kept,) = [weakref.ref(runner) for (runner,) in each._free]  # type: ignore[attr-defined]
    collecting = gc.isenabled()
    gc.disable()
    try:
        each.close()
        assert kept() is None
    finally:
        if collecting:
            gc.enable()


def test_shapes_may_be_known_at_run_time() -> None:
    each = prepared(one("RELU", [(F32, (None, 3))], [(F32, (None, 3))]))
    for rows in (2, 5, 5, 1, 0):
        given = np.linspace(-1, 1, 3 * rows, dtype=np.float32).reshape(rows, 3)
        out = np.empty(60, np.uint8)
        assert execute(each, [given], [out]) == ((rows, 3),)
        assert np.array_equal(
            out[: given.nbytes].view(np.float32).reshape(rows, 3), np.maximum(given, 0)
        )


def test_insufficient_output_memory_is_reported_with_the_shape() -> None:
    each = prepared(one("RELU", [(F32, (None,))], [(F32, (None,))]))
    with pytest.raises(errors.OutputInsufficientSize) as caught:
        execute(each, [np.ones(5, np.float32)], [np.empty(8, np.uint8)])
    assert list(caught.value.output_shapes) == [((5,), False)]


def test_interpreters_are_reused_after_insufficient_output_memory() -> None:
    each = prepared(one("RELU", [(F32, (None,))], [(F32, (None,))]))
    (kept,) = each._free  # type: ignore[attr-defined]  # its own
    with pytest.raises(errors.OutputInsufficientSize):
        execute(each, [np.ones(5, np.float32)], [np.empty(8, np.uint8)])
    assert execute(each, [np.ones(5, np.float32)], [np.empty(20, np.uint8)]) == ((5,),)
    assert list(each._free) == [kept]  # type: ignore[attr-defined]  # its own


def test_result_shape_may_depend_on_values() -> None:
    builder = ModelBuilder()
    x, shape = builder.input(F32, (12,), "x"), builder.input(I32, (2,), "shape")
    (folded,) = builder.operation("RESHAPE", [x, shape], [(F32, (None, None))])
    (y,) = builder.operation("RELU", [folded], [(F32, (None, None))])
    each = prepared(builder.build([y]))
    given = np.linspace(-1, 1, 12, dtype=np.float32)
    for rows in (3, 4, 1):
        out = np.empty(48, np.uint8)
        wanted = (rows, 12 // rows)
        assert execute(each, [given, np.array(wanted, np.int32)], [out]) == (wanted,)
        assert np.array_equal(out.view(np.float32), np.maximum(given, 0))
    with pytest.raises(errors.GeneralFailure, match="LiteRT did not execute"):
        execute(each, [given, np.array((5, 5), np.int32)], [np.empty(48, np.uint8)])
    assert execute(each, [given, np.array((2, 6), np.int32)], [np.empty(48, np.uint8)]) == ((2, 6),)


def test_outputs_may_be_inputs_constants_or_unwanted() -> None:
    builder = ModelBuilder()
    x = builder.input(F32, (3,), "x")
    c = builder.constant(np.array([7, 8], np.float32), "c")
    (y,) = builder.operation("NEG", [x], [(F32, (3,))])
    each = prepared(builder.build([y, x, c]))
    given, outs = np.arange(3, dtype=np.float32), [np.empty(n, np.float32) for n in (3, 3, 2)]
    execute(each, [given], outs)
    assert [o.tolist() for o in outs] == [[0, -1, -2], [0, 1, 2], [7, 8]]
    request = hal.Request(
        (hal.HostMemory(given),), (hal.NO_VALUE_ARGUMENT, *map(hal.HostMemory, outs[1:]))
    )
    each.execute(request, PLAIN)


def test_unknown_memory_tokens_are_refused() -> None:
    each = prepared(one("NEG", [(F32, (3,))], [(F32, (3,))]))
    host, token = hal.HostMemory(np.empty(3, np.float32)), hal.TokenArgument(1)
    for request in (hal.Request((token,), (host,)), hal.Request((host,), (token,))):
        with pytest.raises(errors.InvalidArgument, match="no buffer of this device has the token"):
            each.execute(request, PLAIN)


def test_unread_inputs_are_accepted() -> None:
    builder = ModelBuilder()
    _, x, _ = (builder.input(F32, (n,), f"x{n}") for n in (2, 3, 4))
    each = prepared(builder.build(builder.operation("NEG", [x], [(F32, (3,))])))
    given, made = [np.arange(n, dtype=np.float32) for n in (2, 3, 4)], np.empty(3, np.float32)
    execute(each, given, [made])
    assert made.tolist() == [0, -1, -2]
    hosts = [hal.HostMemory(array) for array in given]
    request = hal.Request((hal.TokenArgument(1), *hosts[1:]), (hal.HostMemory(made),))
    with pytest.raises(errors.InvalidArgument, match="no buffer of this device has the token"):
        each.execute(request, PLAIN)


def svdf(steps: int = 4, units: int = 3, features: int = 5) -> Model:
    """A recurrent layer whose state comes in and goes out, as partitions have it."""
    rng = np.random.default_rng(3)
    builder = ModelBuilder()
    x = builder.input(F32, (1, features), "x")
    state = builder.input(F32, (1, units * steps), "state")
    weights = builder.constant(rng.standard_normal((units, features)).astype(np.float32))
    times = builder.constant(rng.standard_normal((units, steps)).astype(np.float32))
    made = [(F32, (1, units)), (F32, (1, units * steps))]
    outputs = builder.operation("SVDF", [x, weights, times, None, state], made, {"rank": 1})
    return builder.build(outputs)


def test_state_is_passed_in_and_out_and_not_kept() -> None:
    model = svdf()
    (answer,) = device().supported_operations(model)
    assert answer.supported, answer.reason
    each = prepared(model)
    rng = np.random.default_rng(0)
    for _ in range(3):
        given = drawn(model, int(rng.integers(100)))
        wanted = run_on(["reference"], model, given)
        outs = [np.empty_like(w) for w in wanted]
        execute(each, given, outs)
        for got, want in zip(outs, wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_network_with_state_runs_as_on_the_reference() -> None:
    rng = np.random.default_rng(5)
    builder = ModelBuilder()
    x = builder.input(F32, (1, 5), "x")
    kept = builder.variable("state", F32, (1, 12))
    state = builder.operand(Operand(F32, (1, 12), Lifetime.SUBGRAPH_INPUT, "state in"))
    weights = builder.constant(rng.standard_normal((3, 5)).astype(np.float32))
    times = builder.constant(rng.standard_normal((3, 4)).astype(np.float32))
    made = [(F32, (1, 3)), (F32, (1, 12))]
    y, new = builder.operation("SVDF", [x, weights, times, None, state], made, {"rank": 1})
    builder.state(kept, state, new)
    (z,) = builder.operation("TANH", [y], [(F32, (1, 3))])
    model = builder.build([z])
    inputs = [rng.standard_normal((1, 5)).astype(np.float32) for _ in range(6)]
    with (
        penstock.compile(model, devices=[device()], cache=False) as ours,
        penstock.compile(model, devices=["reference"], cache=False) as theirs,
    ):
        for given in inputs:
            np.testing.assert_allclose(ours(given)[0], theirs(given)[0], atol=1e-5)


def test_other_subgraphs_with_state_are_ignored() -> None:
    """The entry is the last subgraph; the first has a variable, the second is what a composite
    computes.
    """
    builder = ModelBuilder()
    kept = builder.variable("held", F32, (3,))
    before = builder.operand(Operand(F32, (3,), Lifetime.SUBGRAPH_INPUT, "before"))
    (total,) = builder.operation("ADD", [builder.input(F32, (3,), "x"), before], [(F32, (3,))])
    builder.state(kept, before, total)
    inner = builder.subgraph("inner")
    (negative,) = inner.operation("NEG", [inner.input(F32, (3,), "x")], [(F32, (3,))])
    index = builder.add_subgraph(inner.finish([negative]))
    other = builder.subgraph("other")
    (y,) = other.operation(
        "STABLEHLO_COMPOSITE",
        [other.input(F32, (3,), "x")],
        [(F32, (3,))],
        {"name": "a.negative", "decomposition_subgraph_index": index},
    )
    (z,) = other.operation("RELU", [y], [(F32, (3,))])
    entry = builder.add_subgraph(other.finish([z]))
    model = msgspec.structs.replace(builder.build([total]), main=entry)
    assert all(a.supported for a in device().supported_operations(model))
    out = np.empty(3, np.float32)
    execute(prepared(model), [np.array([-1, 2, -3], np.float32)], [out])
    assert out.tolist() == [1, 0, 3]


def test_state_that_another_operation_makes_is_refused() -> None:
    builder = ModelBuilder()
    x = builder.input(F32, (1, 5), "x")
    before = builder.input(F32, (1, 12), "before")
    (state,) = builder.operation("NEG", [before], [(F32, (1, 12))])
    weights = builder.constant(np.ones((3, 5), np.float32))
    times = builder.constant(np.ones((3, 4), np.float32))
    made = [(F32, (1, 3)), (F32, (1, 12))]
    outputs = builder.operation("SVDF", [x, weights, times, None, state], made, {"rank": 1})
    answers = device().supported_operations(builder.build(outputs))
    assert [a.supported for a in answers] == [True, False]
    assert "state is computed or read by another" in answers[1].reason


def test_run_past_a_deadline_or_cancellation_writes_nothing() -> None:
    each = prepared(one("NEG", [(F32, (3,))], [(F32, (3,))]))
    given, out = np.ones(3, np.float32), np.zeros(3, np.float32)
    request = hal.Request((hal.HostMemory(given),), (hal.HostMemory(out),))
    with pytest.raises(errors.MissedDeadline):
        each.execute(request, hal.ExecutionConfig(deadline_ns=time.monotonic_ns() - 1))
    token = hal.CancelToken()
    token.set()
    with pytest.raises(errors.Cancelled):
        each.execute(request, hal.ExecutionConfig(cancel=token))
    assert not out.any()
    each.execute(request, hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 10**12))
    assert out.tolist() == [-1, -1, -1]


def test_a_closed_model_is_refused_and_runs_under_way_end() -> None:
    each = prepared(deep())
    given, out = np.zeros((400, 400), np.float32), np.ones((400, 400), np.float32)
    running = threading.Thread(target=execute, args=(each, [given], [out]))
    interpreters = vars(each)["_free"]
    running.start()
    # The run is under way once it has taken the interpreters.
    while interpreters and running.is_alive():
        time.sleep(0)
    each.close()
    each.close()
    running.join()
    with pytest.raises(errors.GeneralFailure, match="closed"):
        execute(each, [given], [out])


def detecting() -> Model:
    """A detection of at most six boxes among four."""
    from flatbuffers import flexbuffers

    options = {
        "max_detections": 6, "max_classes_per_detection": 1, "nms_score_threshold": 0.5,
        "nms_iou_threshold": 0.5, "num_classes": 2, "use_regular_nms": False,
        "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
    }  # fmt: skip
    builder = ModelBuilder()
    boxes, scores = builder.input(F32, (1, 4, 4), "boxes"), builder.input(F32, (1, 4, 3), "scores")
    anchors = np.array([[0.5, 0.5, 1, 1], [0.5, 0.5, 1, 1], [3, 3, 1, 1], [9, 9, 1, 1]], np.float32)
    made = [(F32, (1, 6, 4)), (F32, (1, 6)), (F32, (1, 6)), (F32, (1,))]
    outputs = builder.operation(
        "CUSTOM", [boxes, scores, builder.constant(anchors)], made,
        {"custom_code": "TFLite_Detection_PostProcess",
            "custom_options": bytes(flexbuffers.Dumps(options))},
    )  # fmt: skip
    return builder.build(outputs)


def check_detections(each: hal.PreparedModelBase) -> None:
    """That a prepared model of `detecting` finds two boxes, and clears what is behind them."""
    given = [np.zeros((1, 4, 4), np.float32), np.zeros((1, 4, 3), np.float32)]
    given[1][0, :3, 1] = [0.9, 0.8, 0.7]
    wanted = run_on(["reference"], detecting(), given)
    for _ in range(3):
        outs = [np.full_like(w, 9) for w in wanted]
        execute(each, given, outs)
        count = int(outs[3][0])
        assert count == int(wanted[3][0]) == 2
        assert not any(o[:, count:].any() for o in outs[:3])
        np.testing.assert_allclose(outs[0][:, :count], wanted[0][:, :count], atol=1e-6)


def test_outputs_behind_the_last_detection_are_zero() -> None:
    """LiteRT leaves what lay in memory."""
    check_detections(prepared(detecting()))


def test_partition_of_two_kernel_sets_equals_one_kernel_set() -> None:
    """Under `faithful` floats by int8 weights stay with LiteRT's own kernels where rows are not
    along the last axis; the layers around them do not.
    """
    rng = np.random.default_rng(2)
    builder = ModelBuilder()
    x = builder.input(F32, (2, 8), "x")
    first = builder.constant(rng.standard_normal((6, 8)).astype(np.float32))
    few = builder.constant(rng.integers(-127, 128, (6, 12)).astype(np.int8), "few", q(0.02))
    last = builder.constant(rng.standard_normal((4, 6)).astype(np.float32))
    (a,) = builder.operation("FULLY_CONNECTED", [x, first, None], [(F32, (2, 6))])
    (b,) = builder.operation("FULLY_CONNECTED", [a, few, None], [(F32, (1, 6))])
    (c,) = builder.operation("ADD", [a, b], [(F32, (2, 6))])
    (y,) = builder.operation("FULLY_CONNECTED", [c, last, None], [(F32, (2, 4))])
    model = builder.build([y, a])
    each = prepared(model)
    assert [f.part.kernels for f in each._files] == ["xnnpack", "builtin", "xnnpack"]  # type: ignore[attr-defined]  # its own
    given = drawn(model)
    wanted = run_on(["reference"], model, given)
    outs = [np.empty_like(w) for w in wanted]
    execute(each, given, outs)
    for got, want in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-4 * np.abs(want).max())
    relaxed = prepared(model, "relaxed")
    # Its own.
    assert [f.part.kernels for f in relaxed._files] == ["xnnpack"]  # type: ignore[attr-defined]


def test_result_of_constants_may_be_an_output() -> None:
    """XNNPACK folds it into what follows, and cannot give it out."""
    builder = ModelBuilder()
    half = builder.constant(np.linspace(-1, 1, 24, dtype=np.float16).reshape(4, 6))
    (weights,) = builder.operation("DEQUANTIZE", [half], [(F32, (4, 6))])
    x = builder.input(F32, (2, 6), "x")
    (y,) = builder.operation("FULLY_CONNECTED", [x, weights, None], [(F32, (2, 4))])
    model = builder.build([y, weights])
    given = drawn(model)
    outs = [np.empty((2, 4), np.float32), np.empty((4, 6), np.float32)]
    execute(prepared(model), given, outs)
    wanted = np.linspace(-1, 1, 24, dtype=np.float16).reshape(4, 6).astype(np.float32)
    assert np.array_equal(outs[1], wanted)
    np.testing.assert_allclose(outs[0], given[0] @ wanted.T, atol=1e-5)


def test_model_may_be_specialised_before_compiling() -> None:
    model = infer_shapes(one("RELU", [(F32, (None, 3))], [(F32, (None, 3))]), {0: (4, 3)})
    out = np.empty((4, 3), np.float32)
    assert execute(prepared(model), [np.full((4, 3), -1, np.float32)], [out]) == ()
    assert not out.any()
