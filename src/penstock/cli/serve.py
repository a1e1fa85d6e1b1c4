"""`penstock serve`: answers requests for models over REST and gRPC, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import queue as queues
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from penstock.cli import failures, opening, options
from penstock.cli.declarations import argument, option
from penstock.cli.failures import FileError, UsageError
from penstock.cli.output import Output, milliseconds
from penstock.distribution import install_command
from penstock.errors import BadSetting, InputError, ModelError, NotAvailable, counted

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.serve import ModelRepository, Server

OFF = -1
"""A port that turns its transport off."""


def serve(
    output: Output,
    models: Annotated[
        list[str],
        argument("MODEL", "A model file, NAME=FILE, or a directory of NAME/VERSION/FILE."),
    ],
    host: Annotated[
        str, option("--host HOST", "The address to listen on; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("--port N", "The port for REST; 0 for a free one, -1 for none.", least=OFF)
    ] = 8000,
    grpc_port: Annotated[
        int, option("--grpc-port N", "The port for gRPC; 0 for a free one, -1 for none.", least=OFF)
    ] = 8001,
    device: options.Devices = None,
    accuracy: options.Accuracy = None,
    placement: options.Placement = None,
    threads: options.Threads = None,
    shape: options.Shapes = None,
    no_cache: Annotated[bool, option("--no-cache", "Compile anew, and save nothing.")] = False,
    max_batch: Annotated[
        int,
        option("--max-batch N", "Most rows that requests share in one run; 1: none.", least=1),
    ] = 1,
    max_delay: Annotated[
        float,
        option("--max-delay MS", "Milliseconds that a request waits for others.", least=0),
    ] = 0.0,
    running: Annotated[
        int, option("--running N", "Runs of one model at the same time.", least=1)
    ] = 1,
    queue: Annotated[
        int, option("--queue N", "Requests that wait for one model; more get 503.", least=1)
    ] = 64,
    max_body: Annotated[
        int, option("--max-body MIB", "Greatest size of a request in MiB.", least=1)
    ] = 64,
    memory: Annotated[
        int | None,
        option(
            "--memory MIB",
            "Memory of all models; the least recently used are unloaded to make room.",
            least=1,
        ),
    ] = None,
    model_memory: Annotated[
        int | None,
        option("--model-memory MIB", "A model that needs more memory is not loaded.", least=1),
    ] = None,
    pin: Annotated[
        list[str] | None, option("--pin MODEL", "Never unload this model to make room.")
    ] = None,
    shared_memory: Annotated[
        str | None,
        option("--shared-memory PREFIX", "Let clients register shared memory with such keys."),
    ] = None,
    trust_shared_memory: Annotated[
        bool,
        option(
            "--trust-shared-memory",
            "Map that memory; a client that shrinks it then ends the server.",
        ),
    ] = False,
    token_file: Annotated[
        str | None, option("--token-file F", "A file with the bearer token of requests.")
    ] = None,
    admin_token_file: Annotated[
        str | None,
        option("--admin-token-file F", "A file with the token of repository calls; allows them."),
    ] = None,
    tls_certificate: Annotated[
        str | None, option("--tls-certificate F", "The server's certificate chain (PEM).")
    ] = None,
    tls_key: Annotated[
        str | None, option("--tls-key F", "The private key of the certificate (PEM).")
    ] = None,
    drain: Annotated[
        float, option("--drain S", "Seconds that requests have to end at SIGTERM.", least=0)
    ] = 30.0,
    log: Annotated[
        bool, option("--log", "Log each inference as a line of JSON on stderr.")
    ] = False,
) -> None:
    """Answer requests for models over REST and gRPC.

    The Open Inference Protocol, version 2: clients for it (tritonclient, KServe's) work unchanged.
    Listens on this machine alone unless --host says otherwise, and ends with SIGTERM or Ctrl-C.
    Needs the extra `serve`.
    """
    try:
        from penstock.serve.access import Access, read_token
        from penstock.serve.server import Address, Server
    except ImportError as error:
        raise NotAvailable(
            f"{error.name} is not installed; {install_command('serve')} installs what serving needs"
        ) from error
    from penstock.serve import (
        Batching,
        CompileSettings,
        Limits,
        MemoryLimits,
        ModelRepository,
        Service,
        Settings,
        sources_of,
    )

    opening.check_devices(device or (), usable=True)
    try:
        settings = Settings(
            CompileSettings(
                tuple(device or ()),
                opening.policy_of(accuracy, placement),
                threads,
                not no_cache,
                running,
                options.parse_shapes(shape) or None,
            ),
            Batching(max_batch, max_delay / 1000),
            Limits(body=max_body << 20, body_total=max(8 * max_body, 512) << 20, queue=queue),
            MemoryLimits(_bytes(memory), _bytes(model_memory), tuple(pin or ())),
            shared_memory,
            trust_shared_memory,
        )
        address = Address(
            host,
            None if port == OFF else port,
            None if grpc_port == OFF else grpc_port,
            tls_certificate,
            tls_key,
        )
        access = Access(read_token(token_file), read_token(admin_token_file))
        sources = sources_of(models)
        repository = ModelRepository(sources, settings)
    except OSError as error:
        raise FileError(error.filename, failures.os_reason(error)) from None
    except InputError as error:
        raise UsageError(str(error)) from error
    paths = {source.name: source.path for source in sources}
    opening.warn_of_settings(output)
    events: queues.SimpleQueue[BaseException | None] = queues.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Of the queues and events of Python, a signal's handler may use this one.
        signal.signal(number, lambda *_: events.put(None))
    with (
        logging_to_stderr(requests=log),
        Server(Service(repository, settings), address, access, drain) as server,
    ):
        announce(output, server, host, is_exposed=access.is_open and not _is_local(host))
        loader = threading.Thread(
            target=load_all,
            args=(repository, paths, output, events),
            name="penstock-load",
            daemon=True,
        )
        loader.start()
        if (failure := events.get()) is not None:
            raise failure
        output.line("shutting down: requests in progress end first")


def load_all(
    repository: ModelRepository,
    paths: Mapping[str, Path],
    output: Output,
    events: queues.SimpleQueue[BaseException | None],
) -> None:
    """Loads every model, of *paths* by name, and says so; an error goes to *events*.

    The main thread waits for one of *events*, so whatever ends this thread must arrive there: a
    `SystemExit` of a driver too, or the server would never be ready and say nothing.
    """
    try:
        for name in repository.names:
            with loading(paths[name]):
                seconds = repository.load(name)
            output.line(f"model {name}: ready after {milliseconds(int(seconds * 1e9))}")
        output.line(f"ready: {counted(len(repository.names), 'model')}")
    except BaseException as error:  # noqa: BLE001  # raised by the main thread
        events.put(error)


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """A block that loads the model at *path*. Its error is the one that other commands raise for
    such a file or such a setting.
    """
    from penstock.serve.errors import ServingError

    try:
        yield
    except ServingError as error:
        cause = error.__cause__
        if isinstance(cause, OSError):
            raise FileError(cause.filename or path, failures.os_reason(cause)) from cause
        if isinstance(cause, ModelError):
            raise FileError(path, str(cause)) from cause
        if isinstance(cause, BadSetting):
            raise cause from None
        if isinstance(cause, InputError):
            raise UsageError(str(error)) from cause
        raise


@contextmanager
def logging_to_stderr(*, requests: bool) -> Iterator[None]:
    """A block in which stderr has the server's warnings; with *requests* also each inference, and
    every record as a line of JSON.
    """
    import logging

    from penstock.serve.records import JsonLines, PlainLines, log

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if requests else PlainLines())
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO if requests else logging.WARNING)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def announce(output: Output, server: Server, host: str, *, is_exposed: bool) -> None:
    """Says where *server* listens, and warns if everybody may ask it."""
    if server.port is not None:
        output.line(f"REST on {host} port {server.port}")
    if server.grpc_port is not None:
        output.line(f"gRPC on {host} port {server.grpc_port}")
    output.json({"host": host, "port": server.port, "grpc_port": server.grpc_port})
    if is_exposed:
        output.warnings(
            ["everybody who reaches this address may ask; --token-file asks for a token"]
        )


def _bytes(mebibytes: int | None) -> int | None:
    return None if mebibytes is None else mebibytes << 20


def _is_local(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")
