"""The simple form, and the delegates over devices."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import tflite
from penstock.delegates import (
    BuiltinOperator,
    DelegateContext,
    DelegateFlags,
    DelegateKernel,
    DelegateNode,
    DelegateParams,
    DriverDelegate,
    NnapiDelegate,
    Registration,
    SimpleDelegate,
)
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import DelegateError, DeviceUnavailable, InputError, PlacementError
from penstock.hal import PrepareConfig
from penstock.partitioning.policy import Policy
from tests.unit.delegates import graphs
from tests.unit.delegates.recorder import COMPUTE
from tests.unit.delegates.test_delegates import X, opened, run, same
from tests.unit.execution.fakes import NumpyDevice
from tests.unit.loaders.files import accumulator, counting_loop, svdf
from tests.unit.tflite import models


class Kernel(DelegateKernel):
    def __init__(self, owner: Simple) -> None:
        self.owner = owner
        self.nodes: tuple[int, ...] = ()

    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        self.nodes = params.nodes
        self.owner.events.append(("init", self.nodes))

    def prepare(self, context: DelegateContext, node: DelegateNode) -> None:
        self.owner.events.append(("prepare", self.nodes))

    def invoke(self, context: DelegateContext, node: DelegateNode) -> None:
        self.owner.events.append(("invoke", self.nodes))
        values = {i: context.tensor(i).data for i in node.inputs}
        for index in self.nodes:
            inner, registration = context.node_and_registration(index)
            given = [values[i] for i in inner.inputs]
            values[inner.outputs[0]] = COMPUTE[registration.builtin_name](*given)
        for i in node.outputs:
            context.tensor(i).data[...] = values[i]

    def free(self) -> None:
        self.owner.events.append(("free", self.nodes))


class Simple(SimpleDelegate):
    name = "simple"

    def __init__(self, *kinds: str, **options: Any) -> None:
        super().__init__(**options)
        self.kinds = kinds
        self.events: list[tuple[Any, ...]] = []

    def initialize(self, context: DelegateContext) -> None:
        self.events.append(("initialize",))

    def is_node_supported(
        self, registration: Registration, node: DelegateNode, context: DelegateContext
    ) -> bool:
        return registration.builtin_name in self.kinds

    def create_kernel(self) -> DelegateKernel:
        return Kernel(self)


LONG = ("NEG", "ABS", "NEG", "NEG", "NEG", "ABS", "NEG", "NEG")


class TestSimple:
    def test_simple_delegate_is_called_in_order(self) -> None:
        delegate = Simple("NEG")
        with opened(graphs.chain("NEG", "ABS", "NEG"), delegate) as interpreter:
            same(graphs.chain("NEG", "ABS", "NEG"), X, interpreter=interpreter)
        nodes = [(0,), (2,)]
        assert delegate.events == [
            ("initialize",),
            *((stage, n) for stage in ("init", "prepare", "invoke", "free") for n in nodes),
        ]

    @pytest.mark.parametrize(
        ("options", "taken"),
        [
            ({}, [(0,), (2, 3, 4), (6, 7)]),
            ({"max_delegated_partitions": 1}, [(2, 3, 4)]),
            ({"max_delegated_partitions": 2}, [(2, 3, 4), (6, 7)]),
            ({"max_delegated_partitions": 0}, []),
            ({"min_nodes_per_partition": 2}, [(2, 3, 4), (6, 7)]),
            ({"max_delegated_partitions": 1, "min_nodes_per_partition": 4}, []),
        ],
    )
    def test_limits_take_the_largest_first(
        self, options: dict[str, int], taken: list[tuple[int, ...]]
    ) -> None:
        delegate = Simple("NEG", **options)
        content = graphs.chain(*LONG)
        same(content, X, interpreter=opened(content, delegate))
        assert [e[1] for e in delegate.events if e[0] == "init"] == taken

    @pytest.mark.parametrize("limit", [-1, 1.5, "2"])
    def test_a_limit_is_a_whole_number(self, limit: Any) -> None:
        with pytest.raises(DelegateError, match="whole number"):
            opened(graphs.chain("NEG"), Simple("NEG", max_delegated_partitions=limit))

    def test_a_kernel_that_is_none_fails_in_init(self) -> None:
        class Empty(Simple):
            def create_kernel(self) -> Any:
                return None

        with pytest.raises(DelegateError, match="create_kernel returned None") as caught:
            opened(graphs.chain("NEG"), Empty("NEG"))
        assert (caught.value.delegate, caught.value.stage) == ("simple", "init")

    def test_simple_delegate_requires_its_methods(self) -> None:
        class Bare(SimpleDelegate): ...

        class Kernelless(Simple):
            def create_kernel(self) -> DelegateKernel:
                return DelegateKernel()

        with pytest.raises(DelegateError, match="Bare has no is_node_supported"):
            opened(graphs.chain("NEG"), Bare())
        interpreter = opened(graphs.chain("NEG"), Kernelless("NEG"))
        with pytest.raises(DelegateError, match="DelegateKernel has no invoke"):
            interpreter.invoke()

    def test_simple_delegate_is_asked_about_replaceable_nodes(self) -> None:
        asked: list[BuiltinOperator] = []

        class Asking(Simple):
            def is_node_supported(
                self, registration: Registration, node: DelegateNode, context: DelegateContext
            ) -> bool:
                asked.append(registration.builtin_code)
                return False

        opened(accumulator().encode(), Asking())
        assert asked == [BuiltinOperator.ADD]

    def test_copying_from_its_buffers_fails_by_name(self) -> None:
        delegate = Simple("NEG")
        interpreter = opened(graphs.chain("NEG"), delegate)
        interpreter.set_buffer_handle(0, 3, delegate)
        with pytest.raises(DelegateError, match="keeps no buffers"):
            interpreter.get_tensor(0)


FILES = {
    "chain": (graphs.chain("NEG", "ABS", "NEG"), [X]),
    "diamond": (graphs.diamond(), [X]),
    "convolution": (
        graphs.convolved("ABS"),
        [np.random.default_rng(1).normal(size=(1, 5, 4, 2)).astype("f4")],
    ),
    "variable": (accumulator().encode(), [np.ones(2, np.float32)]),
    "branches": (models.branches(), [np.array([True]), X, X]),
    "loop": (models.doubling(), [np.array([3], np.int32)]),
    "counting": (counting_loop().encode(), None),
    "recurrent": (svdf().encode(), None),
    "strings": (models.typed("STRING", (2,)), [np.array([b"one", b"two"], object)]),
    "run-time shapes": (graphs.where_then("NEG"), [np.array([1, 0, 1, 0], bool)]),
}


def inputs_of(content: bytes, given: Any) -> list[Any]:
    if given is not None:
        return list(given)
    details = tflite.Interpreter(model_content=content).get_input_details()
    rng = np.random.default_rng(3)
    return [(rng.random(d["shape"]) * 4).astype(d["dtype"]) for d in details]


class TestDriverDelegate:
    @pytest.mark.parametrize("name", FILES)
    def test_driver_delegate_changes_no_result(self, name: str) -> None:
        content, given = FILES[name]
        inputs = inputs_of(content, given)
        interpreter = opened(content, DriverDelegate("reference", cache=False))
        plain = opened(content)
        for _ in range(3):
            for got, wanted in zip(run(interpreter, *inputs), run(plain, *inputs), strict=True):
                np.testing.assert_array_equal(got, wanted)

    def test_driver_delegate_takes_supported_nodes_and_gives_reasons_for_the_rest(self) -> None:
        delegate = DriverDelegate(NumpyDevice(), cache=False)
        content = graphs.chain("RELU", "NEG", "RELU")
        interpreter = opened(content, delegate)
        same(content, X, interpreter=interpreter)
        assert [len(p.operations) for p in delegate.plans] == [1, 1]
        assert delegate.reasons == {1: "numpy: no NEG"}
        assert [r.steps[0].device for r in delegate.receipts] == ["numpy", "numpy"]
        assert [r.steps[0].device for r in delegate.run_receipts] == ["numpy", "numpy"]
        interpreter.close()
        assert delegate.receipts == ()

    def test_several_devices_share_one_subset(self) -> None:
        devices = [NumpyDevice("first", ["RELU"]), NumpyDevice("second", ["MUL", "ADD"])]
        delegate = DriverDelegate(devices, policy=Policy(placement="nnapi"), cache=False)
        content = accumulator().encode()
        interpreter = opened(content, delegate)
        same(content, X, interpreter=interpreter)
        assert [o.device for p in delegate.plans for o in p.operations] == ["second"]

    def test_driver_delegate_accepts_changing_shapes(self) -> None:
        interpreter = opened(graphs.chain("NEG", "ABS"), DriverDelegate("reference", cache=False))
        for size in (3, 1):
            interpreter.resize_tensor_input(0, [size])
            interpreter.allocate_tensors()
            assert run(interpreter, np.ones(size, np.float32))[0].shape == (size,)

    def test_two_threads_add_it_at_once(self) -> None:
        both = threading.Barrier(2, timeout=30)

        class Meeting(DriverDelegate):
            def initialize(self, context: DelegateContext) -> None:
                super().initialize(context)
                both.wait()

        delegate = Meeting("reference", cache=False)
        files = graphs.chain("NEG", "ABS"), graphs.chain("SQUARE")

        def members(content: bytes) -> list[tuple[int, ...]]:
            interpreter = opened(content, delegate)
            return [k.members for k in interpreter._core.graph(0).delegate_nodes]

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(members, files)) == [[(0, 1)], [(0,)]]

    def test_a_device_that_is_not_there(self) -> None:
        with pytest.raises(PlacementError, match="no such thing"):
            DriverDelegate("no such thing")

    def test_a_device_that_fails_to_compile_leaves_the_graph(self) -> None:
        class Failing(NumpyDevice):
            def prepare_model(self, *_: object) -> Any:
                raise RuntimeError("no power")

        interpreter = opened(graphs.chain("RELU"))
        with pytest.raises(DelegateError, match="no power") as caught:
            interpreter.modify_graph_with_delegate(DriverDelegate(Failing("weak"), cache=False))
        assert caught.value.stage == "prepare"
        np.testing.assert_array_equal(run(interpreter, X)[0], np.maximum(X, 0))


class TestNnapiDelegate:
    def test_driver_delegate_over_all_devices_takes_what_the_runtime_does(
        self, tmp_path: Path
    ) -> None:
        delegate = NnapiDelegate(
            accelerator_name="reference",
            cache_dir=tmp_path,
            model_token="net 1",
            execution_preference="sustained_speed",
        )
        content = graphs.chain("NEG", "ABS")
        interpreter = opened(content, delegate)
        same(content, X, interpreter=interpreter)
        assert len(delegate.plans) == 1

    @pytest.mark.parametrize(
        ("given", "preference"),
        [
            ("low_power", "low_power"),
            ("fast_single_answer", "fast_single_answer"),
            ("sustained_speed", "sustained_speed"),
            ("undefined", "fast_single_answer"),
        ],
    )
    def test_the_preference_reaches_the_accelerator(
        self, given: Any, preference: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        prepare = ReferenceDevice.prepare_model

        def watched(device: ReferenceDevice, model: Any, config: PrepareConfig) -> Any:
            asked.append(config.preference)
            return prepare(device, model, config)

        monkeypatch.setattr(ReferenceDevice, "prepare_model", watched)
        opened(graphs.chain("NEG"), NnapiDelegate("reference", execution_preference=given)).close()
        assert set(asked) == {preference}

    def test_at_most_three_subsets_by_default(self) -> None:
        kinds = ["NEG", "ABS"] * 4

        class Narrow(NnapiDelegate):
            def refusals(self, model: Any) -> list[str]:
                return ["" if o.type == "NEG" else "not that" for o in model.operations]

        for most, expected in ((None, 3), (2, 2), (0, 4)):
            delegate = (
                Narrow("reference")
                if most is None
                else Narrow("reference", max_number_delegated_partitions=most)
            )
            interpreter = opened(graphs.chain(*kinds), delegate)
            same(graphs.chain(*kinds), X, interpreter=interpreter)
            assert len(delegate.plans) == expected

    def test_the_cpu_is_left_out_unless_it_may_be_used(self) -> None:
        allowed = NnapiDelegate()
        assert "reference" in [d.name for d in allowed.devices]
        others = [d.name for d in allowed.devices if d.name != "reference"]
        if others:
            assert [d.name for d in NnapiDelegate(disallow_nnapi_cpu=True).devices] == others
        else:
            with pytest.raises(DeviceUnavailable, match="disallow_nnapi_cpu"):
                NnapiDelegate(disallow_nnapi_cpu=True)

    def test_nnapi_delegate_rejects_wrong_options(self) -> None:
        with pytest.raises(DeviceUnavailable, match=r"no usable accelerator 'nothing'.*reference"):
            NnapiDelegate("nothing")
        with pytest.raises(InputError, match="accelerator_name is a device's name, not 3"):
            NnapiDelegate(3)  # type: ignore[arg-type]  # what users give
        with pytest.raises(InputError, match="execution_preference"):
            NnapiDelegate("reference", execution_preference="fast")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="cache_dir"):
            NnapiDelegate("reference", model_token="a")
        with pytest.raises(InputError, match="cache_dir must be a directory, not 3"):
            NnapiDelegate("reference", cache_dir=3)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="model_token must be text or bytes, not 3"):
            NnapiDelegate("reference", cache_dir="x", model_token=3)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="whole number"):
            NnapiDelegate("reference", max_number_delegated_partitions=1.5)  # type: ignore[arg-type]

    def test_nnapi_delegate_flags_become_policy(self) -> None:
        assert NnapiDelegate("reference").flags is DelegateFlags.ALLOW_DYNAMIC_TENSORS

    def test_subsets_are_cached_under_the_token(self, tmp_path: Path) -> None:
        content = graphs.chain("RELU", "ABS", "RELU")

        class Relu(NnapiDelegate):
            def refusals(self, model: Any) -> list[str]:
                return ["" if o.type == "RELU" else "not that" for o in model.operations]

        found = []
        for token in ("net", "net", "another"):
            delegate = Relu("lab", tmp_path, token)
            interpreter = opened(content, delegate)
            run(interpreter, X)
            found.append([r.steps[0].cache.outcome for r in delegate.receipts])
            interpreter.close()
        assert found == [["miss", "miss"], ["hit", "hit"], ["miss", "miss"]]
