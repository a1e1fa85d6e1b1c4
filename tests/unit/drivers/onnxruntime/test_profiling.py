"""A measured run tells what each kernel of ONNX Runtime took, by the operations that it
computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.drivers.onnxruntime import engine, profiling
from penstock.drivers.onnxruntime.graph import Graph
from penstock.drivers.onnxruntime.wire import build
from penstock.errors import GeneralFailure
from tests.support_measured import LAYERS, X, lies_within, network, types_of
from tests.support_onnxruntime import needs_onnxruntime

pytestmark = needs_onnxruntime

DEVICE = "onnxruntime-cpu"


def compiled(cache: Path | bool = False) -> penstock.CompiledModel:
    return penstock.compile(network(), devices=[DEVICE], cache=cache, num_threads=1)


def test_kernels_are_reported_with_their_operations() -> None:
    with compiled() as model:
        plain = np.array(model.run([X])[0])
        outputs = model.run([X], measure=True)
        (step,) = outputs.receipt.steps
        (unasked,) = model.run([X]).receipt.steps
    assert np.array_equal(outputs[0], plain)
    told = {kind for kernel in step.kernels for kind in types_of(kernel)}
    assert told >= set(LAYERS)
    assert step.kernels[0].kernel == profiling.SETUP
    assert step.kernels[0].operations == ()
    assert lies_within(step)
    assert step.driver_ns is not None
    assert 0 < step.driver_ns < step.wall_ns - step.kernels[0].duration_ns
    assert unasked.kernels == ()


def test_a_fused_kernel_has_every_operation_that_it_computes() -> None:
    with compiled() as model:
        graph = build(model.model)
    named = profiling.operations_of(
        [
            ("", ["i0"], [_last(graph, 0)]),
            ("token", ["elsewhere"], ["renamed"]),
            (_last(graph, 1) + profiling.RENAMED, [], ["elsewhere"]),
            ("", [], ["o0"]),
        ],
        graph,
    )
    assert named == ((0,), (), (1,), (2, 3, 4, 5, 6))


def _last(graph: Graph, operation: int) -> str:
    return [node for node in graph.nodes if node.operation == operation][-1].outputs[0]


def test_every_run_is_measured_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MOST_PROFILED", 2)
    with compiled() as model:
        counts = [len(model.run([X], measure=True).receipt.steps[0].kernels) > 0 for _ in range(4)]
        last = model.run([X], measure=True).receipt.steps[0]
    assert counts == [True, True, False, False]
    assert last.driver_ns is not None


def test_cached_model_reports_one_kernel(tmp_path: Path) -> None:
    with compiled(tmp_path) as model:
        assert model.run([X], measure=True).receipt.steps[0].kernels
    with compiled(tmp_path) as model:
        assert str(model.receipt.steps[0].cache).startswith("hit")
        (step,) = model.run([X], measure=True).receipt.steps
    assert step.kernels == ()
    assert step.driver_ns is not None


def test_run_succeeds_when_measuring_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = engine.session_of

    def refuse(*arguments: Any, profile_to: Path | None = None, **options: Any) -> Any:
        if profile_to is not None:
            raise GeneralFailure("no profile")
        return inner(*arguments, **options)

    with compiled() as model:
        plain = np.array(model.run([X])[0])
        monkeypatch.setattr(engine, "session_of", refuse)
        outputs = model.run([X], measure=True)
    assert np.array_equal(outputs[0], plain)
    assert outputs.receipt.steps[0].kernels == ()


@pytest.mark.parametrize(
    "written", [b"", b"{", b"[]", b'[{"name": "model_run", "cat": "Session", "ts": "soon"}]']
)
def test_a_profile_that_makes_no_sense_says_nothing(
    written: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_bytes", _answering(written, Path.read_bytes))
    with compiled() as model:
        assert model.run([X], measure=True).receipt.steps[0].kernels == ()


def _answering(written: bytes, inner: Any) -> Any:
    def read_bytes(path: Path) -> bytes:
        content: bytes = written if path.name.startswith("profile") else inner(path)
        return content

    return read_bytes


def test_measured_run_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with compiled() as model:
        assert model.run([X], measure=True).receipt.steps[0].kernels
    assert _names(tmp_path) == []


def _names(folder: Path) -> Sequence[str]:
    return [path.name for path in folder.iterdir()]
