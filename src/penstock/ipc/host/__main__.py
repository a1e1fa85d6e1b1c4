"""`python -m penstock.ipc.host NAME VALUE ORIGIN`: the driver of that entry point, served on the
socket that was inherited.

Descriptor 3 is a Unix socket to the first client, and 4 one that listens for others, unless the
first argument is `--alone`; 1 and 2 are a file that clients read. Whoever starts the process says
what to import; clients say nothing but what the wire has.

The process is two: the driver's, which gives up what it must not have and imports the driver, and
its parent, the broker, which does neither.

`python -m penstock.ipc.host --service PATH [--users UID,UID] NAME VALUE` is a service that an
administrator runs as a user of its own: it listens at PATH, in a directory that only that user or
root can write, for clients of other users, whose settings name it (the knob `services`). Its
registry and its key are then out of its clients' reach.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

from penstock import knobs
from penstock.ipc.host.broker import Broker, Wanted, give, launch
from penstock.ipc.sandbox.kernel import Measure

FIRST: Final = 3
LISTENER: Final = 4


def main() -> None:
    """Serves: until the last client is gone, or as a service until it is ended."""
    if sys.platform == "win32":
        raise SystemExit("drivers run in processes of their own on Linux only")
    wanted = _wanted(sys.argv[1:])
    guests, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked, asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    broker = os.getpid()

    def drive(apart: Measure, ready: Callable[[], None]) -> NoReturn:
        _drive(wanted, given, asking, broker, apart, ready)

    # Before anything starts a thread, as NumPy does, and before anything of the driver's or of the
    # key's is in memory.
    kept = [s for s in (guests, asked, wanted.first, wanted.listener) if s is not None]
    launched = launch(drive, apart=knobs.namespaces(), kept=kept)
    given.close()
    asking.close()
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


def _drive(
    wanted: Wanted,
    guests: socket.socket,
    asking: socket.socket,
    broker: int,
    apart: Measure,
    ready: Callable[[], None],
) -> NoReturn:
    import faulthandler

    faulthandler.enable()
    # Where there is a file system of its own, the number by which others know it is not seen any
    # more.
    own = os.path.basename(os.readlink("/proc/self"))
    from penstock.ipc import sandbox

    policy = sandbox.host_policy()
    if apart.holds:
        policy = sandbox.enter_view(policy)
    ready()
    hand_over = partial(give, guests) if knobs.sandbox_log() else None
    report = sandbox.apply(policy, apart, hand_over)
    from penstock.ipc.host.process import Host
    from penstock.ipc.host.sealing import ParentKeeper
    from penstock.sealed.entry import kept_by

    kept_by(ParentKeeper(asking, wanted.origin))
    place = wanted.name, wanted.value, wanted.origin
    processes = int(own), broker
    Host(place, guests, processes, report.lines(), service=wanted.service).run()


if __name__ == "__main__":
    main()
