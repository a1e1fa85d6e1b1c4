"""A running server: both transports, and its end without a lost request."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any, Final

import grpc
import uvicorn
from msgspec import Struct

from penstock.closing import Closing
from penstock.errors import InputError
from penstock.serve.access import Access
from penstock.serve.rest.application import application
from penstock.serve.rpc.servicer import grpc_server
from penstock.serve.service import Service

LOCALHOST: Final = "127.0.0.1"
DRAIN_SECONDS: Final = 30.0
"""Time that requests in progress have to end once the server shuts down."""

POLL_SECONDS: Final = 0.005


class Address(Struct, frozen=True):
    """Where a server listens, and its certificate and key (PEM files) for TLS.

    Port 0 is a free port. A port of None turns the transport off.
    """

    host: str = LOCALHOST
    port: int | None = 8000
    grpc_port: int | None = 8001
    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InputError("TLS needs both a certificate and its key")


class Server(Closing):
    """Serves *service* from threads of its own, from construction to `close`.

    Requests that are in progress then have *drain_seconds* to end. *port* and *grpc_port* are the
    ports that it listens on. Raises `InputError` if it cannot listen.
    """

    def __init__(
        self,
        service: Service,
        address: Address | None = None,
        access: Access | None = None,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        address = Address() if address is None else address
        self.service = service
        self._drain_seconds = drain_seconds
        self.port: int | None = None
        self.grpc_port: int | None = None
        self._rest: _Rest | None = None
        self._rpc: grpc.Server | None = None
        access = Access() if access is None else access
        if address.port is not None:
            self._rest = _Rest(service, address, access)
            self.port = self._rest.port
        if address.grpc_port is not None:
            try:
                self._rpc, self.grpc_port = grpc_server(
                    service,
                    access,
                    f"{_bracketed(address.host)}:{address.grpc_port}",
                    _tls(address),
                )
            except BaseException:
                self._drain_seconds = 0.0
                self.close()
                raise

    def close(self) -> None:
        """Refuses new requests, gives those in progress time to end, and unloads the models."""
        seconds = self._drain_seconds
        self.service.drain()
        stopped = None if self._rpc is None else self._rpc.stop(seconds)
        if self._rest is not None:
            self._rest.close(seconds)
        if stopped is not None:
            stopped.wait()
        self.service.close()


class _Rest:
    """uvicorn in a thread."""

    def __init__(self, service: Service, address: Address, access: Access) -> None:
        assert address.port is not None
        self._socket = _listening(address.host, address.port)
        self.port: int = self._socket.getsockname()[1]
        tls: dict[str, Any] = {}
        if address.certificate is not None:
            tls = {"ssl_certfile": address.certificate, "ssl_keyfile": address.key}
        config = uvicorn.Config(
            application(service, access),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=int(DRAIN_SECONDS),
            **tls,
        )
        self._config = config
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="penstock-rest", daemon=True
        )
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                self._socket.close()
                raise InputError("the HTTP server did not start; see its log")
            time.sleep(POLL_SECONDS)

    def close(self, seconds: float) -> None:
        self._config.timeout_graceful_shutdown = max(1, int(seconds))
        self._server.should_exit = True
        self._thread.join(seconds + 1)
        self._socket.close()


def _bracketed(host: str) -> str:
    """*host* before a port; an IPv6 address needs brackets."""
    return f"[{host}]" if ":" in host else host


def _tls(address: Address) -> tuple[bytes, bytes] | None:
    """The private key and the certificate. Raises `InputError`."""
    if address.certificate is None or address.key is None:
        return None
    try:
        return Path(address.key).read_bytes(), Path(address.certificate).read_bytes()
    except OSError as error:
        raise InputError(f"the certificate or its key cannot be read: {error}") from error


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens on *host* and *port*. Raises `InputError`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio turns Nagle's algorithm off for sockets that name the protocol.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, port))
            made.listen(1024)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise InputError(f"cannot listen on {host} port {port}: {error}") from error
    return made
