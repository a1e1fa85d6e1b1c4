"""A model whose driver's process has ended is loaded from its cache entry, or else compiled."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.ipc.client import RemoteDevice
from penstock.runtime import isolation
from penstock.runtime.discovery import Manager
from tests import support_isolated as support

X = np.full(support.SHAPE, 3, np.float32)


@pytest.fixture(autouse=True)
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes of one's own, which end with the test."""
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    monkeypatch.setattr("penstock.runtime.session.manager", Manager())
    monkeypatch.setattr(isolation, "_supervisors", {})
    yield
    isolation.close_hosts()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the calls that prepare models in host processes."""
    made: list[str] = []
    for name in ("prepare_model", "prepare_model_from_cache"):
        whole = getattr(RemoteDevice, name)

        def call(*arguments: Any, whole: Any = whole, name: str = name) -> Any:
            made.append(name)
            return whole(*arguments)

        monkeypatch.setattr(RemoteDevice, name, call)
    return made


def compiled(cache: Path) -> penstock.CompiledModel:
    return penstock.compile(support.add_one(), ["llvm"], isolate=True, cache=cache)


def end_process() -> None:
    (supervisor,) = isolation._supervisors.values()
    os.kill(supervisor.connection(None).pid, signal.SIGKILL)


@pytest.mark.parametrize("filled", [False, True], ids=["compiled here", "from the cache"])
def test_a_model_is_loaded_again_from_its_cache_entry(
    tmp_path: Path, calls: list[str], filled: bool
) -> None:
    if filled:
        compiled(tmp_path / "cache").close()
    with compiled(tmp_path / "cache") as model:
        before = model.run([X])[0]
        calls.clear()
        end_process()
        again = model.run([X])
    np.testing.assert_array_equal(again[0], before)
    assert calls == ["prepare_model_from_cache"]
    assert "it was started again, and the run repeated" in again.receipt.show()


@pytest.mark.parametrize("damage", ["removed", "altered"])
def test_a_model_whose_cache_entry_is_of_no_use_is_compiled_again(
    tmp_path: Path, calls: list[str], damage: str
) -> None:
    with compiled(tmp_path / "cache") as model:
        before = model.run([X])[0]
        for file in (tmp_path / "cache").rglob("*"):
            if file.is_file() and damage == "removed":
                file.unlink()
            elif file.is_file() and file.name.endswith(("10", "20")):
                content = bytearray(file.read_bytes())
                content[len(content) // 2] ^= 1
                file.write_bytes(content)
        calls.clear()
        end_process()
        again = model.run([X])[0]
    np.testing.assert_array_equal(again, before)
    assert calls[-1] == "prepare_model"
