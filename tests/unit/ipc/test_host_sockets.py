"""Where the processes of drivers are found: by their user alone, and by one of the same machine."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

if sys.platform != "linux":
    pytest.skip("isolation is Linux's", allow_module_level=True)

from penstock.ipc import host_sockets as places
from penstock.ipc.host_sockets import AddressInUse, Place, SocketDirectory, socket_directory
from penstock.ipc.starting import connect
from penstock.ipc.system import is_stopped
from penstock.ipc.transport import close_all

NAME: Final = "0123456789abcdef" * 2
PLACE: Final = Place("met", "penstock.drivers.null:create")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a path that is longer than the address of a socket may be."""
    directory = tmp_path / ("long" * 40)
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(directory))
    return directory


def machine(state: Path) -> Path:
    (found,) = (state / places.NAME).iterdir()
    return found


def test_meeting_folder_is_private(state: Path) -> None:
    with socket_directory() as found:
        assert found is not None
    assert machine(state).stat().st_mode & 0o777 == 0o700
    assert (state / places.NAME).stat().st_mode & 0o777 == 0o700


def test_listener_is_found_and_replaced_after_its_end() -> None:
    with socket_directory() as found:
        assert found is not None
        assert found.connect(NAME, 1) is None
        with found.listen(NAME) as listener:
            known = found.connect(NAME, 1)
            assert known is not None
            listener.accept()[0].close()
            known.close()
            with pytest.raises(AddressInUse):
                found.listen(NAME)
        assert found.connect(NAME, 1) is None
        with found.listen(NAME):
            pass


def test_one_of_many_starting_processes_listens() -> None:
    made: list[socket.socket] = []
    go_on = threading.Event()

    def start() -> None:
        with socket_directory() as found:
            assert found is not None
            go_on.wait()
            with suppress(AddressInUse):
                made.append(found.listen(NAME))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    made[0].close()


def test_sockets_of_those_that_have_ended_are_removed_where_there_are_many(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MOST_SOCKETS", 3)
    with socket_directory() as found:
        assert found is not None
        with found.listen("f" * 40) as kept:
            for number in range(6):
                found.listen(f"{number:040}").close()
            left = {p.name for p in machine(state).iterdir()} - {places.LOCK}
            assert "f" * 40 in left
            assert len(left) <= 5
            kept.close()


def test_directories_of_other_machines_are_removed_once_they_are_old(state: Path) -> None:
    old, new = (state / places.NAME / name for name in ("old", "new"))
    for directory in (old, new):
        directory.mkdir(parents=True)
        (directory / "x").touch()
    os.utime(old, (1, 1))
    with socket_directory():
        pass
    assert not old.exists()
    assert (new / "x").exists()


@pytest.mark.parametrize("spoiled", ["a file in its place", "no home"])
def test_without_a_directory_each_client_has_a_host_of_its_own(
    spoiled: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spoiled == "no home":
        monkeypatch.setenv("PENSTOCK_STATE_DIR", "")
        for name in ("HOME", "XDG_STATE_HOME"):
            monkeypatch.setenv(name, "")
        monkeypatch.setattr("platformdirs.user_state_dir", lambda *_, **__: "~/nowhere")
    else:
        state.mkdir(parents=True)
        (state / places.NAME).touch()
    with socket_directory() as found:
        assert found is None
    started = [connect(PLACE) for _ in range(2)]
    assert all(each.child and each.pidfd >= 0 for each in started)
    assert started[0].pid != started[1].pid
    for each in started:
        each.connection.close()
        os.waitpid(each.broker, 0)
        close_all([each.page, each.output, each.pidfd])


def test_foreign_abstract_addresses_block_no_start() -> None:
    """There is no address that another user could be first at."""
    first = connect(PLACE)
    names = Path("/proc/net/unix").read_text("utf-8", "replace")
    assert "@penstock" not in names
    second = connect(PLACE)
    assert second.pid == first.pid
    assert not is_stopped(first.pid)
    for each in (first, second):
        each.connection.close()
    end = time.monotonic() + 20
    while time.monotonic() < end and not os.waitpid(first.broker, os.WNOHANG)[0]:
        time.sleep(0.01)
    close_all([fd for each in (first, second) for fd in (each.page, each.output, each.pidfd)])


def test_a_name_is_one_of_a_directory() -> None:
    with socket_directory() as found:
        assert isinstance(found, SocketDirectory)
        with pytest.raises(OSError, match="No such file"):
            found.listen("a/b")
