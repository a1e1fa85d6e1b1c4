"""A server that speaks S3, for tests: moto's, in a process of its own, with faults on request.

It writes its port. `PUT /faults/KIND` makes each later request fail that way, until `PUT
/faults/none`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

_CHUNK = b"x" * 65536


class Faulty:
    """Answers as *application*, but for the fault that was asked for."""

    def __init__(self, application: Any) -> None:
        self._application, self.fault, self.requests = application, "none", 0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/faults/"):
            self.fault = path.removeprefix("/faults/")
            start("200 OK", [("Content-Length", "0")])
            return [b""]
        if self.fault == "error":
            start("503 Service Unavailable", [("Content-Length", "0")])
            return [b""]
        if self.fault == "silent":
            time.sleep(30)
        if self.fault == "slow":
            time.sleep(0.1)
        if self.fault == "endless" and environ["REQUEST_METHOD"] == "GET":
            start("200 OK", [("ETag", '"0"'), ("Last-Modified", _MODIFIED)])
            return _endless()
        if self.fault == "unconditional":
            for name in ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"):
                environ.pop(name, None)
        answer: Iterable[bytes] = self._application(environ, start)
        if self.fault == "partial" and environ["REQUEST_METHOD"] == "GET":
            content = b"".join(answer)
            return [content[: len(content) // 2]]
        return answer


_MODIFIED = "Sun, 29 Nov 2026 00:00:00 GMT"


def _endless() -> Iterator[bytes]:
    while True:
        yield _CHUNK


def main() -> None:
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, Faulty(application), threaded=True)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
