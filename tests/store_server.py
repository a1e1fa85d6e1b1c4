"""A server of object storage for tests, in a process of its own, with faults on request: python
store_server.py s3|gs.

S3 is moto's server. Google's is fake-gcs-server (`tests.google_storage`). It writes its port. `PUT
/faults/KIND` makes each later request fail that way, until `PUT /faults/none`.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_CHUNK = b"x" * 65536
_MODIFIED = "Sun, 29 Nov 2026 00:00:00 GMT"


class Faulty:
    """Answers as *application*, but for the fault that was asked for."""

    def __init__(self, application: Any) -> None:
        self._application, self.fault, self._until = application, "none", 0.0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith("/faults/"):
            self.fault, self._until = path.removeprefix("/faults/"), time.monotonic() + 1.5
            return _answer(start, "200 OK")
        if self.fault == "error":
            return _answer(start, "503 Service Unavailable")
        if self.fault == "busy":
            return _answer(start, "503 Slow Down", headers=[("Retry-After", "100")])
        if self.fault == "pausing" and time.monotonic() < self._until:
            return _answer(start, "503 Slow Down", headers=[("Retry-After", "2")])
        if self.fault == "stumbling":
            self.fault = "none"
            return _answer(start, "503 Slow Down")
        if self.fault == "silent":
            time.sleep(30)
        if self.fault == "slow":
            time.sleep(0.1)
        if self.fault == "reset":
            return _reset(environ)
        if self.fault == "endless" and method == "GET":
            start("200 OK", [("ETag", '"0"'), ("Last-Modified", _MODIFIED)])
            return _endless()
        if self.fault == "unconditional":
            for name in ("IF_MATCH", "IF_NONE_MATCH", "X_GOOG_IF_GENERATION_MATCH"):
                environ.pop(f"HTTP_{name}", None)
        if method == "PUT" and self.fault in {"lost", "repeated"}:
            return self._lost(environ, start)
        answer: Iterable[bytes] = self._application(environ, start)
        if self.fault == "partial" and method == "GET":
            content = b"".join(answer)
            return [content[: len(content) // 2]]
        return answer

    def _lost(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Does what is asked. Then the connection ends without the answer (`lost`), or the answer
        is an error, which makes clients send the request again (`repeated`).
        """
        said: list[str] = []
        content = b"".join(self._application(environ, lambda status, *_: said.append(status)))
        if said and not said[0].startswith("200"):
            return _answer(start, said[0], content)
        return _reset(environ) if self.fault == "lost" else _answer(start, "503 Lost")


def _answer(
    start: Callable[..., Any],
    status: str,
    content: bytes = b"",
    headers: Iterable[tuple[str, str]] = (),
) -> Iterable[bytes]:
    start(status, [("Content-Length", str(len(content))), *headers])
    return [content]


def _reset(environ: dict[str, Any]) -> Iterable[bytes]:
    connection: socket.socket = environ["werkzeug.socket"]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError


def _endless() -> Iterator[bytes]:
    while True:
        yield _CHUNK


class _Quiet(WSGIRequestHandler):
    def log(self, *_: object) -> None:
        return


def application(kind: str) -> Any:
    if kind == "gs":
        from tests.google_storage import GoogleStorage

        return GoogleStorage()
    from moto.server import DomainDispatcherApplication, create_backend_app

    return DomainDispatcherApplication(create_backend_app)


def main() -> None:
    faulty = Faulty(application(sys.argv[1]))
    server = make_server("127.0.0.1", 0, faulty, threaded=True, request_handler=_Quiet)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
