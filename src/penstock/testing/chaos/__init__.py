"""Chaos tests: the runtime over a driver that fails, is slow or returns wrong results.

Each compile or run must give the reference's answer or raise one error of Penstock. The next call
must work, and nothing may stay open.

A scenario is one fault. Each is tried on random graphs of operations that the driver supports, with
and without fallback.
"""

from penstock.testing.chaos.scenarios import SCENARIOS, Scenario
from penstock.testing.chaos.trial import Graph, graphs_for

__all__ = ["SCENARIOS", "Graph", "Scenario", "graphs_for"]
