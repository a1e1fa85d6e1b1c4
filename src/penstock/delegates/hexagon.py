"""`HexagonDelegate`: TensorFlow Lite's delegate for Qualcomm's DSPs. Experimental until 1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.delegates.driver import AnyDevice, checked_count
from penstock.delegates.kinds import Kind, KindDelegate, is_quantised, shown_type
from penstock.ir import Operand
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.delegates.context import DelegateContext
    from penstock.execution import CompiledModel, Outputs

log = Log(__name__)

HEXAGON: Final = Kind("Hexagon DSP", ("accelerator",), ("hexagon",), "int8")


class HexagonDelegate(KindDelegate):
    """Runs nodes with quantised 8-bit tensors on a Hexagon DSP. Needs no NNAPI.

    - *powersave_level* 0 prefers speed, a higher level `low_power`.
    - *debug_level* above 0 logs why each node is not taken; *print_graph_debug* logs the plan of
      each subset, *print_graph_profile* the receipt of each run. TFLite prints these texts;
      Penstock logs them at INFO (`penstock.delegates.hexagon`).
    - The delegate takes at most *max_delegated_partitions* subsets (0: all) of at least
      *min_nodes_per_partition* nodes, the largest first.
    - *is_precision_loss_allowed* accepts the DSP's own rounding: accuracy class `relaxed`.
    - *device* is as for `GpuDelegate`.

    Raises `DeviceUnavailable` if there is no such device; the message lists the requirements and
    the devices found. Raises `InputError` for a wrong option.
    """

    def __init__(
        self,
        debug_level: int = 0,
        powersave_level: int = 0,
        print_graph_profile: bool = False,
        print_graph_debug: bool = False,
        max_delegated_partitions: int = 0,
        min_nodes_per_partition: int = 2,
        *,
        is_precision_loss_allowed: bool = False,
        device: AnyDevice | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.debug_level = checked_count("debug_level", debug_level)
        self.powersave_level = checked_count("powersave_level", powersave_level)
        self.print_graph_profile = bool(print_graph_profile)
        self.print_graph_debug = bool(print_graph_debug)
        super().__init__(
            HEXAGON,
            device,
            accuracy="relaxed" if is_precision_loss_allowed else "faithful",
            preference="low_power" if powersave_level else "fast_single_answer",
            num_threads=num_threads,
            max_delegated_partitions=max_delegated_partitions,
            min_nodes_per_partition=min_nodes_per_partition,
        )

    def refuses(self, operand: Operand) -> str:
        """Accepts quantised 8-bit tensors only."""
        if is_quantised(operand):
            return ""
        return f"is {shown_type(operand)}; a Hexagon DSP is given quantised 8-bit tensors"

    def initialize(self, context: DelegateContext) -> None:
        """As `KindDelegate`; with a *debug_level* also logs why nodes are not taken."""
        super().initialize(context)
        if self.debug_level:
            for node, reason in self.reasons.items():
                log.info("%s leaves node %d: %s", self.name, node, reason)

    def compiled(self, model: CompiledModel) -> None:
        """Logs the plan with *print_graph_debug*."""
        super().compiled(model)
        if self.print_graph_debug:
            log.info("%s: %s", self.name, model.plan.show())

    def ran(self, outputs: Outputs) -> None:
        """Logs the receipt with *print_graph_profile*."""
        if self.print_graph_profile:
            log.info("%s: %s", self.name, outputs.receipt.show())
