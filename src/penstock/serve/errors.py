"""Errors of requests, each with its status in HTTP and in gRPC.

ServingError
├── InvalidRequest      400 INVALID_ARGUMENT    it does not fit the protocol or the model
├── Unauthenticated     401 UNAUTHENTICATED     no token, or an unknown one
├── Forbidden           403 PERMISSION_DENIED   repository calls are off, or need the admin token
├── UnknownModel        404 NOT_FOUND           no model, version or signature of that name
├── RequestTooLarge     413 RESOURCE_EXHAUSTED  a size exceeds a limit of the server
├── RequestCancelled    499 CANCELLED           the client has gone
├── RunFailed           500 INTERNAL            no device could run the model
├── QueueFull           503 RESOURCE_EXHAUSTED  as many requests wait as may
├── NoMemory            503 RESOURCE_EXHAUSTED  the limits of memory leave no room for the model
├── NotReady            503 UNAVAILABLE         the server drains, or the model is not loaded
└── DeadlinePassed      504 DEADLINE_EXCEEDED   the request's timeout passed
"""

from __future__ import annotations

from typing import ClassVar

from penstock import errors


class ServingError(errors.PenstockError):
    """A request without an answer. *http* and *grpc* are its status in the two transports."""

    http: ClassVar[int] = 500
    grpc: ClassVar[str] = "INTERNAL"


class InvalidRequest(ServingError):
    http, grpc = 400, "INVALID_ARGUMENT"


class Unauthenticated(ServingError):
    http, grpc = 401, "UNAUTHENTICATED"


class Forbidden(ServingError):
    http, grpc = 403, "PERMISSION_DENIED"


class UnknownModel(ServingError):
    http, grpc = 404, "NOT_FOUND"


class RequestTooLarge(ServingError):
    http, grpc = 413, "RESOURCE_EXHAUSTED"


class RequestCancelled(ServingError):
    http, grpc = 499, "CANCELLED"


class RunFailed(ServingError):
    http, grpc = 500, "INTERNAL"


class QueueFull(ServingError):
    http, grpc = 503, "RESOURCE_EXHAUSTED"


class NoMemory(ServingError):
    http, grpc = 503, "RESOURCE_EXHAUSTED"


class NotReady(ServingError):
    http, grpc = 503, "UNAVAILABLE"


class DeadlinePassed(ServingError):
    http, grpc = 504, "DEADLINE_EXCEEDED"


def serving_error(error: BaseException) -> ServingError:
    """*error* of a run, or of Penstock, as the error of its request. The message stays."""
    if isinstance(error, ServingError):
        return error
    kinds: tuple[tuple[type[Exception], type[ServingError]], ...] = (
        (errors.InputError, InvalidRequest),
        (errors.MissedDeadline, DeadlinePassed),
        (errors.Cancelled, RequestCancelled),
        (errors.ResourceExhausted, QueueFull),
        (errors.ClosedError, NotReady),
    )
    for kind, own in kinds:
        if isinstance(error, kind):
            return own(str(error))
    return RunFailed(f"{type(error).__name__}: {error}")
