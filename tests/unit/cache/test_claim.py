from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from penstock.cache import claim as module
from penstock.cache.claim import Claim, boot, namespace, started

NOW = 1_000_000.0


def own(**changes: Any) -> Claim:
    claim = Claim.of_this_process(NOW, 60.0).late_writers(2, 1, marked=False)
    return msgspec.structs.replace(claim, **changes)


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        process.wait()
        return process.pid


def test_a_claim_comes_back() -> None:
    assert Claim.unpack(own().pack()) == own()


@given(st.binary(max_size=300))
def test_any_bytes_are_a_claim_or_none(content: bytes) -> None:
    assert Claim.unpack(content) is None


def test_bytes_that_are_no_text_are_no_claim() -> None:
    assert Claim.unpack(own().pack().replace(b'"pid"', b'"p\xffd"')) is None


@pytest.mark.parametrize("wrong", [{"pid": 0}, {"pid": -1}, {"models": 33}, {"datas": 1 << 80}])
def test_a_claim_must_make_sense(wrong: dict[str, int]) -> None:
    assert Claim.unpack(own(**wrong).pack()) is None


def test_a_claim_ends() -> None:
    assert not own().expired(NOW)
    assert not own().expired(NOW + 59.9)
    assert own().expired(NOW + 60)


def test_a_clock_that_is_set_back_ends_a_claim() -> None:
    assert own().expired(NOW - 1)
    assert own(until=float("inf")).expired(NOW)
    assert own(until=float("nan")).expired(NOW)


def test_this_process_lives() -> None:
    assert own().pid == os.getpid()
    assert not own().dead()


def test_a_process_that_ended_is_dead() -> None:
    assert own(pid=ended_process()).dead()


@pytest.mark.skipif(
    not started(os.getpid()), reason="the platform does not tell when a process started"
)
def test_a_process_of_the_same_number_is_another() -> None:
    assert own(started="1").dead()


@pytest.mark.skipif(not boot(), reason="the platform does not name its boots")
def test_nobody_lives_through_a_restart_of_the_system() -> None:
    assert own(boot="another").dead()


@pytest.mark.skipif(not namespace(), reason="the platform has one namespace of processes")
def test_a_process_that_cannot_be_seen_counts_as_alive() -> None:
    assert not own(namespace="pid:[1]", pid=ended_process()).dead()


def test_where_nothing_is_told_but_which_processes_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_text", lambda _: "")
    assert own().started == ""
    assert not own().dead()
    assert own(pid=ended_process()).dead()
    assert own(pid=1 << 40).dead()


def test_where_no_process_can_be_asked_about_it_counts_as_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_text", lambda _: "")
    monkeypatch.setattr(module, "sys", SimpleNamespace(platform="win32"))
    assert not own(pid=ended_process()).dead()


def test_a_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(module, "_text", lambda _: "")
    monkeypatch.setattr("os.kill", refuse)
    assert not own().dead()


def test_where_processes_have_one_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> Path:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(Path, "readlink", missing)
    assert namespace() == ""
    assert not own().dead()


def test_a_program_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"7 (a) b (c ) S {' '.join(map(str, range(4, 40)))}"
    monkeypatch.setattr(module, "_text", lambda _: line)
    assert started(7) == "22"
