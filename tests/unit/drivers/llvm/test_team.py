"""Threads share a run: the results are those of one thread, and no thread outlives its models."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from penstock import hal
from penstock.drivers.llvm import LlvmDevice
from penstock.drivers.llvm.prepared import LlvmPreparedModel
from penstock.drivers.llvm.run import team
from penstock.errors import DeadObject
from penstock.hal import ExecutionConfig, PrepareConfig
from penstock.ir import Model, NDArray
from tests.support_llvm import needs_llvm
from tests.support_threads_llvm import CLASSES, image, network

pytestmark = needs_llvm

DONE = ExecutionConfig()


def prepared(model: Model, threads: int) -> LlvmPreparedModel:
    made = LlvmDevice().prepare_model(model, PrepareConfig(num_threads=threads))
    assert isinstance(made, LlvmPreparedModel)
    return made


def answer(model: LlvmPreparedModel, array: NDArray) -> bytes:
    result = np.zeros((1, CLASSES), np.float32)
    given, wanted = hal.HostMemory(array), hal.HostMemory(result)
    model.execute(hal.Request((given,), (wanted,)), DONE)
    return result.tobytes()


def names() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("penstock-llvm")]


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    array, model = image(), network()
    results = {}
    for threads in (1, 2, 3, 4, 7):
        made = prepared(model, threads)
        assert made.executable is not None
        assert made.executable.code.threads == threads
        results[threads] = {answer(made, array) for _ in range(20)}
        made.close()
    (expected,) = results[1]
    assert all(result == {expected} for result in results.values())


def test_a_program_of_many_groups_is_shared_to_its_end() -> None:
    array, model = image(), network(34)
    results = []
    for threads in (1, 3):
        made = prepared(model, threads)
        assert len(made.kernels) > 64  # more than a word has bits
        results.append({answer(made, array) for _ in range(5)})
        made.close()
    assert results[0] == results[1]
    assert len(results[0]) == 1


def test_runs_at_once_share_the_workers() -> None:
    arrays = [image(seed) for seed in range(6)]
    alone, many = prepared(network(), 1), prepared(network(), 3)
    expected = [answer(alone, array) for array in arrays]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(10):
            assert list(pool.map(lambda a: answer(many, a), arrays)) == expected
    assert team.size() == 2
    alone.close()
    many.close()


def test_the_team_grows_and_ends_with_its_last_model() -> None:
    gc.collect()
    team.settle()
    assert team.size() == 0
    first = prepared(network(), 2)
    assert team.size() == 1
    second = prepared(network(3), 4)
    assert team.size() == 3
    expected = answer(second, image())
    first.close()
    # The team's threads are in the code of the first model, which is closed.
    assert answer(second, image()) == expected
    assert team.size() == 3
    second.close()
    assert team.size() == 0
    assert names() == []


def test_models_are_compiled_and_closed_many_times_without_a_thread_left() -> None:
    gc.collect()
    made = LlvmDevice()
    maps = []
    for _ in range(8):
        model = made.prepare_model(network(1), PrepareConfig(num_threads=3))
        assert isinstance(model, LlvmPreparedModel)
        answer(model, image())
        model.close()
        maps.append(_mappings())
        assert names() == []
    assert maps[-1] <= maps[3] + 2


def _mappings() -> int:
    """The executable mappings of this process without a file; 0 where the system shows none."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return 0
    return sum("r-xp" in line and len(line.split()) == 5 for line in lines)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_compiles_anew() -> None:
    model, array = prepared(network(), 2), image()
    expected = answer(model, array)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        text = b"no error"
        try:
            try:
                answer(model, array)
            except DeadObject as error:
                text = str(error).encode()
            model.close()
            again = prepared(network(), 2)
            text += b"; " + (b"equal" if answer(again, array) == expected else b"different")
            again.close()
            text += b"; %d threads" % team.size()
        except BaseException as error:  # noqa: BLE001  # the parent shows it
            text += repr(error).encode()
        os.write(write, text)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        told = file.read().decode()
    os.waitpid(child, 0)
    assert told == (
        "the model was prepared before this process was forked; compile it again; equal; 0 threads"
    )
    assert answer(model, array) == expected
    model.close()


def test_a_small_network_stays_on_one_thread() -> None:
    gc.collect()
    team.settle()
    made = prepared(network(0), 4)
    assert made.executable is not None
    assert made.executable.code.threads == 1
    assert team.size() == 0
    made.close()
