"""Fenced executions: those that end with their submit, and those whose end the host awaits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock import hal
from penstock.driverkit.engine import check_limits
from penstock.driverkit.engine_model import Copies, Inputs, Outputs
from penstock.errors import DriverError, GeneralFailure
from penstock.hal.prepared import await_fences, execute_fenced as execute_awaited

if TYPE_CHECKING:
    from penstock.drivers.webgpu.launches import Launch
    from penstock.drivers.webgpu.running import Code, Executable, ShaderModel


def execute_fenced(
    prepared: ShaderModel,
    request: hal.Request,
    wait_for: Sequence[hal.Fence],
    config: hal.ExecutionConfig,
    timeout_after_fence_ns: int | None,
) -> hal.Fence:
    """As `PreparedModel.execute_fenced`. The host waits neither for earlier launches of the device
    nor, where `_may_leave` holds, for the end of the run.
    """
    executable = prepared.executable
    if executable is None or timeout_after_fence_ns is not None:
        return execute_awaited(prepared, request, wait_for, config, timeout_after_fence_ns)
    launches = executable.code.gpu.launches
    found = [(fence, launches.find(fence)) for fence in wait_for]
    behind = [launch for _, launch in found if launch is not None]
    others = [fence for fence, launch in found if launch is None]
    if not _may_leave(executable.code, request, config):
        done = execute_awaited(prepared, request, others, config)
        return done if done.error() is not None else _checked(done, behind)
    done = hal.EventFence()
    try:
        await_fences(others, config)
        hal.validate_request(prepared.model, request, config)
        check_limits(config)
        leaving = Leaving(executable, behind)
        copies = prepared.run_request(leaving, request, config)
    except DriverError as error:
        done.copies = error.copies
        done.signal(error)
        return done
    prepared.after_run(config)
    made = tuple(copies or ())
    if leaving.fence is not None:
        leaving.fence.copies = made
        return leaving.fence
    done.copies = made
    done.signal()
    return _checked(done, behind)


def _may_leave(code: Code, request: hal.Request, config: hal.ExecutionConfig) -> bool:
    """Whether a run may end with its submit: nothing of it is read back, and all of it is one
    submit, which no deadline could end earlier. The system's driver has compiled its shaders.
    """
    kept = hal.TokenArgument, hal.NoValue
    return (
        code.is_warm
        and not config.measure
        and not code.manifest.failures
        and len(code.pace.submits) == 1
        and all(isinstance(argument, kept) for argument in request.outputs)
    )


def _checked(done: hal.Fence, behind: Sequence[Launch]) -> hal.Fence:
    """*done*, the fence of a successful run, or a failed one if a launch that it was behind failed.
    The run ended after them.
    """
    for launch in behind:
        launch.fence.wait()
        if (failure := launch.fence.error()) is not None:
            failed = hal.EventFence()
            text = f"a fence this execution waits for failed: {failure}"
            failed.signal(GeneralFailure(text))
            return failed
    return done


class Leaving:
    """Runs of *executable* that end with their submit, *behind* others. `fence` is that of the last
    run; None if there was none.
    """

    def __init__(self, executable: Executable, behind: Sequence[Launch]) -> None:
        self._executable, self._behind = executable, behind
        self.fence: hal.DescriptorFence | None = None

    def run(self, inputs: Inputs, outputs: Outputs, config: hal.ExecutionConfig) -> Copies:
        """As `Executable.run`."""
        executable = self._executable
        with executable.code.gpu.used():
            copies, self.fence = executable.pool.call(
                lambda run: run.launch(inputs, outputs, config, self._behind)
            )
        return copies
