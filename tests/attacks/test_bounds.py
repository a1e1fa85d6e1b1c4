"""Models that ask for absurd amounts of work, memory or names: every call ends by its timeout, with a documented error."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import penstock
from penstock import knobs
from penstock.errors import Cancelled, LimitExceeded, MissedDeadline
from penstock.hal import CancelToken
from tests.support_bounds import SLACK, beside, chain, nested_ifs, spent
from tests.unit.loaders.files import FileBuilder, relu


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda: chain(20_000), id="chain"),
        pytest.param(lambda: beside(10_000), id="inputs and outputs"),
        pytest.param(lambda: nested_ifs(11), id="ifs"),
    ],
)
@pytest.mark.parametrize("timeout", [0.3, 1.0])
def test_compile_of_many_operations_ends_at_its_timeout(content, timeout):  # type: ignore[no-untyped-def]
    with knobs.override(loading_limit_mib=2048):
        model = penstock.load(content())

    took, result = spent(lambda: penstock.compile(model, cache=False, timeout=timeout))

    assert isinstance(result, MissedDeadline)
    assert took < timeout + SLACK


def test_compile_of_many_operations_ends_when_it_is_cancelled() -> None:
    with knobs.override(loading_limit_mib=2048):
        model = penstock.load(chain(20_000))
    token = CancelToken()
    timer = threading.Timer(0.3, token.set)
    timer.start()

    took, result = spent(lambda: penstock.compile(model, cache=False, cancel=token))
    timer.join()

    assert isinstance(result, Cancelled)
    assert took < 0.3 + SLACK


def test_compile_of_a_file_loads_it_within_the_timeout() -> None:
    content = chain(20_000)

    with knobs.override(loading_limit_mib=2048):
        took, result = spent(lambda: penstock.compile(content, cache=False, timeout=0.3))

    assert isinstance(result, MissedDeadline)
    assert took < 0.3 + SLACK


def test_compile_in_openvino_of_a_chain_ends_at_its_timeout() -> None:
    pytest.importorskip("openvino")
    model = penstock.load(chain(800))
    began = time.monotonic()

    with pytest.raises(MissedDeadline):
        penstock.compile(model, devices=["openvino-cpu"], cache=False, timeout=2.0)

    # OpenVINO itself takes ten seconds and more for these.
    assert time.monotonic() - began < 6.0


def test_tflite_file_of_many_operators_is_refused_before_they_are_built() -> None:
    content = chain(60_000)

    with pytest.raises(LimitExceeded, match="loading_limit_mib allows more"):
        penstock.load(content)


def test_tflite_file_of_many_operators_loads_where_the_knob_allows_it() -> None:
    with knobs.override(loading_limit_mib=2048):
        assert len(penstock.load(chain(30_000)).operations) == 30_000


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

    took, result = spent(lambda: penstock.compile(model, cache=False, timeout=0.2))

    assert took < 0.2 + SLACK, result
