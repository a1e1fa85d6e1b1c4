"""Drivers that answer wrongly, and what the runtime makes of it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import hal
from penstock.errors import GeneralFailure, OutputInsufficientSize, ResourceExhaustedTransient
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand
from tests.unit.execution.fakes import NumpyDevice, NumpyPrepared, accumulator, add_relu, f32

X = np.ones((2, 3), np.float32)
CHEAP = hal.Capabilities(default_performance=hal.PerformanceInfo(0.1, 0.1))
ALONE = penstock.Policy(allow_fallback=False)


class Answering(NumpyDevice):
    """Computes, then answers *answer*: a value to return, an exception to raise, or a function of
    the request.
    """

    def __init__(
        self, answer: Any, only: tuple[str, ...] = ("ADD", "MUL", "RELU", "WHERE")
    ) -> None:
        super().__init__("liar", only, capabilities=CHEAP)
        self.answer = answer

    def prepare_model(self, model: Model, config: Any) -> NumpyPrepared:
        prepared = super().prepare_model(model, config)

        def execute(request: hal.Request, config: hal.ExecutionConfig) -> Any:
            answer = self.answer(request) if callable(self.answer) else self.answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        prepared.execute = execute  # type: ignore[method-assign]  # the lie
        return prepared


def shapes(*dimensions: Any, sufficient: Any = True) -> hal.ExecutionResult:
    return hal.ExecutionResult(tuple(hal.OutputShape(d, sufficient) for d in dimensions))


def where() -> Model:
    """The indexes of true elements: rows known only at run time, two columns."""
    builder = ModelBuilder()
    x = builder.input(DType.BOOL, (2, 3), "x")
    return builder.build(
        builder.operation("WHERE", [x], [Operand(DType.INT64, (None, 2), name="at")])
    )


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        shapes((2, 3)),
        shapes((2, 3), (2, 4)),
        shapes((2, 3), (2, 3), sufficient=False),
        shapes((2, 3), (-2, 3)),
        shapes((2, 3), "ab"),
    ],
)
def test_wrong_answers_about_known_shapes_are_failures(answer: Any) -> None:
    with (
        penstock.compile(add_relu(), devices=[Answering(answer)], policy=ALONE) as compiled,
        pytest.raises(GeneralFailure),
    ):
        compiled(X, X)


@pytest.mark.parametrize(
    "dimensions",
    [(-1, 2), (6,), (6, 2, 1), (6, 3), (2.0, 2), (True, 2), "ab", None, (2**40, 2), (2**62, 2**62)],
)
def test_wrong_answers_about_unknown_shapes_are_failures(dimensions: Any) -> None:
    device = Answering(shapes(dimensions))
    with (
        penstock.compile(where(), devices=[device], policy=ALONE) as compiled,
        pytest.raises(GeneralFailure),
    ):
        compiled(np.ones((2, 3), bool))


NO_SHAPES: Any = [3]


@pytest.mark.parametrize(
    "answer",
    [hal.DONE, OutputInsufficientSize("small"), OutputInsufficientSize("small", NO_SHAPES)],
)
def test_missing_output_shapes_are_a_failure(answer: Any) -> None:
    with (
        penstock.compile(where(), devices=[Answering(answer)], policy=ALONE) as compiled,
        pytest.raises(GeneralFailure),
    ):
        compiled(np.ones((2, 3), bool))


def test_a_size_beyond_memory_is_exhaustion() -> None:
    answer = OutputInsufficientSize("small", [((2**60, 2), False)])
    with (
        penstock.compile(where(), devices=[Answering(answer)], policy=ALONE) as compiled,
        pytest.raises(ResourceExhaustedTransient),
    ):
        compiled(np.ones((2, 3), bool))


def test_lies_fall_back_like_other_failures() -> None:
    with penstock.compile(where(), devices=[Answering(hal.DONE), "reference"]) as compiled:
        outputs = compiled(np.eye(2, 3, dtype=bool))
    np.testing.assert_array_equal(outputs[0], [[0, 0], [1, 1]])
    assert outputs.receipt.steps[0].fallback_from == "liar"


def test_growing_outputs_are_given_room() -> None:
    sizes: list[int] = []

    def answer(request: hal.Request) -> Any:
        argument = request.outputs[0]
        assert isinstance(argument, hal.HostMemory)
        sizes.append(argument.array.nbytes)
        if argument.array.nbytes < 1000 * 16:
            return OutputInsufficientSize("small", [((1000, 2), False)])
        argument.array[: 1000 * 16].view(np.int64)[:] = 7
        return shapes((1000, 2))

    with penstock.compile(where(), devices=[Answering(answer)]) as compiled:
        outputs = compiled(np.ones((2, 3), bool))
    assert outputs[0].shape == (1000, 2)
    assert (outputs[0] == 7).all()
    assert sizes == [4096, 16000]


class TestWritingToInputs:
    def scribbling(self) -> NumpyDevice:
        def before(request: hal.Request, config: hal.ExecutionConfig) -> None:
            for argument in request.inputs:
                assert isinstance(argument, hal.HostMemory)
                argument.array[...] = 99
            raise GeneralFailure("broken")

        return NumpyDevice(before=before, capabilities=CHEAP)

    def test_the_callers_arrays_and_the_fall_back_are_untouched(self) -> None:
        x = X.copy()
        with penstock.compile(add_relu(), devices=[self.scribbling(), "reference"]) as compiled:
            outputs = compiled(x, x)
        np.testing.assert_array_equal(x, X)
        np.testing.assert_array_equal(outputs[1], X + X)

    def test_the_state_is_untouched(self) -> None:
        with penstock.compile(accumulator(), devices=[self.scribbling()], policy=ALONE) as compiled:
            state = compiled.new_state()
            with pytest.raises(GeneralFailure):
                compiled.run([f32([1, 2])], state=state)
            np.testing.assert_array_equal(state.as_dict()["total"], [10, 20])


def test_separate_device_gets_copies_that_the_receipt_lists() -> None:
    seen: list[int] = []

    def before(request: hal.Request, config: hal.ExecutionConfig) -> None:
        argument = request.inputs[0]
        assert isinstance(argument, hal.HostMemory)
        seen.append(argument.array.ctypes.data)

    apart = hal.Capabilities(shares_host_memory=False)
    with penstock.compile(
        add_relu(), devices=[NumpyDevice(before=before, capabilities=apart)]
    ) as compiled:
        outputs = compiled(X, X)
    assert seen != [X.ctypes.data]
    told = [(c.source, c.destination, c.step, c.operand) for c in outputs.receipt.copies]
    there, back = ("host", "numpy", 0), ("numpy", "host", 0)
    assert told == [(*there, 0), (*there, 1), (*back, 3), (*back, 2)]
    assert {c.nbytes for c in outputs.receipt.copies} == {X.nbytes}


def test_arguments_in_pools_are_aligned_as_the_device_asks() -> None:
    from penstock.hal import PoolArgument

    offsets: list[int] = []

    def before(request: hal.Request, config: hal.ExecutionConfig) -> None:
        for argument in (*request.inputs, *request.outputs):
            assert isinstance(argument, PoolArgument)
            offsets.append(argument.location.offset)
        raise GeneralFailure("seen enough")

    pools = hal.Capabilities(accepts_host_memory=False, alignment=256)
    with (
        penstock.compile(
            add_relu(), devices=[NumpyDevice(before=before, capabilities=pools)], policy=ALONE
        ) as compiled,
        pytest.raises(GeneralFailure, match="seen enough"),
    ):
        compiled(X, X)
    assert len(offsets) == 4
    assert all(offset % 256 == 0 for offset in offsets)
    assert len(set(offsets)) == 4


def test_arenas_are_used_again() -> None:
    addresses: set[int] = set()

    def before(request: hal.Request, config: hal.ExecutionConfig) -> None:
        argument = request.inputs[0]
        assert isinstance(argument, hal.HostMemory)
        addresses.add(argument.array.ctypes.data)

    first = NumpyDevice("first", only=["ADD"])
    second = NumpyDevice("second", only=["RELU"], before=before)
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (64, 64), "x")
    (y,) = builder.operation("ADD", [x, x], [Operand(DType.FLOAT32, (64, 64))])
    (z,) = builder.operation("RELU", [y], [Operand(DType.FLOAT32, (64, 64))])
    big = np.ones((64, 64), np.float32)
    with penstock.compile(builder.build([z]), devices=[first, second]) as compiled:
        for _ in range(5):
            compiled(big)
    assert len(addresses) == 1


class TestOut:
    def test_one_name_for_two_outputs_is_refused(self) -> None:
        builder = ModelBuilder()
        x = builder.input(DType.FLOAT32, (2,), "x")
        (a,) = builder.operation("RELU", [x], [Operand(DType.FLOAT32, (2,), name="o")])
        (b,) = builder.operation("ADD", [x, x], [Operand(DType.FLOAT32, (2,), name="o")])
        with (
            penstock.compile(builder.build([a, b]), devices=[NumpyDevice()]) as compiled,
            pytest.raises(penstock.errors.InputError, match="0, 1 are all named 'o'"),
        ):
            compiled.run([f32([1, 2])], out={"o": f32([0, 0])})

    @pytest.mark.parametrize("case", ["same", "overlapping", "input"])
    def test_shared_memory_is_refused(self, case: str) -> None:
        block = np.zeros((4, 3), np.float32)
        x = X.copy()
        cases: dict[str, list[NDArray | None]] = {
            "same": [block[:2], block[:2]],
            "overlapping": [block[:2], block[1:3]],
            "input": [x, None],
        }
        with (
            penstock.compile(add_relu(), devices=[NumpyDevice()]) as compiled,
            pytest.raises(penstock.errors.InputError, match=r"shares? memory"),
        ):
            compiled.run([x, X], out=cases[case])

    def test_result_of_another_shape_is_not_broadcast_into_out(self) -> None:
        with penstock.compile(where(), devices=["reference"]) as compiled:
            mask = np.eye(1, 3, dtype=bool).repeat(2, axis=0)
            target = np.zeros((6, 2), np.int64)
            with pytest.raises(
                penstock.errors.InputError, match=r"has shape \(6, 2\), the result \(2, 2\)"
            ):
                compiled.run([mask], out=[target])
            exact = np.zeros((2, 2), np.int64)
            np.testing.assert_array_equal(compiled.run([mask], out=[exact])[0], [[0, 0], [1, 0]])
            assert (exact == [[0, 0], [1, 0]]).all()


class TestVariants:
    def test_dropped_variants_are_closed_at_once_and_others_with_the_model(self) -> None:
        device = NumpyDevice()
        with penstock.compile(add_relu((None, 3)), devices=[device]) as compiled:
            for rows in range(1, 21):
                x = np.ones((rows, 3), np.float32)
                compiled(x, x)
            assert sum(p.closed for p in device.prepared) == 20 - 8
        assert [p.closed for p in device.prepared] == [1] * 21

    def test_a_shape_is_compiled_once_for_many_runs(self) -> None:
        device = NumpyDevice()
        x = np.ones((5, 3), np.float32)
        with penstock.compile(add_relu((None, 3)), devices=[device]) as compiled:
            for future in [compiled.submit(x, x) for _ in range(16)]:
                np.testing.assert_array_equal(future.result(10)[1], x + x)
        assert len(device.prepared) == 2

    def test_compiling_one_shape_keeps_no_other_waiting_and_obeys_its_run(self) -> None:
        device = NumpyDevice()
        prepare, slow, go_on = device.prepare_model, threading.Event(), threading.Event()
        seen: list[Any] = []

        def prepare_model(model: Model, config: Any) -> NumpyPrepared:
            if model.inputs[0].shape == (7, 3):
                seen.append((config.deadline_ns, config.cancel))
                slow.set()
                assert go_on.wait(10)
            return prepare(model, config)

        device.prepare_model = prepare_model  # type: ignore[method-assign]  # slow for one shape
        small, large = np.ones((1, 3), np.float32), np.ones((7, 3), np.float32)
        with penstock.compile(add_relu((None, 3)), devices=[device]) as compiled:
            compiled(small, small)
            token = penstock.CancelToken()
            waiting = threading.Thread(
                target=lambda: compiled.run([large, large], timeout=60, cancel=token)
            )
            waiting.start()
            assert slow.wait(10)
            np.testing.assert_array_equal(compiled(small, small)[1], 2 * small)
            with pytest.raises(penstock.errors.MissedDeadline):
                compiled.run([large, large], timeout=0.05)
            cancelled = penstock.CancelToken()
            cancelled.set()
            with pytest.raises(penstock.errors.Cancelled):
                compiled.run([large, large], cancel=cancelled)
            go_on.set()
            waiting.join(10)
            np.testing.assert_array_equal(compiled(large, large)[1], 2 * large)
        assert seen[0][0] is not None
        assert seen[0][1] is token


def test_every_caller_of_close_waits() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def before(request: hal.Request, config: hal.ExecutionConfig) -> None:
        inside.set()
        assert go_on.wait(10)

    compiled = penstock.compile(add_relu(), devices=[NumpyDevice(before=before)])
    run = threading.Thread(target=compiled, args=(X, X))
    run.start()
    assert inside.wait(10)
    closers = [threading.Thread(target=compiled.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    closers[2].join(0.05)
    assert all(c.is_alive() for c in closers)
    go_on.set()
    for thread in (run, *closers):
        thread.join(10)
        assert not thread.is_alive()


def test_closing_from_a_futures_callback() -> None:
    compiled = penstock.compile(add_relu(), devices=[NumpyDevice()])
    done = threading.Event()

    def close(_: Any) -> None:
        compiled.close()
        done.set()

    compiled.submit(X, X).add_done_callback(close)
    assert done.wait(10)
    with pytest.raises(penstock.errors.ClosedError):
        compiled(X, X)


def test_driver_that_overruns_the_deadline_misses_the_deadline() -> None:
    import time

    def before(request: hal.Request, config: hal.ExecutionConfig) -> None:
        assert config.deadline_ns is not None
        while time.monotonic_ns() < config.deadline_ns:
            time.sleep(0.001)

    with (
        penstock.compile(add_relu(), devices=[NumpyDevice(before=before)]) as compiled,
        pytest.raises(penstock.errors.MissedDeadline),
    ):
        compiled.run([X, X], timeout=0.02)


@pytest.mark.parametrize(
    "arguments",
    [{"timeout": float("nan")}, {"timeout": "1"}, {"cancel": 3}, {"state": 3}, {"out": 5}],
)
def test_arguments_of_the_wrong_type_are_named(arguments: dict[str, Any]) -> None:
    with (
        penstock.compile(add_relu(), devices=[NumpyDevice()]) as compiled,
        pytest.raises(penstock.errors.InputError),
    ):
        compiled.run([X, X], **arguments)


@pytest.mark.parametrize("inputs", [5, None, X, iter([X, X]), "xy"])
def test_inputs_that_are_no_collection_are_named(inputs: Any) -> None:
    with (
        penstock.compile(add_relu(), devices=[NumpyDevice()]) as compiled,
        pytest.raises(penstock.errors.InputError, match="mapping by name or a sequence"),
    ):
        compiled.run(inputs)


@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout": "1"},
        {"cancel": 3},
        {"shapes": [(1, 2)]},
        {"policy": {}},
        {"progress": 3},
        {"num_threads": 1.5},
        {"num_threads": True},
    ],
)
def test_compile_arguments_of_the_wrong_type_are_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(penstock.errors.InputError):
        penstock.compile(add_relu(), devices=[NumpyDevice()], **arguments)


def test_infinite_timeout_is_no_timeout() -> None:
    with penstock.compile(add_relu(), devices=[NumpyDevice()], timeout=float("inf")) as compiled:
        compiled.run([X, X], timeout=float("inf"))


def test_outputs_and_states_pickle() -> None:
    import pickle

    with penstock.compile(accumulator(), devices=[NumpyDevice()]) as compiled:
        state = compiled.new_state()
        outputs = compiled.run([f32([1, 2])], state=state)
        again = pickle.loads(pickle.dumps(outputs))  # noqa: TID251  # what a process pool does
        np.testing.assert_array_equal(again["out"], outputs["out"])
        assert again.receipt == outputs.receipt
        restored = pickle.loads(pickle.dumps(state))  # noqa: TID251  # as above
        np.testing.assert_array_equal(compiled.run([f32([1, 2])], state=restored)[0], [12, 24])


def test_outputs_know_their_names() -> None:
    with penstock.compile(add_relu(), devices=[NumpyDevice()]) as compiled:
        outputs = compiled(X, X)
    assert "sum" in outputs
    assert "other" not in outputs
    assert outputs[0] in outputs


def test_the_null_device_answers_zeros() -> None:
    with penstock.compile(add_relu(), devices=["null"]) as compiled:
        assert not compiled(X, X)[0].any()


@pytest.mark.parametrize(
    "policy",
    [
        {"forbid": {"*": "reference"}},
        {"require": {"RELU": "liar"}},
        {"min_coverage": 1.0},
        {"allow_fallback": False},
    ],
)
def test_run_falls_back_only_if_the_policy_allows(policy: dict[str, Any]) -> None:
    broken = Answering(GeneralFailure("broken"))
    with (
        penstock.compile(
            add_relu(), devices=[broken, "reference"], policy=penstock.Policy(**policy)
        ) as compiled,
        pytest.raises(GeneralFailure, match="broken"),
    ):
        compiled(X, X)
