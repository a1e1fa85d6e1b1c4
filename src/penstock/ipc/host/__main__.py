"""The host process: `python -m penstock.ipc.host NAME VALUE ORIGIN` serves one driver.

NAME, VALUE and ORIGIN are the driver's entry point. Descriptor 3 is a Unix socket connected to the
first client. Descriptor 4 is a socket that listens for others, unless the first argument is
`--alone`. Descriptors 1 and 2 are a file that clients read. Only the process that starts the host
chooses what is imported; a client can send only messages of the protocol.

There are two processes. The driver's process drops its privileges and imports the driver. Its
parent, the broker, does neither.

`python -m penstock.ipc.host --service PATH [--users UID,UID] NAME VALUE` runs a service under a
separate user, for an administrator. It listens at PATH, in a directory that only that user or root
can write. Clients of other users name the service in their settings (the knob `services`). Its
clients cannot reach its registry or its key.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

from penstock import knobs
from penstock.distribution import DISTRIBUTION, WITH_SHADERS
from penstock.ipc.host.broker import Broker, Wanted, collect_from_now_on, give, launch
from penstock.ipc.sandbox.kernel import Measure

FIRST: Final = 3
LISTENER: Final = 4


def main() -> None:
    """Serves until the last client disconnects; a service runs until it is stopped."""
    if sys.platform == "win32":
        raise SystemExit("drivers run in processes of their own on Linux only")
    # Imports make objects that live as long as the process: to look for cycles finds none.
    gc.disable()
    wanted = _wanted(sys.argv[1:])
    guests, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked, asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    broker = os.getpid()

    def drive(apart: Measure, ready: Callable[[], None]) -> NoReturn:
        import faulthandler

        faulthandler.enable()
        # In a mount namespace of its own, it cannot see the PID that other processes know it by.
        own = os.path.basename(os.readlink("/proc/self"))
        from penstock.ipc import sandbox

        own_driver = wanted.origin.startswith(f"{DISTRIBUTION}:")
        policy = sandbox.host_policy(shaders=own_driver and wanted.name in WITH_SHADERS)
        if apart.holds:
            policy = sandbox.enter_view(policy)
        ready()
        hand_over = partial(give, given) if knobs.sandbox_log() else None
        report = sandbox.apply(policy, apart, hand_over)
        from penstock.ipc.host.process import Host
        from penstock.ipc.host.sealing import ParentKeeper
        from penstock.sealed.entry import kept_by

        kept_by(ParentKeeper(asking, wanted.origin))
        place = wanted.name, wanted.value, wanted.origin
        processes = int(own), broker
        Host(place, given, processes, report.lines(), service=wanted.service).run()

    # Before anything starts a thread, as NumPy does, and before the driver's code or the key is in
    # memory.
    kept = [s for s in (guests, asked, wanted.first, wanted.listener) if s is not None]
    launched = launch(drive, apart=knobs.namespaces(), kept=kept)
    given.close()
    asking.close()
    collect_from_now_on()
    Broker(launched, guests, asked, wanted).run()


def _wanted(arguments: list[str]) -> Wanted:
    if arguments[:1] == ["--service"]:
        from penstock.ipc.host_sockets import listen, prepare

        path, arguments = arguments[1], arguments[2:]
        users = None
        if arguments[:1] == ["--users"]:
            users = frozenset(map(int, arguments[1].split(",")))
            arguments = arguments[2:]
        prepare()
        name, value = arguments
        listener = socket.socket(fileno=listen(path))
        return Wanted(name, value, f"service:{name}={value}", None, listener, users, service=True)
    from penstock.ipc.system import current_user

    alone = arguments[:1] == ["--alone"]
    name, value, origin = arguments[alone:]
    os.closerange(LISTENER + (not alone), 1 << 16)
    others = None if alone else socket.socket(fileno=LISTENER)
    own = frozenset({current_user()})
    first = socket.socket(fileno=FIRST)
    return Wanted(name, value, origin, first, others, own, service=False)


if __name__ == "__main__":
    main()
