"""Seeded damage to requests of both transports, and one trial of each."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any, Final, Self

from google.protobuf.message import DecodeError

from penstock.closing import Closing
from penstock.hal import CancelToken
from penstock.serve import Limits, Service
from penstock.serve.errors import ServingError
from penstock.serve.rest import inference as rest
from penstock.serve.rpc import inference as rpc
from penstock.serve.rpc.schema import protocol
from tests.support_serving import relu_file, repository_of, settings_on

LIMITS: Final = Limits(body=1 << 20, header=1 << 16, tensors=8)
DATA: Final = struct.pack("<6f", 1, -2, 3, 4, 5, -6)

SCALARS: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 3, 1 << 31, 1 << 63, 1 << 70, 0.5, 1e308, "", "x", "BYTES"),
    *("FP32", "INT8", "\u00e9\u0000", [], {}, [[]], [1, [2]], {"a": 1}),
)
NUMBERS: Final = (b"0", b"-1", b"1", b"99999999999999999999", b"1e999", b"NaN", b"[[", b"]]", b'"')


class Victim(Closing):
    """A service that damaged requests are given to."""

    def __init__(self, place: Path) -> None:
        settings = settings_on(limits=LIMITS)
        repository = repository_of(place, {"relu": relu_file()}, settings)
        self._service = Service(repository, settings)

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        self._service.repository.close()

    def try_one(self, seed: str) -> str:
        """How one damaged request ends: "answered", or the name of its error."""
        draw = random.Random(seed)
        attempt = self._rest if draw.random() < 0.7 else self._rpc
        try:
            attempt(draw)
        except ServingError as error:
            return f"{attempt.__name__[1:]}, {type(error).__name__}"
        except DecodeError:
            # grpcio answers with a status of its own.
            return "rpc, no message"
        return f"{attempt.__name__[1:]}, answered"

    def _rest(self, draw: random.Random) -> None:
        binary = draw.random() < 0.5
        head: Any = {
            "id": "7",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3]}],
            "outputs": [{"name": "y", "parameters": {"binary_data": binary}}],
            "parameters": {"priority": 1, "timeout": 10_000_000},
        }
        if binary:
            head["inputs"][0]["parameters"] = {"binary_data_size": len(DATA)}
        else:
            head["inputs"][0]["data"] = [1, -2, 3, 4, 5, -6]
        if draw.random() < 0.6:
            head = damaged_json(draw, head)
        encoded = json.dumps(head).encode()
        size = len(encoded)
        body = encoded + DATA if binary else encoded
        if draw.random() < 0.6:
            body = damaged(draw, body)
        length: str | None = str(size) if binary else None
        if draw.random() < 0.1:
            length = draw.choice([None, "", "-1", "0", str(size + 1), "9" * 30, "\u0663"])
        if draw.random() < 0.05:
            body = rest.decompressed(body, draw.choice(["gzip", "deflate", "br"]), LIMITS.body)
        parsed = rest.parse(body, length, "relu", "", LIMITS, self._service.regions)
        rest.rendered(self._service.infer(parsed.request), parsed)

    def _rpc(self, draw: random.Random) -> None:
        kind = protocol().messages["ModelInferRequest"]
        message = kind(model_name="relu", raw_input_contents=[DATA])
        message.inputs.add(name="x", datatype="FP32", shape=[2, 3])
        message.outputs.add(name="y")
        message.parameters["timeout"].int64_param = 10_000_000
        if draw.random() < 0.3:
            del message.raw_input_contents[:]
            message.inputs[0].contents.fp32_contents.extend([1, -2, 3, 4, 5, -6])
        encoded = message.SerializeToString()
        given = kind.FromString(damaged(draw, encoded))
        request = rpc.parse(given, LIMITS, self._service.regions, CancelToken(), None)
        rpc.rendered(self._service.infer(request), request)


def damaged(draw: random.Random, content: bytes) -> bytes:
    """*content* with a few changes."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(made) + 1)
        match draw.randrange(6):
            case 0 if made:
                made[at % len(made)] ^= 1 << draw.randrange(8)
            case 1:
                del made[at:]
            case 2:
                del made[at : at + draw.randint(1, 8)]
            case 3:
                made[at:at] = draw.choice(NUMBERS)
            case 4:
                made[at:at] = draw.randbytes(draw.randint(1, 8))
            case _:
                begin = draw.randrange(len(made) + 1)
                made[at:at] = made[begin : begin + 16]
    return bytes(made)


def damaged_json(draw: random.Random, value: Any) -> Any:
    """*value* with one part replaced, removed or repeated."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        name = draw.choice([*value])
        if draw.random() < 0.1:
            return {n: v for n, v in value.items() if n != name}
        return {**value, name: damaged_json(draw, value[name])}
    if isinstance(value, list) and value and draw.random() < 0.7:
        place = draw.randrange(len(value))
        if draw.random() < 0.2:
            return [*value, value[place]]
        return [*value[:place], damaged_json(draw, value[place]), *value[place + 1 :]]
    return draw.choice(SCALARS)
