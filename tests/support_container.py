"""Runs what a container file or a unit for systemd says, without a container engine or systemd.

    unshare --user --map-root-user --mount --net python -m tests.support_container FILE FOLDER

Its namespaces have a read-only root with this system's programs and the checkout, and a network of
their own. Only the volumes, which lie in FOLDER, and /tmp can be written. There the server of FILE
is started twice, asked, and ended by the signal of the file. Prints what happened as JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[1]
SYSTEM: Final = ("/usr", "/bin", "/lib", "/lib64", "/etc", "/dev", "/proc")
PORT: Final = 8000
PATIENCE_S: Final = 240.0

SIOCSIFFLAGS: Final = 0x8914
UP: Final = 0x41
"""IFF_UP and IFF_RUNNING of netdevice(7)."""


class Service(msgspec.Struct, frozen=True):
    """What a file says: the command, its environment, the directories that it may write, where it
    looks for models, how it is ended and whether it is well.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    volumes: tuple[str, ...]
    models: str
    end: signal.Signals
    check: tuple[str, ...] = ()


def container(text: str) -> Service:
    """The service of the container file *text*."""

    def words(name: str) -> list[str]:
        found: list[str] = json.loads(re.findall(rf"(?m)^{name} .*?(\[.*\])$", text)[-1])
        return found

    (settings,) = re.findall(r"(?m)^ENV (.*)$", text)
    (ending,) = re.findall(r"(?m)^STOPSIGNAL (\S+)$", text)
    return Service(
        (*words("ENTRYPOINT"), *words("CMD")),
        dict(each.split("=", 1) for each in shlex.split(settings)),
        tuple(re.findall(r"(?m)^VOLUME (\S+)$", text)),
        words("CMD")[-1],
        signal.Signals[ending],
        tuple(words("HEALTHCHECK")),
    )


def unit(text: str) -> Service:
    """The service of the unit *text*, without new privileges."""
    (command,) = re.findall(r"(?m)^ExecStart=(.*)$", text)
    (settings,) = re.findall(r"(?m)^Environment=(.*)$", text)
    places = {"CacheDirectory": "/var/cache", "StateDirectory": "/var/lib"}
    volumes = [f"{places[k]}/{v}" for k, v in re.findall(r"(?m)^(\w+Directory)=(.*)$", text)]
    words = shlex.split(command)
    (models,) = [word for word in words if word.startswith("/srv/")]
    return Service(
        ("setpriv", "--no-new-privs", *words),
        dict(each.split("=", 1) for each in shlex.split(settings)),
        tuple(volumes),
        models,
        signal.SIGTERM,
    )


def enter(place: Path, service: Service, models: Path) -> None:
    """Makes *place* the root directory."""
    mount("-t", "tmpfs", "root", place)
    (place / "tmp").mkdir()
    mount("-t", "tmpfs", "tmp", place / "tmp")
    python = Path(sys.base_prefix).resolve()
    for each in dict.fromkeys([*map(Path, SYSTEM), python, ROOT]):
        target = place / each.relative_to("/")
        target.mkdir(parents=True, exist_ok=True)
        mount("--rbind", each, target)
        if each in {python, ROOT}:
            mount("-o", "remount,bind,ro", target)
    for volume in service.volumes:
        bind(models.with_name(volume.replace("/", "_")), place, volume)
    bind(models, place, service.models)
    (place / "opt").mkdir()
    (place / "opt" / "penstock").symlink_to(sys.prefix)
    mount("-o", "remount,ro", place)
    os.chroot(place)
    os.chdir("/")


def bind(source: Path, place: Path, name: str) -> None:
    source.mkdir(exist_ok=True)
    target = place / name.lstrip("/")
    target.mkdir(parents=True)
    mount("--bind", source, target)


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP))


def run(service: Service) -> dict[str, Any]:
    """What a start of the server says to requests."""
    environment = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "HOME": "/tmp", **service.environment}
    with subprocess.Popen(service.command, env=environment) as server:
        try:
            end = time.monotonic() + PATIENCE_S
            while ask("/v2/health/ready") is None:
                if server.poll() is not None or time.monotonic() > end:
                    raise TimeoutError("the server did not become ready")
                time.sleep(0.1)
            check = subprocess.run(service.check or ["true"], env=environment, check=False)
            tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, -2, 3]}
            answer = json.loads(ask("/v2/models/relu/infer", {"inputs": [tensor]}) or b"null")
            metrics = (ask("/metrics") or b"").decode()
            server.send_signal(service.end)
            server.wait(PATIENCE_S)
        finally:
            server.kill()
    return {
        "check": check.returncode,
        "answer": answer["outputs"][0]["data"],
        "cache": re.findall(r'(?m)^penstock_\w+\{.*?cache="(\w+)".*?\} [1-9]', metrics),
        "status": server.returncode,
    }


def ask(path: str, body: Any = None) -> bytes | None:
    """The body of an answer; None if the server refuses or does not listen."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            found: bytes = response.read()
            return found
    except (urllib.error.URLError, ConnectionError):
        return None


def main() -> int:
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    read = unit if file.suffix == ".service" else container
    service = read(file.read_text("utf-8"))
    bring_up_loopback()
    root = folder / "root"
    root.mkdir()
    enter(root, service, folder / "models")
    sys.stdout.write(json.dumps([run(service), run(service)]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
