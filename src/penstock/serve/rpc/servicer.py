"""The calls of the protocol over gRPC."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

import grpc
from msgspec.structs import replace

from penstock.errors import InputError
from penstock.hal import CancelToken
from penstock.serve import tracing
from penstock.serve.access import Access
from penstock.serve.errors import ServingError
from penstock.serve.rpc import inference
from penstock.serve.rpc.schema import SERVICE, protocol
from penstock.serve.service import Service
from penstock.serve.values import load_parameters, unload_parameters

SPARE_THREADS: Final = 8
"""Threads beyond those of inferences, for calls about health and metadata."""

OPEN_CALLS: Final = frozenset({"ServerLive", "ServerReady"})
"""Calls without a token."""

_CAPITAL: Final = re.compile(r"(?<!^)([A-Z])")

ADMIN_CALLS: Final = frozenset({"RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"})


def grpc_server(
    service: Service, access: Access, address: str, tls: tuple[bytes, bytes] | None
) -> tuple[grpc.Server, int]:
    """A started server on *address*, and its port. *tls* is a private key and a certificate.

    Raises `InputError` if it cannot listen.
    """
    limits = service.settings.limits
    threads = limits.requests + SPARE_THREADS
    server = grpc.server(
        ThreadPoolExecutor(threads, thread_name_prefix="penstock-grpc"),
        options=(
            ("grpc.max_receive_message_length", limits.body),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ),
        maximum_concurrent_rpcs=threads,
    )
    server.add_generic_rpc_handlers([Servicer(service, access).handlers()])
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, grpc.ssl_server_credentials([tls]))
    except RuntimeError as error:
        raise InputError(f"cannot listen on {address}: {error}") from error
    server.start()
    return server, port


class Servicer:
    """Answers the calls. The method of a call takes its message, context and response class."""

    def __init__(self, service: Service, access: Access) -> None:
        self._service, self._access = service, access

    def handlers(self) -> Any:
        """The calls as grpcio takes them."""
        found = protocol()
        return grpc.method_handlers_generic_handler(
            f"{found.package}.{SERVICE}",
            {
                name: grpc.unary_unary_rpc_method_handler(
                    self._guarded(name, call.response),
                    request_deserializer=call.request.FromString,
                    response_serializer=call.response.SerializeToString,
                )
                for name, call in found.calls.items()
            },
        )

    def _guarded(self, name: str, response: Any) -> Callable[[Any, Any], Any]:
        call: Callable[[Any, Any, Any], Any] = getattr(self, _CAPITAL.sub(r"_\1", name).lower())

        def answer(message: Any, context: Any) -> Any:
            try:
                if name in ADMIN_CALLS:
                    self._access.check_admin(_authorization(context))
                elif name not in OPEN_CALLS:
                    self._access.check(_authorization(context))
                return call(message, context, response)
            except ServingError as error:
                _abort(context, error)

        return answer

    def server_live(self, _message: Any, _context: Any, response: Any) -> Any:
        return response(live=True)

    def server_ready(self, _message: Any, _context: Any, response: Any) -> Any:
        return response(ready=self._service.is_ready())

    def server_metadata(self, _message: Any, _context: Any, response: Any) -> Any:
        return response(**self._service.server_metadata())

    def model_ready(self, message: Any, _context: Any, response: Any) -> Any:
        return response(ready=self._service.model_is_ready(message.name, message.version))

    def model_metadata(self, message: Any, _context: Any, response: Any) -> Any:
        return response(**self._service.model_metadata(message.name, message.version))

    def model_config(self, message: Any, _context: Any, response: Any) -> Any:
        found = self._service.model_config(message.name, message.version)
        for tensor in (*found["input"], *found["output"]):
            tensor["data_type"] = protocol().enums[tensor["data_type"]]
        return response(config=found)

    def model_statistics(self, message: Any, _context: Any, response: Any) -> Any:
        return response(**self._service.statistics(message.name, message.version))

    def model_infer(self, message: Any, context: Any, _response: Any) -> Any:
        cancel = CancelToken()
        context.add_callback(cancel.set)
        with self._service.admitted(inference.size_of(message)):
            limits = self._service.settings.limits
            seconds = context.time_remaining()
            request = inference.parse(message, limits, self._service.regions, cancel, seconds)
            own = tracing.carried(dict(context.invocation_metadata()))
            request = replace(request, trace=own)
            return inference.rendered(self._service.infer(request), request)

    def repository_index(self, message: Any, _context: Any, response: Any) -> Any:
        made = response()
        for entry in self._service.index(ready=message.ready):
            made.models.add(
                name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
            )
        return made

    def repository_model_load(self, message: Any, _context: Any, response: Any) -> Any:
        chosen = load_parameters(inference.values_of(message.parameters))
        self._service.repository.load(message.model_name, *chosen)
        return response()

    def repository_model_unload(self, message: Any, _context: Any, response: Any) -> Any:
        version = unload_parameters(inference.values_of(message.parameters))
        self._service.repository.unload(message.model_name, version)
        return response()

    def system_shared_memory_status(self, message: Any, _context: Any, response: Any) -> Any:
        made = response()
        for region in self._service.regions.status(message.name):
            entry = made.regions[region.name]
            entry.name, entry.key = region.name, region.key
            entry.offset, entry.byte_size = region.offset, region.byte_size
        return made

    def system_shared_memory_register(self, message: Any, _context: Any, response: Any) -> Any:
        fields = message.name, message.key, message.offset, message.byte_size
        self._service.regions.register(*fields)
        return response()

    def system_shared_memory_unregister(self, message: Any, _context: Any, response: Any) -> Any:
        self._service.regions.unregister(message.name)
        return response()


def _authorization(context: Any) -> str | None:
    for name, value in context.invocation_metadata():
        if name == "authorization":
            return str(value)
    return None


def _abort(context: Any, error: ServingError) -> NoReturn:
    context.abort(getattr(grpc.StatusCode, error.grpc), str(error))
    raise error
