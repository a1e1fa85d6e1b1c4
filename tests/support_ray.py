"""A job on a local cluster of two raylets, of which a worker and a node are killed.

`python -m tests.support_ray FOLDER [--rows N] [--kills N]` prints what happened as JSON. Ray keeps
threads, handlers and settings in the process that uses it, so tests start it as a program.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from examples.fleet import label
from penstock.fleet.ray import Predict, deployment, predict_to_parquet, read_manifest

DIGITS: Final = Path(__file__).resolve().parents[1] / "examples" / "digits"
MODEL: Final = str(DIGITS / "digits_int8.tflite")
NAMES: Final = ("zero", "three", "seven")
PATIENCE_S: Final = 240.0
STORE_BYTES: Final = 80 << 20

DEVICES: Final = {"head": "llvm", "second": "reference"}
"""The devices of each node."""


class Watched(Predict):
    """Leaves its process, node and receipt in *notes*, and stops there at the *gates*.

    A gate is a number of output files from which on blocks wait until the file of its name is in
    *notes*. A test that kills a process then finds blocks half done. The first block of a worker
    does not wait. A column of the answers has the node.
    """

    def __init__(
        self, model: str, *, notes: str, parts: str, gates: dict[str, int], **options: Any
    ) -> None:
        import ray

        super().__init__(model, **options)
        self._notes, self._gates = Path(notes), gates
        self._parts = Path(parts)
        self._has_written = False
        steps = self.compiled.receipt.steps
        self._node = ray.get_runtime_context().get_node_id()
        said = {
            "node": self._node,
            "outcomes": [step.cache.outcome for step in steps],
            "devices": [step.device for step in steps],
        }
        written = self._notes / f".{os.getpid()}"
        written.write_text(json.dumps(said))
        written.rename(self._notes / f"worker-{os.getpid()}")

    def __call__(self, batch: Any) -> Any:
        import pyarrow as pa

        if self._has_written:
            (self._notes / f"written-{self._node}").touch()
            for name, parts in self._gates.items():
                if count(self._parts) >= parts:
                    wait_for(lambda name=name: (self._notes / name).exists())
        self._has_written = True
        return super().__call__(batch.append_column("node", pa.array([self._node] * len(batch))))


def count(parts: Path) -> int:
    """How many output files there are."""
    return len(list(parts.glob("*.parquet")))


def wait_for(holds: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


def make_source(place: Path, rows: int, blocks: int, *, prepared: bool) -> None:
    """Parquet files of `id` and `picture`, *blocks* row groups in all: the content of a picture's
    file, or the values of the model's input.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    contents: list[Any] = [DIGITS.joinpath(f"{name}.png").read_bytes() for name in NAMES]
    if prepared:
        predict = Predict(MODEL, columns=["picture"], cache=False)
        contents = [predict.prepare([content])[0].reshape(-1) for content in contents]
    place.mkdir()
    each = rows // blocks
    for block in range(blocks):
        ids = list(range(block * each, (block + 1) * each))
        table = pa.table({"id": ids, "picture": [contents[i % len(contents)] for i in ids]})
        pq.write_table(table, place / f"{block:05d}.parquet")


def workers(notes: Path) -> dict[int, dict[str, Any]]:
    """What each worker that ever was started said, by its process."""
    found = {int(p.name.split("-")[1]): json.loads(p.read_text()) for p in notes.glob("worker-*")}
    return dict(sorted(found.items()))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


class Killer(threading.Thread):
    """At each gate of *gates* kills a worker, or for `node` all of the second node."""

    def __init__(self, cluster: Any, node: Any, notes: Path, gates: dict[str, int], parts: Path):
        super().__init__(daemon=True)
        self._cluster, self._node, self._notes = cluster, node, notes
        self._gates, self._parts = gates, parts
        self.killed: dict[str, int] = {}

    def run(self) -> None:
        for name, number in self._gates.items():
            wait_for(lambda number=number: count(self._parts) >= number)
            if name == "node":
                wait_for(lambda: self._alive(on_node=True))
                wait_for((self._notes / f"written-{self._node.node_id}").exists)
                self._cluster.remove_node(self._node, allow_graceful=False)
            else:
                wait_for(self._alive)
                os.kill(self._alive()[0], signal.SIGKILL)
            self.killed[name] = count(self._parts)
            (self._notes / name).touch()

    def _alive(self, *, on_node: bool = False) -> list[int]:
        """The processes of workers that live, of all or of the second node."""
        found = workers(self._notes).items()
        node = self._node.node_id
        return [p for p, said in found if alive(p) and (said["node"] == node or not on_node)]


def run_job(
    place: Path,
    cluster: Any,
    node: Any,
    rows: int,
    blocks: int,
    kills: int,
    *,
    prepared: bool,
) -> Any:
    """Runs the job and kills *kills* workers and then the node, spread over the blocks."""
    source, target, notes = place / "source", place / "target", place / "notes"
    make_source(source, rows, blocks, prepared=prepared)
    notes.mkdir()
    names = [*(f"kill-{i}" for i in range(kills)), "node"]
    gates = {name: 1 + i * (blocks - 4) // len(names) for i, name in enumerate(names)}
    killer = Killer(cluster, node, notes, gates, target / "parts")
    killer.start()
    began = time.monotonic()
    predict_to_parquet(
        source,
        target,
        MODEL,
        actors=2,
        kind=Watched,
        columns=["picture"],
        notes=str(notes),
        parts=str(target / "parts"),
        gates=gates,
    )
    killer.join()
    seconds = time.monotonic() - began
    manifest = read_manifest(target)
    table = manifest.table(target)
    times = Counter(table.column("id").to_pylist())
    labels = Counter(
        (NAMES[i % len(NAMES)], label)
        for i, label in zip(*(table.column(n).to_pylist() for n in ("id", "label")), strict=True)
    )
    nodes = {node.node_id: "second"}
    said = workers(notes).values()
    return {
        "seconds": seconds,
        "rows": manifest.rows,
        "lost": rows - len(times),
        "doubled": sum(number - 1 for number in times.values()),
        "labels": sorted([*names, number] for names, number in labels.items()),
        "devices": sorted(
            {
                (nodes.get(node, "head"), device)
                for node, device in zip(
                    *(table.column(n).to_pylist() for n in ("node", "device")), strict=True
                )
            }
        ),
        "errors": table.num_rows - table.column("error").null_count,
        "blocks": blocks,
        "killed": killer.killed,
        "workers": len(said),
        "outcomes": {
            name: [o for s in said if nodes.get(s["node"], "head") == name for o in s["outcomes"]]
            for name in DEVICES
        },
    }


def ask_deployment() -> Any:
    """Answers of a deployment to its handle and over HTTP, the last of each to what is no picture:
    over HTTP with the status.
    """
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    options = {"columns": ["picture"]}
    handle = serve.run(deployment(MODEL, max_batch=4, max_delay=30.0, options=options))
    contents = [*(DIGITS.joinpath(f"{name}.png").read_bytes() for name in NAMES), b"no picture"]
    began = time.monotonic()
    asked = [handle.remote(content) for content in contents]
    answers = [each.result(timeout_s=PATIENCE_S) for each in asked]
    middle = time.monotonic()
    with ThreadPoolExecutor(len(contents)) as pool:
        over_http = list(pool.map(lambda content: post(port, content), contents))
    found = {
        "answers": answers,
        "seconds": middle - began,
        "over_http": over_http,
        "seconds_over_http": time.monotonic() - middle,
    }
    serve.shutdown()
    return found


def post(port: int, body: bytes) -> tuple[int, Any]:
    """The status and the JSON that a request gets."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", body)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--prepared", action="store_true")
    parser.add_argument("--example", action="store_true")
    parser.add_argument("--serve", action="store_true")
    given = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Workers of Ray are nice by 15, and would starve beside other tests.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # its name
    os.environ["PENSTOCK_CACHE_DIR"] = str(given.folder / "cache")
    os.environ["PENSTOCK_STATE_DIR"] = str(given.folder / "state")
    os.environ["PENSTOCK_DEVICES"] = DEVICES["head"]
    import ray
    import ray.data
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    found: dict[str, Any] = {}
    try:
        second = {"PENSTOCK_DEVICES": DEVICES["second"]}
        node = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, env_vars=second)
        ray.init(address=cluster.address, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        found["job"] = run_job(
            given.folder,
            cluster,
            node,
            given.rows,
            given.blocks,
            given.kills,
            prepared=given.prepared,
        )
        if given.example:
            label.main([MODEL, str(DIGITS), str(given.folder / "labels"), "--show", "0"])
            manifest = read_manifest(given.folder / "labels")
            found["example"] = manifest.table(given.folder / "labels").to_pylist()
        if given.serve:
            found["deployment"] = ask_deployment()
    finally:
        ray.shutdown()
        cluster.shutdown()
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
