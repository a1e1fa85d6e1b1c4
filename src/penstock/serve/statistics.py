"""Counts and durations of a version's inferences, in the form of Triton's statistics."""

from __future__ import annotations

import threading
import time
from typing import Any


class Duration:
    """A count, and the nanoseconds of all that was counted."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = self.ns = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def as_dict(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class Statistics:
    """What one version has done since it was first loaded. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = self._inferences = self._executions = 0
        self._success, self._fail = Duration(), Duration()
        self._queue, self._infer = Duration(), Duration()
        self._batches: dict[int, Duration] = {}

    def ran(self, rows: int, ns: int) -> None:
        """Counts one run of *rows* rows that took *ns*."""
        with self._lock:
            self._executions += 1
            batch = self._batches.get(rows)
            if batch is None:
                batch = self._batches[rows] = Duration()
            batch.add(ns)

    def succeeded(self, rows: int, whole_ns: int, queue_ns: int, infer_ns: int) -> None:
        """Counts one request of *rows* rows, which took *whole_ns*."""
        with self._lock:
            self._last_ms = time.time_ns() // 1_000_000
            self._inferences += rows
            self._success.add(whole_ns)
            self._queue.add(queue_ns)
            self._infer.add(infer_ns)

    def failed(self, ns: int) -> None:
        """Counts one request that ended with an error after *ns*."""
        with self._lock:
            self._fail.add(ns)

    def as_dict(self) -> dict[str, Any]:
        """The fields of `ModelStatistics`, without those that name the version.

        Preparing inputs and outputs is part of `compute_infer`, and caches of answers do not exist:
        those durations have a count and no time, or neither.
        """
        with self._lock:
            idle = {"count": self._success.count, "ns": 0}
            none = Duration().as_dict()
            return {
                "last_inference": self._last_ms,
                "inference_count": self._inferences,
                "execution_count": self._executions,
                "inference_stats": {
                    "success": self._success.as_dict(),
                    "fail": self._fail.as_dict(),
                    "queue": self._queue.as_dict(),
                    "compute_input": idle,
                    "compute_infer": self._infer.as_dict(),
                    "compute_output": idle,
                    "cache_hit": none,
                    "cache_miss": none,
                },
                "batch_stats": [
                    {
                        "batch_size": rows,
                        "compute_input": {"count": each.count, "ns": 0},
                        "compute_infer": each.as_dict(),
                        "compute_output": {"count": each.count, "ns": 0},
                    }
                    for rows, each in sorted(self._batches.items())
                ],
            }
