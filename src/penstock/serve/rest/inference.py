"""Requests of inferences as JSON with binary tensors behind it, and answers of the same form."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.serve import datatypes
from penstock.serve.datatypes import NAMES, dtype_named, shape_of
from penstock.serve.errors import InvalidRequest, RequestTooLarge
from penstock.serve.receipts import parameters_of
from penstock.serve.settings import Limits
from penstock.serve.shared_memory import OutputPlaces, Place, Regions, place_in
from penstock.serve.values import (
    InferAnswer,
    InferInput,
    InferRequest,
    check_parameters,
    deadline_of,
    priority_of,
)

HEADER_LENGTH: Final = "inference-header-content-length"
"""The HTTP header with the size of the JSON part; without it the whole body is JSON."""

GZIP_OR_ZLIB: Final = 47
"""The window of `zlib` that recognises both forms."""


class Tensor(Struct):
    """An input in JSON. *data* is absent if it is binary."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None


class WantedOutput(Struct):
    """An output that the client names."""

    name: str
    parameters: dict[str, Any] = {}


class Body(Struct):
    """The JSON part of a request."""

    inputs: list[Tensor]
    id: str = ""
    outputs: list[WantedOutput] = []
    parameters: dict[str, Any] = {}


_decoder: Final = msgspec.json.Decoder(Body)


class Parsed(Struct, frozen=True):
    """A request, and which outputs go back in binary form: *binary* by name, *default* else."""

    request: InferRequest
    binary: Mapping[str, bool]
    default: bool

    def is_binary(self, output: str) -> bool:
        return self.binary.get(output, self.default)


def parse(
    body: bytes,
    header_length: str | None,
    model: str,
    version: str,
    limits: Limits,
    regions: Regions,
) -> Parsed:
    """The request in *body*, with tensors in *regions*.

    Raises `InvalidRequest`, `RequestTooLarge`.
    """
    now_ns = time.monotonic_ns()
    view = memoryview(body)
    size = _header_size(header_length, len(view), limits)
    try:
        given = _decoder.decode(view[:size])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the JSON of the request: {error}") from None
    if len(given.inputs) > limits.tensors or len(given.outputs) > limits.tensors:
        raise RequestTooLarge(f"a request has at most {limits.tensors} inputs and outputs")
    check_parameters(given.parameters)
    inputs, at, copied = [], size, 0
    for tensor in given.inputs:
        where = f"input {tensor.name!r}"
        dtype = dtype_named(tensor.datatype, where)
        shape = shape_of(tensor.shape, limits, where)
        nbytes = tensor.parameters.get("binary_data_size")
        place = place_in(tensor.parameters, limits.body, where)
        if place is not None:
            array, count = regions.load(place, dtype, shape, where)
            copied += count
        elif nbytes is None:
            array = datatypes.from_list(tensor.data, dtype, shape, where)
        else:
            if type(nbytes) is not int or not 0 <= nbytes <= len(view) - at:
                raise InvalidRequest(
                    f"{where}: binary_data_size {nbytes!r} is no size within the request"
                )
            if tensor.data is not None:
                raise InvalidRequest(f"{where} has both data and binary_data_size")
            array = datatypes.from_bytes(view[at : at + nbytes], dtype, shape, where)
            at += nbytes
        inputs.append(InferInput(tensor.name, tensor.datatype, array))
    if at != len(view):
        raise InvalidRequest(f"{len(view) - at} bytes follow the last input")
    names, places = _outputs(given.outputs, limits)
    request = InferRequest(
        model,
        tuple(inputs),
        version,
        given.id,
        names,
        priority_of(given.parameters.get("priority")),
        deadline_of(given.parameters.get("timeout"), now_ns),
        full_receipt=given.parameters.get("receipt") is True,
        places=OutputPlaces(regions, places) if places else None,
        region_copied=copied,
    )
    chosen = {
        output.name: output.parameters["binary_data"] is True
        for output in given.outputs
        if "binary_data" in output.parameters
    }
    return Parsed(request, chosen, given.parameters.get("binary_data_output") is True)


def rendered(answer: InferAnswer, parsed: Parsed) -> tuple[bytes, dict[str, str]]:
    """The body of the answer, and its headers. Raises `InvalidRequest`."""
    outputs: list[dict[str, Any]] = []
    binary: list[bytes] = []
    placed, copied = parsed.request.places, answer.region_copied
    for name, array in answer.outputs.items():
        output: dict[str, Any] = {
            "name": name,
            "datatype": NAMES[datatypes.dtype_of_array(array)],
            "shape": list(array.shape),
        }
        if placed is not None and name in placed.places:
            place = placed.places[name]
            copied += placed.regions.store(place, array)
            output["parameters"] = {
                "shared_memory_region": place.region,
                "shared_memory_byte_size": place.byte_size,
                "shared_memory_offset": place.offset,
            }
        elif parsed.is_binary(name):
            data = datatypes.to_bytes(array)
            output["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            output["data"] = datatypes.to_list(array)
        outputs.append(output)
    head: dict[str, Any] = {
        "model_name": answer.model,
        "model_version": answer.version,
        "parameters": parameters_of(replace(answer, region_copied=copied)),
        "outputs": outputs,
    }
    if answer.id:
        head["id"] = answer.id
    encoded = msgspec.json.encode(head)
    if not binary:
        return encoded, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(encoded))}
    return b"".join([encoded, *binary]), headers


def decompressed(body: bytes, encoding: str, limit: int) -> bytes:
    """*body* without its `Content-Encoding`. Raises `InvalidRequest`, `RequestTooLarge`."""
    if encoding in {"", "identity"}:
        return body
    if encoding not in {"gzip", "deflate"}:
        raise InvalidRequest(f"content encoding {encoding!r} is not gzip or deflate")
    stream = zlib.decompressobj(GZIP_OR_ZLIB)
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is no valid {encoding}: {error}") from None
    if len(plain) > limit:
        raise RequestTooLarge(f"the decompressed body has more than {limit} bytes")
    if not stream.eof:
        raise InvalidRequest(f"the body ends within its {encoding} data")
    return plain


def _header_size(header_length: str | None, total: int, limits: Limits) -> int:
    """The size of the JSON part. Raises `InvalidRequest`, `RequestTooLarge`."""
    if header_length is None:
        return total
    if not header_length.isascii() or not header_length.isdecimal() or len(header_length) > 12:
        raise InvalidRequest(f"header {HEADER_LENGTH}: {header_length[:40]!r} is no size")
    size = int(header_length)
    if size > total:
        raise InvalidRequest(f"header {HEADER_LENGTH} is {size}, the body has {total} bytes")
    datatypes.check_size(size, limits.header, "the JSON of a request with binary tensors")
    return size


def _outputs(
    wanted: Sequence[WantedOutput], limits: Limits
) -> tuple[tuple[str, ...], dict[str, Place]]:
    """The names of the outputs that the client wants, and the places of those in shared memory."""
    places = {}
    for output in wanted:
        where = f"output {output.name!r}"
        if output.parameters.get("classification"):
            raise InvalidRequest(f"{where}: classification is not supported")
        place = place_in(output.parameters, limits.body, where)
        if place is not None:
            places[output.name] = place
    return tuple(dict.fromkeys(output.name for output in wanted)), places
