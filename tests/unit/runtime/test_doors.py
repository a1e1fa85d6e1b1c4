"""The public surface, sentence by sentence, where no other file has its test."""

from __future__ import annotations

import logging
import pickle
import threading
import tracemalloc

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.ir import DType, ModelBuilder, Operand, Signature
from tests.support_programs import run_python
from tests.unit.execution.fakes import NumpyDevice, add_relu, f32


def two_entries() -> penstock.Model:
    """Signature "double": total = input + input, under names of its own."""
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "serving_default_x:0")
    y = builder.input(DType.FLOAT32, (2,), "serving_default_y:0")
    (a,) = builder.operation("ADD", [x, x], [Operand(DType.FLOAT32, (2,), name="StatefulCall:0")])
    (b,) = builder.operation("ADD", [a, y], [Operand(DType.FLOAT32, (2,), name="StatefulCall:1")])
    signature = Signature(0, (("y", y), ("x", x)), (("total", b),))
    return builder.build([a, b], {"serving_default": signature})


def test_a_signature_gives_its_names_and_its_order() -> None:
    model = two_entries()
    assert list(model.signatures) == ["serving_default"]
    one, ten = f32([1, 2]), f32([10, 20])
    with penstock.compile(model, devices=[NumpyDevice()], signature="serving_default") as compiled:
        assert [i.name for i in compiled.inputs] == ["y", "x"]
        assert [o.name for o in compiled.outputs] == ["total"]
        np.testing.assert_array_equal(compiled(ten, one)["total"], [12, 24])
        np.testing.assert_array_equal(compiled(x=one, y=ten)[0], [12, 24])
        target = np.zeros(2, np.float32)
        compiled.run({"x": one, "y": ten}, out=[target])
        np.testing.assert_array_equal(target, [12, 24])
    with penstock.compile(model, devices=[NumpyDevice()]) as compiled:
        assert len(compiled(one, ten)) == 2


def test_an_unknown_argument_is_refused_under_the_public_name_of_the_function() -> None:
    with pytest.raises(TypeError, match=r"^compile\(\) got an unexpected keyword argument 'foo'"):
        penstock.compile(two_entries(), foo=1)  # type: ignore[call-arg]
    assert penstock.compile.__module__ == "penstock"
    # Refuses a function that its module does not have under its name.
    assert pickle.dumps(penstock.compile)


def test_an_unknown_signature_lists_the_known_ones() -> None:
    with pytest.raises(errors.UnknownSignature, match="'train'; the model has 'serving_default'"):
        penstock.compile(two_entries(), signature="train")


def test_only_the_devices_named_are_placed_on() -> None:
    adder = NumpyDevice("adder", only=["ADD"])
    with pytest.raises(errors.PlacementError) as caught:
        penstock.compile(add_relu(), devices=[adder])
    assert "RELU" in str(caught.value)
    assert "no RELU" in str(caught.value.reasons)


def test_the_plan_says_where_each_operation_runs_and_why_not_elsewhere() -> None:
    adder, other = NumpyDevice("adder", only=["ADD"]), NumpyDevice("other", only=["RELU"])
    with penstock.compile(add_relu(), devices=[adder, other]) as compiled:
        first, second = compiled.plan.operations
        assert (first.index, first.type, first.name, first.device) == (0, "ADD", "sum", "adder")
        assert (second.index, second.type, second.name, second.device) == (
            1,
            "RELU",
            "relu",
            "other",
        )
        assert second.reasons["adder"] == "no RELU"
        assert "adder" in compiled.plan.show()
        assert '"adder"' in compiled.plan.to_json()
        outputs = compiled(f32([[1, -2, 3]] * 2), f32([[1, 1, 1]] * 2))
        np.testing.assert_array_equal(outputs["relu"], [[2, 0, 4]] * 2)
        assert [s.device for s in outputs.receipt.steps] == ["adder", "other"]


def test_a_timeout_is_seconds_from_the_call() -> None:
    with penstock.compile(add_relu(), devices=[NumpyDevice()], timeout=60) as compiled:
        x = np.ones((2, 3), np.float32)
        compiled.run([x, x], timeout=60)


def test_with_out_nothing_of_an_outputs_size_is_allocated() -> None:
    shape = (1024, 1024)
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, shape, "x")
    outputs = builder.operation("RELU", [x], [Operand(DType.FLOAT32, shape, name="y")])
    with penstock.compile(builder.build(outputs), devices=["null"]) as compiled:
        given, target = np.ones(shape, np.float32), np.ones(shape, np.float32)
        compiled.run([given], out=[target])
        tracemalloc.start()
        compiled.run([given], out=[target])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < given.nbytes / 10


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (errors.ModelError, ValueError),
        (errors.InputError, ValueError),
        (errors.MissedDeadlineTransient, TimeoutError),
        (errors.MissedDeadlinePersistent, TimeoutError),
        (errors.ResourceExhaustedTransient, MemoryError),
        (errors.ResourceExhaustedPersistent, MemoryError),
        (errors.SealBroken, errors.CacheError),
        (errors.DeadObject, errors.DriverError),
    ],
)
def test_errors_are_also_what_python_programs_expect(
    kind: type[Exception], also: type[Exception]
) -> None:
    assert issubclass(kind, also)
    assert issubclass(kind, penstock.PenstockError)


def test_the_library_prints_nothing_and_logs_under_its_name() -> None:
    code = (
        "import numpy as np, penstock, sys; sys.path.insert(0, '.');"
        "from tests.unit.execution.fakes import *;"
        "def_ = penstock.compile(add_relu(), devices=[NumpyDevice()]);"
        "x = np.ones((2, 3), np.float32); def_(x, x).receipt; def_.close()"
    )
    done = run_python("-c", code, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    handlers = logging.getLogger("penstock").handlers
    assert any(isinstance(h, logging.NullHandler) for h in handlers)


def test_compiling_from_many_threads_at_once() -> None:
    x = np.ones((2, 3), np.float32)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with penstock.compile(add_relu(), devices=[NumpyDevice()]) as compiled:
                np.testing.assert_array_equal(compiled(x, x)[0], x * 2)
        except BaseException as error:  # noqa: BLE001  # carried to the main thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_bytes_that_no_loader_knows_are_not_a_model(tmp_path: object) -> None:
    with pytest.raises(errors.NotAModel):
        penstock.compile(b"this is text, not a network")
