"""The runtime over a driver that fails, dawdles and lies: whatever happens, a compile or run gives
the reference's answer or raises one named error, the next one works, and nothing stays open.

A scenario is a fault; each is tried on random graphs of what the driver supports, with fall-back
and without.
"""

from penstock.testing.chaos.scenarios import SCENARIOS, Scenario
from penstock.testing.chaos.trial import Graph, graphs_for

__all__ = ["SCENARIOS", "Graph", "Scenario", "graphs_for"]
