from __future__ import annotations

import errno
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from penstock import processes as module
from penstock.cache.claim import Claim, Now, uptime
from penstock.processes import boot, namespace, started

NOW = 1_000_000.0
MOST = 600.0


def own(**changes: Any) -> Claim:
    claim = Claim.of_this_process(Now(NOW, boot=boot()), 60.0).late_writers(2, 1, marked=False)
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


@pytest.mark.parametrize("wrong", [{"pid": 0}, {"pid": 10**40}, {"models": 33}, {"datas": 1 << 80}])
def test_a_claim_must_make_sense(wrong: dict[str, int]) -> None:
    assert Claim.unpack(own(**wrong).pack()) is None


def test_a_claim_ends() -> None:
    assert not own().expired(Now(NOW), MOST)
    assert not own().expired(Now(NOW + 59.9), MOST)
    assert own().expired(Now(NOW + 60), MOST)
    assert not own().over(Now(NOW + 59.9))
    assert own().over(Now(NOW + 60))


def test_a_clock_that_is_set_back_ends_the_claim_of_a_late_writer_alone() -> None:
    assert own().expired(Now(NOW - 2), MOST)
    assert not own().over(Now(NOW - 2))
    for wrong in (float("inf"), float("nan")):
        assert own(until=wrong).expired(Now(NOW), MOST)
    assert own(until=float("nan")).over(Now(NOW))


def test_a_claim_that_makes_no_sense_ends_with_this_processs_own_limit() -> None:
    absurd = own(until=1e300, seconds=1e300)
    assert absurd.expired(Now(NOW), MOST)
    long = own(until=NOW + 1e6, seconds=1e6)
    assert not long.expired(Now(NOW + 59), 60)
    assert long.expired(Now(NOW + 60), 60)
    for seconds in (float("nan"), -1.0):
        assert own(seconds=seconds, up=5.0).expired(Now(NOW, 5.0, boot()), MOST)


@pytest.mark.skipif(not boot(), reason="the platform does not name its boots")
def test_within_one_boot_the_wall_clock_may_say_anything() -> None:
    claim = own(up=1000.0)
    for wall in (0.0, NOW, NOW + 1e9):
        assert not claim.expired(Now(wall, 1059.0, boot()), MOST)
        assert not claim.over(Now(wall, 1059.0, boot()))
        assert claim.expired(Now(wall, 1060.0, boot()), MOST)
        assert claim.over(Now(wall, 1060.0, boot()))
    assert claim.expired(Now(NOW, 1059.0, boot()), 59)
    assert claim.over(Now(NOW + 60, 1001.0, "another"))


def test_the_system_has_been_up_for_longer_at_each_look() -> None:
    first = uptime()
    assert first == 0 or 0 < first <= uptime()


def test_own_process_counts_as_alive() -> None:
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
def test_claim_of_an_earlier_boot_is_dead() -> None:
    assert own(boot="another").dead()


@pytest.mark.skipif(not namespace(), reason="the platform has one namespace of processes")
def test_a_process_that_cannot_be_seen_counts_as_alive() -> None:
    assert not own(namespace="pid:[1]", pid=ended_process()).dead()


def test_claim_without_start_times_goes_by_the_process_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_text", lambda _: "")
    assert own().started == ""
    assert not own().dead()
    assert own(pid=ended_process()).dead()
    assert own(pid=1 << 40).dead()


def test_process_that_cannot_be_examined_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_text", lambda _: "")
    monkeypatch.setattr(module, "sys", SimpleNamespace(platform="win32"))
    assert not own(pid=ended_process()).dead()


def test_a_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(module, "_text", lambda _: "")
    monkeypatch.setattr("os.kill", refuse)
    assert not own().dead()


def test_claim_without_namespaces_goes_by_the_process_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr("os.readlink", missing)
    assert namespace() == ""
    assert not own().dead()


def test_a_program_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"7 (a) b (c ) S {' '.join(map(str, range(4, 40)))}"
    monkeypatch.setattr(module, "_text", lambda _: line)
    assert started(7) == "22"
