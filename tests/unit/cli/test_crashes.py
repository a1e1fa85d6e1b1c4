"""`penstock doctor --last-crash`, and what `devices` and `doctor` say of isolated drivers."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from penstock.cli.application import app
from penstock.ipc.crash_records import MOST_KEPT, Crash, Underway, crash_directory, last_crash
from penstock.ipc.host_sockets import Place
from penstock.processes import this_process
from tests.support_isolated import add_one

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    return tmp_path


def crash(pid: int = 7) -> Crash:
    call = Underway("execute", "npu", "3.1", add_one())
    place = Place("mine", "mine:create")
    told = "was ended by SIGSEGV"
    return Crash.of(place, [call], pid=pid, how=told, deaths=2, output="first\nlast words\n")


def test_quarantine_is_shown_with_driver_and_end() -> None:
    left = msgspec.structs.replace(crash(1), quarantined=True)
    left.keep()
    for command in (["doctor", "--last-crash"], ["doctor"]):
        text = " ".join(RUNNER.invoke(app, command).stdout.split())
        assert time.strftime("%H:%M:%S", time.localtime(left.when + 600)) in text
        assert f"s more, in process {os.getpid()} alone; ending that lifts it" in text
    msgspec.structs.replace(left, when=left.when + 1, quarantined=False).keep()
    assert "lifts it" not in RUNNER.invoke(app, ["doctor"]).stdout


def test_expired_quarantine_is_shown_as_over() -> None:
    msgspec.structs.replace(crash(1), quarantined=True, when=time.time() - 700).keep()
    text = " ".join(RUNNER.invoke(app, ["doctor", "--last-crash"]).stdout.split())
    assert "over now" in text


def test_a_quarantine_ends_with_the_program_that_counted() -> None:
    here = this_process()
    gone = msgspec.structs.replace(here, started="before it" if here.started else "", pid=2**31)
    elsewhere = msgspec.structs.replace(here, namespace="pid:[1]")
    for program, words in (
        (gone, f"no longer: it was of process {2**31} alone, which has ended"),
        (elsewhere, f"s more, in process {here.pid} alone, unless that has ended"),
        (None, "s more, in the program that used it alone, unless that has ended"),
    ):
        one = msgspec.structs.replace(crash(1), quarantined=True, program=program)
        one.keep()
        assert last_crash() == one
        for command in (["doctor", "--last-crash"], ["doctor"]):
            assert words in " ".join(RUNNER.invoke(app, command).stdout.split())


def test_no_crash_is_said() -> None:
    result = RUNNER.invoke(app, ["doctor", "--last-crash"])
    assert result.exit_code == 0
    assert "no process of an isolated driver has died" in result.stdout


def test_the_newest_crash_is_shown() -> None:
    crash(6).keep()
    crash(7).keep()
    text = RUNNER.invoke(app, ["doctor", "--last-crash"]).stdout
    for words in ("mine:create", "7 was ended by SIGSEGV", "execute on npu, version 3.1", "ADD"):
        assert words in text
    assert "  last words" in text
    told = json.loads(RUNNER.invoke(app, ["doctor", "--last-crash", "--json"]).stdout)["crash"]
    assert (told["driver"], told["deaths"], told["pid"]) == ("mine", 2, 7)


def test_crash_shows_output_before_a_short_list_of_operations() -> None:
    names = tuple(f"{at} (ADD, '{'long/' * 40}{at}')" for at in range(30))
    one = crash()
    (call,) = one.underway
    call = msgspec.structs.replace(call, operations=names)
    msgspec.structs.replace(one, underway=(call,)).keep()
    text = RUNNER.invoke(app, ["doctor", "--last-crash"]).stdout
    lines = text.splitlines()
    assert lines[:3] == ["what the process wrote last:", "  first", "  last words"]
    assert "3 (ADD, 'long/" in text
    assert "4 (ADD" not in text
    assert "and 26 more (--json has their names)" in " ".join(text.split())
    assert len(lines) < 16
    told = json.loads(RUNNER.invoke(app, ["doctor", "--last-crash", "--json"]).stdout)["crash"]
    assert told["underway"][0]["operations"] == list(names)


def test_a_damaged_record_is_passed_over(state: Path) -> None:
    crash(6).keep()
    (state / "crashes" / "9999999999999-1.crash.json").write_bytes(b"\xff{")
    found = last_crash()
    assert found is not None
    assert found.pid == 6


def test_few_records_are_kept() -> None:
    for pid in range(MOST_KEPT + 5):
        crash(pid).keep()
    assert len(list(Path(crash_directory()).iterdir())) == MOST_KEPT


def test_devices_say_which_process_they_run_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ISOLATE", "null")
    from penstock.runtime.discovery import Manager

    manager = Manager()
    infos = {info.name: info for info in manager.infos()}
    assert infos["null"].isolated
    assert infos["null"].usable
    assert not infos["reference"].isolated
