"""Models that ask for absurd amounts of work, memory or names: every call ends by its timeout, with
a documented error.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import penstock
from penstock import knobs
from penstock.errors import Cancelled, DeadObject, LimitExceeded, MissedDeadline
from penstock.hal import CancelToken
from penstock.ir import DType, Model, ModelBuilder, NDArray
from tests import support_bounds
from tests.support_waiting import eventually
from tests.unit.loaders.files import FileBuilder, relu


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda: support_bounds.chain(20_000), id="chain"),
        pytest.param(lambda: support_bounds.beside(10_000), id="inputs and outputs"),
        pytest.param(lambda: support_bounds.nested_ifs(11), id="ifs"),
    ],
)
@pytest.mark.parametrize("timeout", [0.3, 1.0])
def test_compile_of_many_operations_ends_at_its_timeout(content, timeout):  # type: ignore[no-untyped-def]
    with knobs.override(loading_limit_mib=2048):
        model = penstock.load(content())

    took, result = support_bounds.spent(
        lambda: penstock.compile(model, cache=False, timeout=timeout)
    )

    assert support_bounds.is_late(result), result
    assert took < timeout + support_bounds.SLACK


def test_compile_of_many_operations_ends_when_it_is_cancelled() -> None:
    with knobs.override(loading_limit_mib=2048):
        model = penstock.load(support_bounds.chain(20_000))
    token = CancelToken()
    timer = threading.Timer(0.3, token.set)
    timer.start()

    took, result = support_bounds.spent(lambda: penstock.compile(model, cache=False, cancel=token))
    timer.join()

    assert isinstance(result, Cancelled)
    assert took < 0.3 + support_bounds.SLACK


def test_compile_of_a_file_loads_it_within_the_timeout() -> None:
    content = support_bounds.chain(20_000)

    with knobs.override(loading_limit_mib=2048):
        took, result = support_bounds.spent(
            lambda: penstock.compile(content, cache=False, timeout=0.3)
        )

    assert isinstance(result, MissedDeadline)
    assert took < 0.3 + support_bounds.SLACK


def test_compile_in_openvino_of_a_chain_ends_at_its_timeout() -> None:
    pytest.importorskip("openvino")
    model = penstock.load(support_bounds.chain(800))
    began = time.monotonic()

    # Where its process is not there in time, as beside other work, the fallback gets the work.
    with suppress(MissedDeadline):
        penstock.compile(model, devices=["openvino-cpu"], cache=False, timeout=2.0).close()

    # OpenVINO itself takes ten seconds and more for these.
    assert time.monotonic() - began < 6.0


def test_tflite_file_of_many_operators_is_refused_before_they_are_built() -> None:
    content = support_bounds.chain(60_000)

    with pytest.raises(LimitExceeded, match="loading_limit_mib allows more"):
        penstock.load(content)


def test_raised_knob_loads_tflite_file_of_many_operators() -> None:
    with knobs.override(loading_limit_mib=2048):
        assert len(penstock.load(support_bounds.chain(30_000)).operations) == 30_000


def test_tflite_name_of_megabytes_is_refused_with_the_limit() -> None:
    file = relu([1, 4])
    file.graph["tensors"][0]["name"] = "n" * (1 << 20)

    with pytest.raises(LimitExceeded, match=r"a name or text of 1048576 bytes; the limit is 65536"):
        penstock.load(file.encode())


def test_tflite_name_within_the_limit_is_kept() -> None:
    file = relu([1, 4])
    file.graph["tensors"][0]["name"] = "n" * 65_536

    assert penstock.load(file.encode()).inputs[0].name == "n" * 65_536


@pytest.mark.parametrize("place", ["node", "value", "input", "initializer", "graph"])
def test_onnx_name_of_megabytes_is_refused_with_the_limit(place: str) -> None:
    pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    long = "n" * (1 << 20)
    names = dict.fromkeys(("node", "value", "input", "initializer", "graph"), "")
    names[place] = long
    info = helper.make_tensor_value_info
    value, given, weight = names["value"] or "v", names["input"] or "x", names["initializer"] or "w"
    nodes = [
        helper.make_node("Add", [given, weight], [value], name=names["node"]),
        helper.make_node("Relu", [value], ["y"]),
    ]
    weights = numpy_helper.from_array(np.ones(4, np.float32), weight)
    graph = helper.make_graph(
        nodes, names["graph"] or "g", [info(given, 1, [4])], [info("y", 1, [4])], [weights]
    )
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    with pytest.raises(LimitExceeded, match=r"a name of 1048576 \w+; the limit is 65536") as raised:
        penstock.load(content.SerializeToString())

    assert len(str(raised.value)) < 1000


def test_concatenation_of_one_value_a_hundred_thousand_times_ends_at_its_timeout() -> None:
    file = FileBuilder()
    x, y = file.tensor("x", [1, 4]), file.tensor("y", [100_000, 4])
    file.operator("CONCATENATION", [x] * 100_000, [y], {"axis": 0})
    model = penstock.load(file.finish([x], [y]))

    took, result = support_bounds.spent(lambda: penstock.compile(model, cache=False, timeout=0.2))

    assert took < 0.2 + support_bounds.SLACK, result


isolated = pytest.mark.skipif(sys.platform != "linux", reason="no process can be isolated")


def test_broadcast_beyond_memory_is_refused_before_anything_is_compiled() -> None:
    model = penstock.load(support_bounds.broadcast(1 << 15))

    with knobs.override(max_run_mib=1024), pytest.raises(LimitExceeded) as raised:
        penstock.compile(model, cache=False, timeout=3)

    told = str(raised.value)
    assert "BROADCAST_TO" in told or "a run would hold" in told
    assert "4294967300 bytes" in told
    assert "knob max_run_mib" in told


def test_value_in_between_beyond_memory_is_refused_with_the_operation() -> None:
    model = penstock.load(support_bounds.summed(1 << 15))

    with (
        knobs.override(max_run_mib=1024),
        pytest.raises(LimitExceeded, match=r"operation 0 \(BROADCAST_TO 'b'\).*max_run_mib"),
    ):
        penstock.compile(model, cache=False)


def test_shapes_that_a_run_gives_are_held_to_the_same_memory() -> None:
    file = FileBuilder()
    x = file.tensor("x", [1, 4], shape_signature=[-1, 4])
    y = file.tensor("y", [1, 4], shape_signature=[-1, 4])
    file.operator("RELU", [x], [y])
    model = penstock.load(file.finish([x], [y]))

    with (
        knobs.override(max_run_mib=1),
        penstock.compile(model, devices=["reference"], cache=False) as compiled,
    ):
        assert compiled.run([np.zeros((2, 4), np.float32)])[0].shape == (2, 4)
        with pytest.raises(LimitExceeded, match="max_run_mib"):
            compiled.run([np.zeros((100_000, 4), np.float32)])


@isolated
@pytest.mark.parametrize("device", [None, "reference", "onnxruntime-cpu", "openvino-cpu"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(
            lambda: support_bounds.pool(2**31 - 1, 8, "AVERAGE_POOL_2D", 2**31 - 1), id="pool"
        ),
        pytest.param(lambda: support_bounds.convolution(101, 300), id="convolution"),
        pytest.param(lambda: support_bounds.product(6000), id="product"),
    ],
)
def test_run_of_much_work_ends_at_its_timeout(content, device):  # type: ignore[no-untyped-def]
    model = penstock.load(content())
    names = None if device is None else list(dict.fromkeys([device, "reference"]))
    inputs = support_bounds.ones_for(model)

    limit, began = support_bounds.allowed(3.0), time.monotonic()
    try:
        compiled = penstock.compile(model, devices=names, cache=False, timeout=3.0)
    except (MissedDeadline, DeadObject) as error:
        # LiteRT's own preparation does not end for some.
        if not support_bounds.is_late(error):
            raise
        assert time.monotonic() - began < limit
        return
    with compiled:
        assert time.monotonic() - began < limit
        limit, began = support_bounds.allowed(1.0), time.monotonic()
        support_bounds.spent(lambda: compiled.run(inputs, timeout=1.0))
        assert time.monotonic() - began < limit


def product_of_a_size_that_the_run_says() -> tuple[Model, list[NDArray]]:
    b = ModelBuilder()
    dims = b.input(DType.INT32, (2,), "dims")
    one = b.constant(np.array(1, np.float32), "one")
    (filled,) = b.operation("FILL", [dims, one], [(DType.FLOAT32, (None, None))])
    made = b.operation("BATCH_MATMUL", [filled, filled], [(DType.FLOAT32, (None, None))])
    return b.build(made), [np.array([8000, 8000], np.int32)]


def draws_of_a_number_that_the_run_says() -> tuple[Model, list[NDArray]]:
    b = ModelBuilder()
    count = b.input(DType.INT32, (1,), "count")
    made = b.operation(
        "RANDOM_STANDARD_NORMAL", [count], [(DType.FLOAT32, (None,))], {"seed": 1, "seed2": 2}
    )
    return b.build(made), [np.array([250_000_000], np.int32)]


@isolated
@pytest.mark.parametrize(
    "made", [product_of_a_size_that_the_run_says, draws_of_a_number_that_the_run_says]
)
def test_run_of_a_size_that_only_its_values_say_ends_at_its_timeout(
    made: Callable[[], tuple[Model, list[NDArray]]],
) -> None:
    model, inputs = made()
    with penstock.compile(model, cache=False) as compiled:
        assert compiled.plan.apart
        assert "is as large as the values of the run say" in dict(compiled.plan.apart).popitem()[1]
        limit, began = support_bounds.allowed(1.0), time.monotonic()
        with pytest.raises((MissedDeadline, DeadObject)):
            compiled.run(inputs, timeout=1.0)
        assert time.monotonic() - began < limit


@isolated
def test_plan_and_receipt_say_what_runs_in_a_process_of_its_own_and_why() -> None:
    model = penstock.load(support_bounds.product(6000))

    with penstock.compile(model, devices=["reference"], cache=False) as compiled:
        (told,) = compiled.plan.apart
        assert told[0] == "reference"
        assert "operation 2 (BATCH_MATMUL 'p') may take" in told[1]
        assert "max_in_process_ms=500" in told[1]
        assert "reference runs in a process of its own:" in " ".join(compiled.plan.show().split())
        assert any("a process of its own" in note for note in compiled.receipt.notes)
        assert '"apart":{"reference":' in compiled.plan.to_json()


def test_work_below_the_limit_stays_in_this_process() -> None:
    model = penstock.load(support_bounds.product(200))

    with penstock.compile(model, cache=False, timeout=60) as compiled:
        assert compiled.plan.apart == ()
        assert not any("process" in note for note in compiled.receipt.notes)


def test_receipt_warns_that_a_timeout_may_not_end_a_run_without_isolation() -> None:
    model = penstock.load(support_bounds.product(3000))

    with (
        knobs.override(max_in_process_ms=1),
        penstock.compile(model, devices=["reference"], isolate=False, cache=False) as compiled,
    ):
        assert compiled.plan.apart == ()
        (note,) = [n for n in compiled.receipt.notes if "a timeout may not end it" in n]
        assert "isolate=False keeps it here" in note


@isolated
def test_model_of_many_operations_is_compiled_apart_where_there_is_a_timeout() -> None:
    model = penstock.load(support_bounds.chain(30))

    with knobs.override(max_in_process_operations=20):
        with penstock.compile(model, devices=["xnnpack"], cache=False) as compiled:
            assert compiled.plan.apart == ()
        with penstock.compile(model, devices=["xnnpack"], cache=False, timeout=60) as compiled:
            ((name, why),) = compiled.plan.apart
    assert name == "xnnpack"
    assert why == "a step of it has 30 operations, more than max_in_process_operations=20"


def test_loops_within_an_operation_of_the_reference_end_at_the_deadline() -> None:
    model = penstock.load(support_bounds.pool(401, 700))
    inputs = support_bounds.ones_for(model)

    with penstock.compile(model, devices=["reference"], isolate=False, cache=False) as compiled:
        took, whole = support_bounds.spent(lambda: compiled.run(inputs))
        assert not isinstance(whole, Exception)
        ended, result = support_bounds.spent(lambda: compiled.run(inputs, timeout=took / 10))

    assert isinstance(result, MissedDeadline)
    assert ended < took / 2


@isolated
@pytest.mark.parametrize("device", ["reference", "onnxruntime-cpu"])
def test_process_that_goes_on_past_the_deadline_is_killed_and_started_again(device: str) -> None:
    from penstock.runtime.isolation import supervisors

    model = penstock.load(support_bounds.product(6000))
    inputs = support_bounds.ones_for(model)
    compiled = penstock.compile(model, devices=[device], cache=False)
    with compiled:
        (supervisor,) = [
            s
            for s in supervisors()
            if device.startswith(s.place.name) and s.place.origin.startswith("penstock-nn:")
        ]

        def is_gone(link: object) -> bool:
            return supervisor.running is not link

        for _ in range(2):
            link = supervisor.connection()
            # A short time may end before a busy machine has begun, and no process is killed for it.
            for timeout in (0.5, 2.0, 8.0):
                with pytest.raises(MissedDeadline):
                    compiled.run(inputs, timeout=timeout)
                if eventually(partial(is_gone, link), 15):
                    break
            assert supervisor.running is not link
            # Which of its two watchers is first depends on how busy the machine is.
            assert re.search(r"was killed: .* (by|before) the deadline", link.session.end_reason)


@isolated
def test_compile_of_a_small_model_works_after_processes_were_killed_at_deadlines() -> None:
    model, small = (
        penstock.load(support_bounds.product(6000)),
        penstock.load(support_bounds.product(10)),
    )
    for _ in range(3):
        with penstock.compile(model, devices=["reference"], cache=False) as compiled:
            assert compiled.plan.apart
            with pytest.raises(MissedDeadline):
                compiled.run(support_bounds.ones_for(model), timeout=0.2)
    with penstock.compile(small, devices=["reference"], cache=False) as compiled:
        assert compiled.run(support_bounds.ones_for(small))[0] == 1000
