import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from penstock.drivers.reference.kernel import EXECUTION, Kernel, Site, build
from penstock.errors import Cancelled, GeneralFailure, MissedDeadlineTransient
from penstock.hal import CancelToken, ExecutionConfig
from penstock.ir import Attributes, DType, NDArray, Operand, Operation

NUMBER = Operand(DType.INT32, ())


@contextmanager
def _execution(config: ExecutionConfig) -> Iterator[None]:
    token = EXECUTION.set(config)
    try:
        yield
    finally:
        EXECUTION.reset(token)


def _kernel(kind: str, subgraphs: Sequence[Kernel], **attributes: int) -> Kernel:
    operation = Operation(kind, (0, 1), (0,), Attributes(attributes))
    return build(
        Site(operation, (NUMBER, NUMBER), (NUMBER,), lambda _: None, subgraphs.__getitem__)
    )


def _while(condition: Kernel) -> Kernel:
    def body(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        return [np.asarray(x) + 1 for x in inputs]

    subgraphs = [condition, body]
    return _kernel("WHILE", subgraphs, cond_subgraph_index=0, body_subgraph_index=1)


def _below_ten(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
    return [np.asarray(inputs[0]) < 10]


def _always(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
    return [np.array([True])]


@pytest.mark.parametrize("condition", [True, False])
def test_if_takes_one_branch_and_gives_it_the_arguments(condition: bool) -> None:
    subgraphs: list[Kernel] = [
        lambda inputs: [np.asarray(inputs[0]) + 1],
        lambda inputs: [np.asarray(inputs[0]) - 1],
    ]
    kernel = _kernel("IF", subgraphs, then_subgraph_index=0, else_subgraph_index=1)
    (got,) = kernel([np.array([condition]), np.array(5)])
    assert got == (6 if condition else 4)


def test_if_with_an_empty_condition_fails() -> None:
    subgraphs: list[Kernel] = [_always, _always]
    kernel = _kernel("IF", subgraphs, then_subgraph_index=0, else_subgraph_index=1)
    with pytest.raises(GeneralFailure, match="condition"):
        kernel([np.array([], bool), np.array(5)])


def test_while_carries_every_value_round() -> None:
    with _execution(ExecutionConfig()):
        first, second = _while(_below_ten)([np.array(0), np.array(100)])
    assert (int(first), int(second)) == (10, 110)


def test_a_while_that_never_starts_gives_its_arguments() -> None:
    with _execution(ExecutionConfig()):
        (got,) = _while(_below_ten)([np.array(20)])
    assert got == 20


def test_an_endless_while_ends_at_its_timeout() -> None:
    with _execution(ExecutionConfig(loop_timeout_ns=20_000_000)):
        began = time.monotonic()
        with pytest.raises(MissedDeadlineTransient, match="WHILE"):
            _while(_always)([np.array(0)])
    assert time.monotonic() - began < 5


def test_an_endless_while_ends_when_it_is_cancelled() -> None:
    token = CancelToken()
    timer = threading.Timer(0.02, token.set)
    timer.start()
    config = ExecutionConfig(loop_timeout_ns=15_000_000_000, cancel=token)
    with _execution(config), pytest.raises(Cancelled):
        _while(_always)([np.array(0)])
    timer.join()


def test_a_composite_is_its_decomposition() -> None:
    subgraphs: list[Kernel] = [_always, lambda inputs: [np.asarray(inputs[0]) * 3]]
    kernel = _kernel("STABLEHLO_COMPOSITE", subgraphs, decomposition_subgraph_index=1)
    assert kernel([np.array(4), None])[0] == 12
