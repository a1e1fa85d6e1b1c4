"""The routes of the protocol over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from anyio import CapacityLimiter, create_task_group, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.hal import CancelToken
from penstock.serve import tracing
from penstock.serve.access import Access
from penstock.serve.errors import (
    InvalidRequest,
    RequestCancelled,
    RequestTooLarge,
    ServingError,
)
from penstock.serve.page import HEADERS, page
from penstock.serve.rest import inference
from penstock.serve.service import Service
from penstock.serve.values import load_parameters, unload_parameters

Endpoint = Callable[[Request], Awaitable[Response]]


def application(service: Service, access: Access) -> Starlette:
    """The application of *service*; *access* checks each request but those for liveness and
    readiness of the server.
    """
    return Rest(service, access).starlette


class Rest:
    """Answers the calls of the protocol."""

    def __init__(self, service: Service, access: Access) -> None:
        self._service, self._access = service, access
        self._limits = service.settings.limits
        self._threads = CapacityLimiter(self._limits.requests)
        model = "/v2/models/{model}"
        version = model + "/versions/{version}"
        get, post = ["GET"], ["POST"]
        routes = [
            Route("/", self._checked(self._page), methods=get),
            Route("/v2", self._checked(self._server), methods=get),
            Route("/metrics", self._checked(self._metrics), methods=get),
            Route("/v2/health/live", self._live, methods=get),
            Route("/v2/health/ready", self._ready, methods=get),
        ]
        routes.append(Route("/v2/models/stats", self._checked(self._statistics), methods=get))
        for path in (model, version):
            routes += [
                Route(path, self._checked(self._model), methods=get),
                Route(path + "/ready", self._checked(self._model_ready), methods=get),
                Route(path + "/config", self._checked(self._config), methods=get),
                Route(path + "/stats", self._checked(self._statistics), methods=get),
                Route(path + "/infer", self._checked(self._infer), methods=post),
            ]
        repository = "/v2/repository"
        routes += [
            Route(repository + "/index", self._administered(self._index), methods=post),
            Route(
                repository + "/models/{model}/load", self._administered(self._load), methods=post
            ),
            Route(
                repository + "/models/{model}/unload",
                self._administered(self._unload),
                methods=post,
            ),
        ]
        shared, region = "/v2/systemsharedmemory", "/region/{region}"
        for path in (shared, shared + region):
            routes += [
                Route(path + "/status", self._checked(self._regions), methods=get),
                Route(path + "/unregister", self._checked(self._unregister), methods=post),
            ]
        path = shared + region + "/register"
        routes.append(Route(path, self._checked(self._register), methods=post))
        self.starlette = Starlette(
            routes=routes,
            exception_handlers={ServingError: _refused, HTTPException: _unknown, 500: _failed},
        )

    def _checked(self, endpoint: Endpoint) -> Endpoint:
        async def check(request: Request) -> Response:
            self._access.check(request.headers.get("authorization"))
            return await endpoint(request)

        return check

    def _administered(self, endpoint: Endpoint) -> Endpoint:
        async def check(request: Request) -> Response:
            self._access.check_admin(request.headers.get("authorization"))
            return await endpoint(request)

        return check

    async def _live(self, _: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, _: Request) -> Response:
        is_ready = self._service.is_ready()
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    async def _page(self, _: Request) -> Response:
        content = await to_thread.run_sync(page, self._service)
        return Response(content, headers=HEADERS, media_type="text/html")

    async def _metrics(self, _: Request) -> Response:
        content, kind = self._service.metrics.exposition()
        return Response(content, media_type=kind)

    async def _server(self, _: Request) -> Response:
        return _json(self._service.server_metadata())

    async def _model(self, request: Request) -> Response:
        found = await to_thread.run_sync(self._service.model_metadata, *_model_of(request))
        return _json(found)

    async def _config(self, request: Request) -> Response:
        found = await to_thread.run_sync(self._service.model_config, *_model_of(request))
        return _json(found)

    async def _statistics(self, request: Request) -> Response:
        name, version = request.path_params.get("model", ""), request.path_params.get("version", "")
        return _json(self._service.statistics(name, version))

    async def _model_ready(self, request: Request) -> Response:
        name, version = _model_of(request)
        is_ready = self._service.model_is_ready(name, version)
        return _json({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    async def _infer(self, request: Request) -> Response:
        size = _declared_size(request, self._limits.body)
        with self._service.admitted(size):
            body = await _read(request, self._limits.body)
            cancel = CancelToken()

            def work() -> Response | ServingError:
                try:
                    return self._answered(request, body, cancel)
                except ServingError as error:
                    return error

            # The client's leaving ends the run.
            async with create_task_group() as tasks:
                tasks.start_soon(_watch, request, cancel)
                found = await to_thread.run_sync(work, limiter=self._threads)
                tasks.cancel_scope.cancel()
        if isinstance(found, ServingError):
            raise found
        return found

    def _answered(self, request: Request, body: bytes, cancel: CancelToken) -> Response:
        encoding = request.headers.get("content-encoding", "")
        plain = inference.decompressed(body, encoding, self._limits.body)
        header = request.headers.get(inference.HEADER_LENGTH)
        regions = self._service.regions
        parsed = inference.parse(plain, header, *_model_of(request), self._limits, regions)
        own = tracing.carried(request.headers)
        asked = msgspec.structs.replace(parsed.request, cancel=cancel, trace=own)
        content, headers = inference.rendered(self._service.infer(asked), parsed)
        return Response(content, headers=headers)

    async def _index(self, request: Request) -> Response:
        body = await _read(request, self._limits.header)
        given = _object(body)
        entries = self._service.index(ready=given.get("ready") is True)
        return _json([msgspec.to_builtins(entry) for entry in entries])

    async def _load(self, request: Request) -> Response:
        given = _object(await _read(request, self._limits.header))
        chosen = load_parameters(given.get("parameters"))
        name = request.path_params["model"]
        await to_thread.run_sync(self._service.repository.load, name, *chosen)
        return _json({})

    async def _unload(self, request: Request) -> Response:
        given = _object(await _read(request, self._limits.header))
        version = unload_parameters(given.get("parameters"))
        name = request.path_params["model"]
        await to_thread.run_sync(self._service.repository.unload, name, version)
        return _json({})

    async def _regions(self, request: Request) -> Response:
        found = self._service.regions.status(request.path_params.get("region", ""))
        return _json([msgspec.to_builtins(region) for region in found])

    async def _register(self, request: Request) -> Response:
        given = _object(await _read(request, self._limits.header))
        fields = (given.get("key"), given.get("offset", 0), given.get("byte_size"))
        self._service.regions.register(request.path_params["region"], *fields)
        return _json({})

    async def _unregister(self, request: Request) -> Response:
        self._service.regions.unregister(request.path_params.get("region", ""))
        return _json({})


async def _watch(request: Request, cancel: CancelToken) -> None:
    """Sets *cancel* once the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cancel.set()


def _declared_size(request: Request, limit: int) -> int:
    """The size of the body by its header; *limit* without one. Raises `RequestTooLarge`."""
    declared = request.headers.get("content-length")
    if declared is None:
        return limit
    size = int(declared) if declared.isascii() and declared.isdecimal() else limit + 1
    if size > limit:
        raise RequestTooLarge(f"the body has {declared[:20]} bytes; this server takes {limit}")
    return size


async def _read(request: Request, limit: int) -> bytes:
    """The body. Raises `RequestTooLarge` once it has more than *limit* bytes."""
    _declared_size(request, limit)
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise RequestTooLarge(f"the body has more than {limit} bytes")
            parts.append(part)
    except ClientDisconnect:
        raise RequestCancelled("the client went before its request had arrived") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object in *body*; empty for an empty body. Raises `InvalidRequest`."""
    if not body:
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the JSON of the request: {error}") from None


def _model_of(request: Request) -> tuple[str, str]:
    return request.path_params["model"], request.path_params.get("version", "")


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    response = _json({"error": str(error)}, error.http)
    if error.http == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


async def _unknown(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)


async def _failed(_: Request, error: Exception) -> Response:
    return _json({"error": f"{type(error).__name__}: {error}"}, 500)
