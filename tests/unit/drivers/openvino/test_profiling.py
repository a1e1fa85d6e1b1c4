"""A measured run tells what each kernel of OpenVINO took, by the operations that it computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.drivers.openvino import OpenVinoDevice, engine, profiling
from penstock.drivers.openvino.compiling import build_graph
from penstock.errors import GeneralFailure
from tests.support_measured import X, lies_within, network, types_of
from tests.support_openvino import cpu, needs_openvino

pytestmark = needs_openvino

LAYERS = {"CONV_2D", "DEPTHWISE_CONV_2D", "RELU", "FULLY_CONNECTED", "SOFTMAX"}
"""Of the sum OpenVINO makes a group of operations, named for the last of them."""


def compiled(device: OpenVinoDevice, cache: Path | bool = False) -> penstock.CompiledModel:
    return penstock.compile(network(), devices=[device], cache=cache, num_threads=1)


def told(model: penstock.CompiledModel) -> set[str]:
    plain = np.array(model.run([X])[0])
    outputs = model.run([X], measure=True)
    assert np.array_equal(outputs[0], plain)
    (step,) = outputs.receipt.steps
    assert lies_within(step)
    return {kind for kernel in step.kernels for kind in types_of(kernel)}


def test_kernels_are_reported_with_their_operations() -> None:
    device = cpu()
    with compiled(device) as model:
        assert told(model) >= LAYERS
        (step,) = model.run([X], measure=True).receipt.steps
        (unasked,) = model.run([X]).receipt.steps
    assert all(kernel.operations for kernel in step.kernels)
    assert unasked.kernels == ()


def test_the_model_is_imported_to_be_measured_once_and_only_then() -> None:
    device = cpu()
    with compiled(device) as model:
        model.run([X])
        assert device.loads == 0
        setups = []
        for _ in range(3):
            (step,) = model.run([X], measure=True).receipt.steps
            setups.append([k.operations for k in step.kernels if k.kernel == profiling.SETUP])
    assert setups == [[()], [], []]
    assert device.loads == 1


def test_cached_model_reports_the_names_of_operations(tmp_path: Path) -> None:
    with compiled(cpu(), tmp_path):
        pass
    device = cpu()
    with compiled(device, tmp_path) as model:
        assert device.compiles == 0
        assert told(model) >= LAYERS


def test_a_model_that_compiles_when_it_runs_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DRIVER_SETTINGS", "openvino_compilation=first_run")
    with compiled(cpu()) as model:
        assert told(model) >= LAYERS


def test_run_succeeds_when_measuring_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise GeneralFailure("no export")

    with compiled(cpu()) as model:
        monkeypatch.setattr(engine, "export_model", refuse)
        assert told(model) == set()


def test_every_node_is_named_for_an_operation() -> None:
    model = network()
    graph = build_graph(model)
    built = graph.finish("network")
    from penstock.drivers.openvino.compiling import makers_of

    profiling.name_nodes(built, makers_of(graph))
    kinds = {
        int(profiling.MARKED.findall(node.get_friendly_name())[0])
        for node in built.get_ordered_ops()
        if node.get_type_name() != "Parameter"
    }
    assert kinds == set(range(len(model.operations)))
