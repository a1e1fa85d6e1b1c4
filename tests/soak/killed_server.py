"""A server whose driver's process is killed every second, for `soak_killed_drivers`.

Prints its ports as a line of JSON. Each line on stdin is answered by a line of JSON with what the
process has (`Holdings`); the end of stdin ends it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import DriverError
from penstock.export import tflite
from penstock.hal import Device
from penstock.runtime import isolation
from penstock.serve import Address, CompileSettings, Server, Service, Settings
from penstock.testing.loopback import isolated_device
from tests import support_isolated as support
from tests.support_serving import repository_of

NOTICE_SECONDS: Final = 0.02


class Ports(Struct, frozen=True):
    rest: int
    grpc: int


class Holdings(Struct, frozen=True):
    """What a server process has, the kills of its driver, and the inferences that it counted."""

    resident_kib: int
    descriptors: int
    processes: int
    threads: int
    kills: int
    counted: dict[str, int]


class Killer(threading.Thread):
    """Kills the process of *device* every *period* seconds, and has it started again at once.

    Left alone, a driver that dies so often is quarantined, and only other devices answer.
    """

    def __init__(self, device: Device, period: float) -> None:
        super().__init__(daemon=True)
        self._device, self._period = device, period
        self.ended = threading.Event()
        self.kills = 0

    def run(self) -> None:
        (supervisor,) = isolation.supervisors()
        while not self.ended.wait(self._period):
            try:
                pid = supervisor.connection().pid
                os.kill(pid, signal.SIGKILL)
                self.kills += 1
                while not self.ended.is_set() and supervisor.connection().pid == pid:
                    self.ended.wait(NOTICE_SECONDS)
            except (DriverError, ProcessLookupError):
                pass
            # The death has been noticed, and is forgiven.
            isolation.forgive(self._device)


def descendants(pid: int) -> int:
    """The number of processes below *pid*, without those that have ended."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text("ascii").split()
            for child in children:
                state = Path(f"/proc/{child}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
                count += (state != "Z") + descendants(int(child))
        except OSError:
            continue
    return count


def holdings(service: Service, killer: Killer) -> Holdings:
    gc.collect()
    text = service.metrics.exposition()[0].decode()
    counted: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith("penstock_requests_total{"):
            outcome = line.partition('outcome="')[2].partition('"')[0]
            counted[outcome] = counted.get(outcome, 0) + int(float(line.rpartition(" ")[2]))
    resident = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return Holdings(
        resident * os.sysconf("SC_PAGE_SIZE") // 1024,
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        descendants(os.getpid()),
        threading.active_count(),
        killer.kills,
        counted,
    )


def main() -> None:
    period = float(sys.argv[1])
    with (
        tempfile.TemporaryDirectory() as place,
        isolated_device("misbehaving", support.ENTRY) as device,
    ):
        settings = Settings(CompileSettings((device,), cache=False))
        files = {"add": tflite.write(support.add_one())}
        service = Service(repository_of(Path(place), files, settings), settings)
        killer = Killer(device, period)
        with Server(service, Address(port=0, grpc_port=0)) as server:
            assert server.port is not None
            assert server.grpc_port is not None
            killer.start()
            _say(Ports(server.port, server.grpc_port))
            for _ in sys.stdin:
                _say(holdings(service, killer))
            killer.ended.set()
    isolation.close_hosts()


def _say(line: Struct) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
