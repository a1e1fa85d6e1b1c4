"""A host ends with its last client, and with its parent, whatever its driver's threads are
doing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ipc.crash_records import how_ended
from penstock.ipc.host_sockets import Place
from penstock.ipc.sandbox import kernel, view
from penstock.ipc.starting import NotStarted, Started, connect
from penstock.ipc.system import children_of, open_process, wait_for_end
from penstock.ipc.transport import close_all

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="drivers run in processes of their own on Linux only"
)

SECONDS = 30.0
CLIENT = """
import sys
from penstock.ipc.sandbox import kernel, view
from penstock.ipc.host_sockets import Place
from penstock.ipc.starting import connect
connect(Place(*sys.argv[1:]))
"""


@pytest.fixture(autouse=True, params=[True, False], ids=["namespaces", "none"])
def state(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_NAMESPACES", str(int(request.param)))


@pytest.fixture
def host() -> Iterator[Started]:
    started = connect(Place("domains", "tests.support_isolated:domains"))
    yield started
    started.connection.close()
    close_all([started.pidfd, started.page, started.output])


def descendants_of(process: int) -> list[int]:
    """The children of *process*, once there are any."""
    end = time.monotonic() + SECONDS
    while not (found := children_of(process)) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def driver_of(broker: int) -> int:
    """The driver's process, which has no child."""
    found = descendants_of(broker)[0]
    while more := children_of(found):
        found = more[0]
    return found


def test_the_driver_has_no_socket_that_others_connect_to(host: Started) -> None:
    assert driver_of(host.broker) == host.pid
    held = {str(each.readlink()) for each in Path(f"/proc/{host.pid}/fd").iterdir()}
    listening = {
        line.split()[6]
        for line in Path("/proc/net/unix").read_text("utf-8", "replace").splitlines()[1:]
        if line.split()[3] == "00010000"
    }
    assert listening
    sockets = {text[8:-1] for text in held if text.startswith("socket:")}
    assert sockets
    assert not sockets & listening, "the driver has a socket that others connect to"


@pytest.mark.parametrize("ends", ["broker", "driver"])
def test_broker_and_driver_end_together(host: Started, ends: str) -> None:
    driver = open_process(host.pid)
    os.kill(host.broker if ends == "broker" else host.pid, signal.SIGKILL)
    assert wait_for_end(driver, SECONDS)
    assert wait_for_end(host.pidfd, SECONDS)
    assert how_ended(os.waitpid(host.broker, 0)[1]) == "was ended by SIGKILL"
    os.close(driver)


def test_a_driver_whose_last_client_has_left_is_killed_though_it_never_returns() -> None:
    """Its code holds the interpreter's lock, so that no thread of its process can see the client
    go.
    """
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, "stuck", "tests.support_isolated:stuck_in_native_code"]
    )
    (broker,) = descendants_of(client.pid)
    descendants_of(broker)
    time.sleep(1.0)
    processes = [open_process(each) for each in (broker, driver_of(broker))]
    client.kill()
    client.wait()
    begun = time.monotonic()
    assert all(wait_for_end(each, SECONDS) for each in processes)
    assert time.monotonic() - begun < 10
    close_all(processes)


def test_a_client_that_was_killed_is_gone_though_a_child_of_it_has_its_socket(
    tmp_path: Path,
) -> None:
    script = CLIENT.replace("connect(Pl", "held = connect(Pl") + (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    time.sleep(60)\n"
        "    os._exit(0)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", script, "domains", "tests.support_isolated:domains"],
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    of_host = [each for each in children_of(client.pid) if children_of(each)]
    child = [each for each in children_of(client.pid) if each not in of_host]
    assert len(of_host) == 1
    process = open_process(of_host[0])
    client.kill()
    client.wait()
    client.stdout.close()
    assert wait_for_end(process, SECONDS)
    os.close(process)
    for each in child:
        os.kill(each, signal.SIGKILL)


@pytest.mark.parametrize(
    ("driver", "how"), [("exits", "ended with exit status 7"), ("aborts", "was ended by SIGABRT")]
)
def test_broker_reports_how_the_driver_ended(driver: str, how: str) -> None:
    with pytest.raises(NotStarted, match=how):
        connect(Place("short", f"tests.support_isolated:{driver}"))


def test_a_driver_s_refused_calls_are_listed_and_refused_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_SANDBOX_LOG", "1")
    with pytest.raises(NotStarted) as raised:
        connect(Place("curious", "tests.support_isolated:curious"))
    output = raised.value.output
    if "seccomp: missing" in output:
        pytest.skip(output)
    # socket(AF_INET, SOCK_STREAM), twice.
    assert output.count("the sandbox refuses system call") == 1, output
    assert "(0x2, 0x80001, ...)" in output
    assert "the sandbox refuses this use of kill (0x1, 0x0, ...)" in output
    assert "PermissionError, PermissionError, PermissionError" in output


def test_a_client_that_the_driver_had_no_descriptor_for_is_taken_on_later(host: Started) -> None:
    resource = pytest.importorskip("resource", reason="limits of resources are Unix's")
    soft, hard = resource.prlimit(host.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(host.pid, resource.RLIMIT_NOFILE, (4, hard))
    others: list[Started] = []
    meeting = threading.Thread(
        target=lambda: others.append(connect(Place("domains", "tests.support_isolated:domains")))
    )
    meeting.start()
    time.sleep(0.5)
    assert not others
    resource.prlimit(host.pid, resource.RLIMIT_NOFILE, (soft, hard))
    meeting.join(SECONDS)
    assert [other.pid for other in others] == [host.pid]
    for other in others:
        other.connection.close()
        close_all([other.pidfd, other.page, other.output])


def test_without_a_directory_for_temporary_files_the_namespaces_hold(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "none" in request.node.name:
        pytest.skip("it is about namespaces")
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "file"))
    with pytest.raises(NotStarted) as raised:
        connect(Place("tells", "tests.support_isolated:tells_of_its_files"))
    said = raised.value.output
    if not (detected := kernel.detect_namespaces()).holds:
        pytest.skip(detected.detail)
    assert "/scratch written" in said


def test_view_without_scratch_directory_shows_driver_that_lies_below_tmp(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "none" in request.node.name:
        pytest.skip("it is about namespaces")
    if not (detected := kernel.detect_namespaces()).holds:
        pytest.skip(detected.detail)
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "file"))
    with tempfile.TemporaryDirectory(dir="/tmp") as modules:
        Path(modules, "driver_below_tmp.py").write_text("raise SystemExit('imported below /tmp')\n")
        monkeypatch.syspath_prepend(modules)
        with pytest.raises(NotStarted) as raised:
            connect(Place("below", "driver_below_tmp:create"))
    assert "imported below /tmp" in f"{raised.value.output}{raised.value}"


@pytest.mark.parametrize("path", ["/tmp", "/tmp/modules"])
def test_view_is_mounted_where_it_hides_no_path_that_it_shows(path: str) -> None:
    assert view._mount_point([path, "/usr/lib"]) not in {"/tmp", "/usr"}


def test_a_program_in_a_home_directory_shows_drivers_its_modules_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `python ~/program.py` has it: the directory of the program is on the path of modules."""
    home = tmp_path / "home"
    state = home / ".local" / "state" / "penstock"
    (state / "seals").mkdir(parents=True)
    (state / "seals" / "key").write_bytes(bytes(32))
    (home / "letter").write_text("private")
    (home / "mine.py").write_text("VALUE = 7\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PENSTOCK_STATE_DIR", "")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.syspath_prepend(str(home))
    with pytest.raises(NotStarted) as raised:
        connect(Place("tells", "tests.support_isolated:tells_of_its_files"))
    said = raised.value.output
    if "landlock: missing" in said:
        pytest.skip(said)
    for private in (state / "seals" / "key", home / "letter"):
        assert f"{private} refused" in said, said
    assert "read: []" in said or f"read: ['{home / 'mine.py'}']" in said, said


def test_a_broker_that_cannot_give_its_first_client_to_the_driver_ends_both() -> None:
    program = """
import os, socket, time
from penstock.ipc.host.broker import Broker, Wanted
from penstock.ipc.host.broker import Launched
driver = os.fork()
if not driver:
    time.sleep(600)
    os._exit(0)
guests, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
given.close()
asked, asking = socket.socketpair()
first, client = socket.socketpair()
wanted = Wanted("x", "x:x", "x", first, None, None, False)
Broker(Launched(driver), guests, asked, wanted).run()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=SECONDS, check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
