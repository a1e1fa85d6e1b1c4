"""The reference driver's matrix products stay on the thread that runs them."""

from __future__ import annotations

import ast
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.drivers.reference import ReferenceDevice, blas, index
from penstock.drivers.reference.blas import MULTIPLYING, Pool, SingleThread, find_pool, may_divide
from penstock.hal import PrepareConfig
from penstock.ir import DType, Model, ModelBuilder

KERNELS = Path(index.__file__).parent


def multiplying(rows: int | None, depth: int) -> Model:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (rows, depth), "x")
    weights = builder.constant(np.ones((depth, depth), np.float32))
    outputs = builder.operation(
        "FULLY_CONNECTED", [x, weights, None], [(DType.FLOAT32, (rows, depth))]
    )
    return builder.build(outputs)


@pytest.fixture
def pool() -> Iterator[Pool]:
    """NumPy's, with two threads."""
    found = find_pool()
    if found is None:
        pytest.skip("NumPy here has no OpenBLAS with threads of its own")
    size = found.get()
    found.set(2)
    yield found
    found.set(size)


def taken_by_others(run: Callable[[], object]) -> float:
    """Processor time of other threads of the process, those that other tests left too, while this
    one takes 0.2 s: its share.
    """
    everything, own = time.process_time(), time.thread_time()
    while time.thread_time() - own < 0.2:
        run()
    own = time.thread_time() - own
    return (time.process_time() - everything - own) / own


def test_reference_run_uses_no_other_threads(pool: Pool) -> None:
    x = np.ones((512, 512), np.float32)
    with penstock.compile(multiplying(512, 512), devices=["reference"]) as compiled:
        compiled.run([x])
        others = min(taken_by_others(lambda: compiled.run([x])) for _ in range(5))
    assert others < 0.2
    assert pool.get() == 2


def test_blas_pool_is_limited_from_the_first_run_to_the_last() -> None:
    sizes = [8]
    single = SingleThread(lambda: Pool(lambda: sizes[-1], sizes.append))
    single.find()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with single:
            inside.set()
            leave.wait(10.0)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10.0)
    with single:
        assert sizes == [8, 1]
    assert sizes == [8, 1]
    leave.set()
    thread.join()
    assert sizes == [8, 1, 8]


def test_failed_run_restores_the_blas_pool() -> None:
    sizes = [8]
    single = SingleThread(lambda: Pool(lambda: sizes[-1], sizes.append))
    single.find()
    with pytest.raises(ValueError, match="kernel"), single:
        raise ValueError("kernel")
    assert sizes == [8, 1, 8]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_forked_during_a_run_restores_the_blas_pool() -> None:
    sizes = [8]
    single = SingleThread(lambda: Pool(lambda: sizes[-1], sizes.append))
    single.find()
    with single:
        child = os.fork()
        if not child:
            with single:
                held = sizes[-1] == 1
            os._exit(0 if held and sizes[-1] == 8 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_limiting_without_a_blas_pool_has_no_effect() -> None:
    single = SingleThread(lambda: None)
    single.find()
    with single:
        assert not single._inside


@pytest.mark.parametrize(("rows", "depth", "divided"), [(1, 8, False), (1, 96, True)])
def test_only_models_whose_products_may_be_divided_are_limited(
    rows: int, depth: int, divided: bool
) -> None:
    model = multiplying(rows, depth)
    assert may_divide(model) is divided
    prepared = ReferenceDevice().prepare_model(model, PrepareConfig())
    assert (prepared._products is blas.SINGLE_THREAD) is divided


def test_model_with_unknown_shapes_is_limited() -> None:
    assert may_divide(multiplying(None, 8))


def test_openblas_divides_nothing_smaller_than_the_least_divided(pool: Pool) -> None:
    def others(depth: int) -> float:
        left, right = np.ones((1, depth)), np.ones((depth, 1))
        # The pool's threads look for work for a while after their last.
        time.sleep(0.3)
        everything, own = time.process_time(), time.thread_time()
        while time.thread_time() - own < 0.05:
            np.matmul(left, right)
        return (time.process_time() - everything) - (time.thread_time() - own)

    assert others(4 * blas.LEAST_DIVIDED) > 0.01
    assert others(blas.LEAST_DIVIDED - 1) < 0.01


def multiplies(path: Path) -> bool:
    """Whether the operations of a file multiply matrices through NumPy, themselves or by the shared
    products.
    """
    tree = ast.parse(path.read_text("utf-8"))
    return any(
        (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult))
        or (isinstance(node, ast.Attribute) and node.attr in {"matmul", "dot", "tensordot"})
        or (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").endswith(("numerics.products", "layers.weight_formats"))
        )
        for node in ast.walk(tree)
    )


def test_every_operation_with_matrix_products_is_known() -> None:
    found = {
        row
        for module, rows in index.MODULES.items()
        if multiplies(KERNELS.joinpath(*module.split(".")).with_suffix(".py"))
        for row in rows.split()
    }
    assert {"FULLY_CONNECTED", "CONV_2D", "BATCH_MATMUL", "ROI_ALIGN"} <= found
    assert found <= MULTIPLYING
