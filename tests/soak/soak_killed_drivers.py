"""A server under load whose driver is killed every second:
python -m tests.soak.soak_killed_drivers [--seconds N].

Clients over REST and gRPC ask without a pause, each request with a number of its own, and check
that the answer is that number plus one, with the request's id. Each request must be answered, or
end with an error that docs/serving.md names. The server must have counted each one once, and must
not grow in memory, descriptors, processes or threads.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import subprocess
import sys
import threading
import time
from typing import IO, Any, Final

import grpc
import msgspec
import numpy as np
from msgspec.structs import replace

from penstock.serve.rpc.schema import protocol
from tests.soak.killed_server import Holdings, Ports
from tests.support_isolated import SHAPE

SECONDS: Final = 600.0
WARM_UP: Final = 30.0
"""Seconds before the first count: by then every thread and pool that requests need exists."""

CLIENTS: Final = 2
"""For each transport."""

TIMEOUT: Final = 60.0
ALLOWED_GROWTH_KIB: Final = 16 * 1024
SPARE: Final = 4
"""Descriptors, processes and threads by which two counts may differ."""

SAMPLES: Final = 20
SAMPLE_SECONDS: Final = 0.3

NAMED: Final = frozenset({"500", "503", "504", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED"})
RECEIPT: Final = "receipt"


class Client(threading.Thread):
    """Asks until *ended*, in a thread of its own; *outcomes* counts how requests end."""

    def __init__(self, number: int, ports: Ports, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.number, self.ports, self.ended = number, ports, ended
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.devices: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self.last = ""
        self.slowest = 0.0, ""

    def run(self) -> None:
        asked = 0
        while not self.ended.is_set():
            asked += 1
            # The numbers of two clients differ, and float32 has each of them.
            value = (asked * 2 * CLIENTS + self.number) % (1 << 23)
            began = time.monotonic()
            try:
                self.outcomes[self.ask(value, f"{self.number}/{asked}")] += 1
            except Exception as error:  # noqa: BLE001  # whatever is raised is a fault
                self.outcomes["fault"] += 1
                self.faults.append(f"{self.number}/{asked}: {error!r}")
            took = time.monotonic() - began
            if took > self.slowest[0]:
                self.slowest = took, self.last

    def ask(self, value: int, id: str) -> str:
        """How the request of *value* ends: "answered", or the name of its error."""
        raise NotImplementedError

    def check(self, value: int, id: str, output: Any, found_id: str, receipt: str) -> str:
        if found_id != id:
            raise ValueError(f"the answer is that of {found_id}")
        if not np.array_equal(output, np.full(SHAPE, value + 1, np.float32)):
            raise ValueError(f"the answer to {value} is {output!r}")
        found = json.loads(receipt)
        self.devices.update(found["devices"])
        self.last = receipt
        return "answered"


class RestClient(Client):
    def run(self) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", self.ports.rest, timeout=TIMEOUT)
        super().run()
        self.connection.close()

    def ask(self, value: int, id: str) -> str:
        data = np.full(SHAPE, value, np.float32).tolist()
        given = {"name": "x", "datatype": "FP32", "shape": list(SHAPE), "data": data}
        body = json.dumps({"id": id, "inputs": [given]})
        self.connection.request("POST", "/v2/models/add/infer", body)
        reply = self.connection.getresponse()
        found = json.loads(reply.read())
        if reply.status != 200:
            return str(reply.status)
        (output,) = found["outputs"]
        array = np.array(output["data"], np.float32).reshape(output["shape"])
        return self.check(value, id, array, found["id"], found["parameters"][RECEIPT])


class GrpcClient(Client):
    def run(self) -> None:
        call = protocol().calls["ModelInfer"]
        with grpc.insecure_channel(f"127.0.0.1:{self.ports.grpc}") as channel:
            self.infer = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=call.request.SerializeToString,
                response_deserializer=call.response.FromString,
            )
            super().run()

    def ask(self, value: int, id: str) -> str:
        message = protocol().messages["ModelInferRequest"](model_name="add", id=id)
        message.inputs.add(name="x", datatype="FP32", shape=SHAPE)
        message.raw_input_contents.append(np.full(SHAPE, value, np.float32).tobytes())
        try:
            found = self.infer(message, timeout=TIMEOUT)
        except grpc.RpcError as error:
            return str(error.code().name)
        (raw,) = found.raw_output_contents
        array = np.frombuffer(raw, np.float32).reshape(SHAPE)
        receipt = found.parameters[RECEIPT].string_param
        return self.check(value, id, array, found.id, receipt)


def main() -> int:
    parser = argparse.ArgumentParser(description="Load on a server whose driver is killed.")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--period", type=float, default=1.0)
    arguments = parser.parse_args()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.soak.killed_server", str(arguments.period)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        ports = msgspec.json.decode(server.stdout.readline(), type=Ports)
        ended = threading.Event()
        kinds = [kind for kind in (RestClient, GrpcClient) for _ in range(CLIENTS)]
        clients: list[Client] = [kind(n, ports, ended) for n, kind in enumerate(kinds)]
        for client in clients:
            client.start()
        time.sleep(min(WARM_UP, arguments.seconds / 4))
        before = least(server.stdin, server.stdout)
        time.sleep(max(0.0, arguments.seconds - WARM_UP))
        after = least(server.stdin, server.stdout)
        ended.set()
        for client in clients:
            client.join(TIMEOUT)
        end = holdings(server.stdin, server.stdout)
        after = replace(after, kills=end.kills, counted=end.counted)
        server.stdin.close()
        code = server.wait(TIMEOUT)
    return report(clients, before, after, code)


def holdings(told: IO[str], said: IO[str]) -> Holdings:
    told.write("\n")
    told.flush()
    return msgspec.json.decode(said.readline(), type=Holdings)


def least(told: IO[str], said: IO[str]) -> Holdings:
    """The least of several counts: a driver's process begins or ends during some of them."""
    found = []
    for _ in range(SAMPLES):
        found.append(holdings(told, said))
        time.sleep(SAMPLE_SECONDS)
    names = ("resident_kib", "descriptors", "processes", "threads")
    return replace(
        found[-1], **{name: min(getattr(each, name) for each in found) for name in names}
    )


def report(clients: list[Client], before: Holdings, after: Holdings, code: int) -> int:
    """Prints what was found; 1 if a promise was broken."""
    outcomes = sum((client.outcomes for client in clients), collections.Counter[str]())
    devices = sum((client.devices for client in clients), collections.Counter[str]())
    counted = sum(after.counted.values())
    print(f"{outcomes.total()} requests, {after.kills} kills of the driver's process")
    for name, count in sorted(outcomes.items()):
        print(f"  {name}: {count}")
    print(f"  by device: {dict(devices)}")
    slowest, receipt = max(client.slowest for client in clients)
    print(f"  slowest: {slowest:.2f} s: {receipt}")
    print(f"the server counted {counted}: {after.counted}")
    failures = [fault for client in clients for fault in client.faults]
    failures += [f"request ended with {name}" for name in outcomes if name not in ACCEPTED]
    failures += [f"{client.name} still waits" for client in clients if client.is_alive()]
    if counted != outcomes.total():
        failures.append(f"the server counted {counted} requests, {outcomes.total()} were made")
    for name, spare in (
        ("resident_kib", ALLOWED_GROWTH_KIB),
        ("descriptors", SPARE),
        ("processes", SPARE),
        ("threads", SPARE),
    ):
        first, last = getattr(before, name), getattr(after, name)
        print(f"{name}: {first} -> {last}")
        if last > first + spare:
            failures.append(f"{name} grew from {first} to {last}")
    if code or not outcomes["answered"] or not after.kills:
        failures.append(f"the server ended with {code} after {after.kills} kills")
    for failure in failures[:10]:
        print(f"failed: {failure}")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


ACCEPTED: Final = {"answered", *NAMED}

if __name__ == "__main__":
    sys.exit(main())
