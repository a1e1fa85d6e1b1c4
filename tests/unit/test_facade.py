"""Packages whose names load their modules when first asked for."""

from __future__ import annotations

import gc
import importlib
import os
import threading
from unittest.mock import Mock

import pytest

from penstock.facade import Uncollected, load, uncollected
from tests.support_forks import in_child
from tests.support_programs import run_python

ENOUGH = 2 * gc.get_threshold()[0]
"""Objects for which a collection of young ones would begin."""

PACKAGES = ("penstock.execution", "penstock.hal", "penstock.ir")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_is_there_and_is_kept(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is vars(module)[name]


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_name_of_a_package_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = importlib.import_module(package).nothing


def test_package_loads_submodules_on_first_use() -> None:
    code = (
        "import sys; from penstock.ir import DType;"
        "print('penstock.ir.types' in sys.modules, 'penstock.ir.model' in sys.modules)"
    )
    done = run_python("-c", code, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_collections_pause_in_nested_blocks_and_stay_as_they_were() -> None:
    pause = Uncollected()
    assert gc.isenabled()
    with pause:
        with pause:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with pause:
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_program_that_froze_its_objects_is_asked_for_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python counts them one by one, which takes a tenth of a second for a million."""
    count = Mock(return_value=1_000_000)
    monkeypatch.setattr("gc.get_freeze_count", count)
    monkeypatch.setattr("gc.unfreeze", lambda: pytest.fail("the program's objects are unfrozen"))
    pause, kept = Uncollected(), list[list[int]]()
    for _ in range(3):
        with pause:
            kept += [[] for _ in range(ENOUGH)]
    assert count.call_count == 1
    assert gc.isenabled()


def test_objects_made_in_a_pause_are_old() -> None:
    code = (
        "import gc\nfrom penstock.facade import Uncollected\n"
        f"with Uncollected():\n kept = [[] for _ in range({ENOUGH})]\n"
        "print(any(old is kept[-1] for old in gc.get_objects(generation=2)))"
    )
    assert run_python("-c", code, check=True).stdout.strip() == "True"


def test_garbage_of_many_pauses_is_collected() -> None:
    """Each of them starts Python's counts anew, so no collection of its own would ever be due."""
    code = (
        "import gc\nfrom penstock import facade\n"
        f"facade.MOST, pause, collected = {5 * ENOUGH}, facade.Uncollected(), []\n"
        "gc.collect = lambda *given: collected.append(given)\n"
        "for _ in range(6):\n"
        f" with pause:\n  for _ in range({ENOUGH}):\n   circle = []\n   circle.append(circle)\n"
        "print(collected)"
    )
    assert run_python("-c", code, check=True).stdout.strip() == "[()]"


def test_pause_that_makes_little_leaves_the_counts_of_collections_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gc.freeze", lambda: pytest.fail("counts begin anew"))
    gc.collect()
    with Uncollected():
        pass
    assert gc.isenabled()


def test_an_import_on_first_use_collects_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr("importlib.import_module", lambda _: seen.append(gc.isenabled()))
    load("anything")
    assert seen == [False]
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_pause_of_another_thread_ends_in_a_forked_child() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with uncollected:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(10)
        assert not gc.isenabled()

        def child() -> None:
            assert gc.isenabled()
            with uncollected:
                assert not gc.isenabled()
            assert gc.isenabled()

        in_child(child)
    finally:
        done.set()
        thread.join()
    assert gc.isenabled()
