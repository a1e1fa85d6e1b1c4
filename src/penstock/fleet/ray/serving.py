"""A deployment of Ray Serve that answers requests in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.distribution import install_command
from penstock.errors import InputError, NotAvailable
from penstock.fleet.ray.predicting import Predict

if TYPE_CHECKING:
    from starlette.responses import JSONResponse

MAX_BODY: Final = 64 * 2**20
"""A longer body of a request is refused."""


def deployment(
    model: str,
    *,
    max_batch: int = 8,
    max_delay: float = 0.005,
    queue: int = 64,
    options: Mapping[str, Any] | None = None,
    **of_ray: Any,
) -> Any:
    """A Ray Serve application for *model*: `serve.run(deployment("net.tflite"))`.

    A request over HTTP has a picture, a sound or an `.npy` file as its body; the answer is JSON,
    with the columns that `Predict` adds. `handle.remote(element, ...)` takes an element for each
    input. At most *max_batch* requests run together, and the first of them waits at most
    *max_delay* seconds for the others. Beyond *queue* waiting requests Ray refuses further ones:
    503, or its `BackPressureError`. *options* are the arguments of `Predict`, *of_ray* those of
    `serve.deployment`, such as `num_replicas` and `ray_actor_options`.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise NotAvailable(f"ray is not installed: {install_command('ray')}") from error

    together: Callable[[Any], Any] = serve.batch(
        max_batch_size=max_batch, batch_wait_timeout_s=max_delay
    )

    class Penstock:
        def __init__(self) -> None:
            self._predict = Predict(model, **(options or {}))

        async def __call__(self, *given: Any) -> Any:
            if len(given) == 1 and hasattr(given[0], "stream"):
                return await over_http(given[0], self._answers)
            return await self._answers(given)

        @together
        async def _answers(self, rows: list[tuple[object, ...]]) -> list[dict[str, Any]]:
            return await asyncio.to_thread(answered, self._predict, rows)

    told = {"max_ongoing_requests": 2 * max_batch, "max_queued_requests": queue, **of_ray}
    return serve.deployment(**told)(Penstock).bind()


async def over_http(
    request: Any, answers: Callable[[tuple[object, ...]], Awaitable[dict[str, Any]]]
) -> JSONResponse:
    """The response to *request*, whose body is an element for a model with one input: status 200,
    422 if the answer has an error, 413 for a body beyond `MAX_BODY`.
    """
    from starlette.responses import JSONResponse

    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            return JSONResponse({"error": f"more than {MAX_BODY:,} bytes"}, 413)
    found = await answers((bytes(body),))
    return JSONResponse(found, 200 if found["error"] is None else 422)


def answered(predict: Predict, rows: list[tuple[object, ...]]) -> list[dict[str, Any]]:
    """The columns that `Predict` adds, for each of *rows*, with an element for each input."""
    count = len(predict.inputs)
    wrong = next((row for row in rows if len(row) != count), None)
    if wrong is not None and len(rows) == 1:
        raise InputError(f"{len(wrong)} elements are given for the {count} inputs of the model")
    if wrong is not None:
        return [answered(predict, [row])[0] for row in rows]
    return [predict.answer(row) for row in predict.rows(rows)]
