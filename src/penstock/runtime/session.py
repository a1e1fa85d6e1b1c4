"""The composition root: a `Session` puts the four stages together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock import hal, knobs
from penstock.arguments import deadline_of
from penstock.compilation.compilation import compile_plan
from penstock.compilation.prepared import CompileOptions
from penstock.compilation.step_receipt import CacheOutcome, Recorder
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import PlacementError, counted
from penstock.execution.compiled import CompiledModel
from penstock.execution.interface import interface_of
from penstock.execution.variant import Variant
from penstock.facade import uncollected
from penstock.hal.config import ProgressCallback
from penstock.hal.device import is_isolated, is_placeholder
from penstock.interrupts import interruptible, punctual
from penstock.ir import ConstantPool, Model
from penstock.ir.types import is_static
from penstock.logs import Log
from penstock.partitioning.plan import SHIPPED_COSTS, ExecutionPlan
from penstock.partitioning.policy import Policy
from penstock.runtime import compile_arguments, planning
from penstock.runtime.discovery import AnyDevice, manager
from penstock.threads import allowed_threads

if TYPE_CHECKING:
    from penstock.cache.verdicts import Verdict
    from penstock.compilation.entry import Caching
    from penstock.execution.unprepared import Unprepared
    from penstock.runtime.isolation import IsolatedCompile
    from penstock.runtime.keeping import PlanCase, RestoredPlan

log = Log(__name__)

MOST_LATER: Final = 4
"""Shapes of runs of one compiled model whose plans are kept, and that are measured if asked."""

FILES_GIVEN_BACK: Final = "the cache files were given for the first compile alone"
"""Why shapes that come with a run are not cached if the caller opened the files."""


class Kept(Struct, frozen=True):
    """What the cache has of a plan: its *case*, the plan *restored*, and the outcome for receipts.

    A plan that is made for *case* is kept. The outcome is None where no cache was asked.
    """

    case: PlanCase | None = None
    restored: RestoredPlan | None = None
    outcome: CacheOutcome | None = None


NOTHING_KEPT: Final = Kept()


class Planned(Struct, frozen=True):
    """A plan with its devices. *occasion* is None for a restored plan. *is_measured* says that its
    placement was measured just now.
    """

    plan: ExecutionPlan
    devices: planning.CompileDevices
    isolated: IsolatedCompile | None
    occasion: compile_arguments.Occasion | None
    is_measured: bool = False


class Session:
    """One compile of *model*, and later compiles of it for other shapes."""

    def __init__(
        self,
        model: Model,
        arguments: compile_arguments.CompileArguments,
        deadline_ns: int | None = None,
        cancel: hal.CancelToken | None = None,
        progress: ProgressCallback | None = None,
        kept: Kept | None = None,
    ) -> None:
        """*kept* is what the cache has of the first plan; None if it is not kept."""
        self.model, self.arguments, self.policy = model, arguments, arguments.policy
        self.allow = self.policy.allow_fallback and knobs.allow_fallback()
        self.kept = NOTHING_KEPT if kept is None else kept
        self._case, self._later = self.kept.case, 0
        self._verdicts: dict[str, Verdict] = {}
        restored = self.kept.restored
        self._chosen: list[hal.Device] | None = None
        if restored is None:
            self._chosen = self._choose(deadline_ns)
            if self.policy.require or self.policy.forbid:
                planning.check_rules(self.policy, self._chosen, manager)
        self.interface = interface_of(model, arguments.signature)
        self.files_lent = True
        self.reporter = None if progress is None else compile_arguments.Reporter(progress)
        self.variant_of = Variant if arguments.variants is None else arguments.variants(self.policy)
        if restored is None:
            portable = compile_arguments.portable_options(arguments.portable, self.chosen)
        else:
            portable = compile_arguments.checked_options(arguments.portable)
        self.config = hal.PrepareConfig(
            preference=arguments.preference,
            priority=arguments.priority,
            deadline_ns=deadline_ns,
            accuracy=self.policy.accuracy,
            num_threads=allowed_threads(arguments.num_threads),
            options=portable,
            attributes=arguments.attributes,
            progress=self.reporter,
            cancel=cancel,
        )

    def _choose(self, deadline_ns: int | None) -> list[hal.Device]:
        wanted, isolate = self.arguments.devices, self.arguments.isolate
        return manager.choose(wanted, isolate, deadline_ns, absent=self.allow)

    @property
    def chosen(self) -> list[hal.Device]:
        """The devices to place operations on. With a restored plan they are found on first use."""
        if self._chosen is None:
            self._chosen = self._choose(None)
        return self._chosen

    def compile(self, recorder: Recorder) -> CompiledModel:
        shapes = compile_arguments.shapes_by_position(self.interface, self.arguments.shapes)
        with punctual(planning.operations_of(self.model)):
            form = self._reported(shapes, recorder)
        self.files_lent = False
        # Compiles for later shapes happen inside runs, under the run's deadline and cancel token.
        later = _for_later(self.config)

        def specialize(full: dict[int, tuple[int, ...]], run: hal.ExecutionConfig) -> Variant:
            config = replace(later, deadline_ns=run.deadline_ns, cancel=run.cancel)
            limits = interruptible(config.deadline_ns, config.cancel)
            with limits, punctual(planning.operations_of(self.model)):
                return self._later_variant({**shapes, **full}, config)

        interface = interface_of(form.model, self.arguments.signature)
        return CompiledModel(interface, form, specialize, (recompile, (self.model, self.arguments)))

    def _later_variant(
        self, shapes: Mapping[int, Sequence[int]], config: hal.PrepareConfig
    ) -> Variant:
        """The variant for the shapes of a run; the plans of the first ones are kept too."""
        if self._case is not None and self._later < MOST_LATER:
            from penstock.runtime.keeping import kept_for

            self._later += 1
            case, until = self._case.at(shapes), config.deadline_ns
            kept = Kept(*kept_for(case, self.arguments, manager, until))
            return self._variant(shapes, config, Recorder(), kept)
        return self._variant(shapes, config, Recorder())

    def _reported(
        self, shapes: Mapping[int, Sequence[int]], recorder: Recorder
    ) -> Variant | Unprepared:
        """The form for *shapes*. An error of the progress callback propagates."""
        try:
            kept, self.kept = self.kept, NOTHING_KEPT
            restored = kept.restored
            form: Variant | Unprepared
            if restored is None or all(is_static(o.shape) for o in restored.plan.model.inputs):
                form = self._variant(shapes, self.config, recorder, kept)
            else:
                form = self._unprepared(shapes, kept, restored, recorder)
        except Exception:
            if self.reporter is not None and self.reporter.error is not None:
                raise self.reporter.error from None
            raise
        if self.reporter is not None and self.reporter.error is not None:
            form.close()
            raise self.reporter.error
        return form

    def _unprepared(
        self,
        shapes: Mapping[int, Sequence[int]],
        kept: Kept,
        restored: RestoredPlan,
        recorder: Recorder,
    ) -> Unprepared:
        from penstock.execution.unprepared import Unprepared
        from penstock.runtime.planned_only import planned_only

        later = _for_later(self.config)

        def prepare() -> Variant:
            with punctual(planning.operations_of(self.model)):
                return self._variant(shapes, later, Recorder(), kept)

        given = self.config, self.arguments, manager, recorder
        return Unprepared(planned_only(restored, kept.outcome, *given), later, prepare)

    def _variant(
        self,
        shapes: Mapping[int, Sequence[int]],
        config: hal.PrepareConfig,
        recorder: Recorder,
        kept: Kept = NOTHING_KEPT,
    ) -> Variant:
        arguments, isolate, until = self.arguments, self.arguments.isolate, config.deadline_ns
        restored = kept.restored
        if restored is None:
            made = self._planned(shapes, config, recorder)
        else:
            made = self._restored(restored, until)
        plan, devices, isolated = made.plan, made.devices, made.isolated
        occasion, is_measured = made.occasion, made.is_measured
        left: list[str] = []
        if planning.may_be_long(plan, config):
            from penstock.runtime.apart import demanding, set_apart

            here = self.chosen if restored is None else [*restored.devices.values()]
            if reasons := demanding(plan, here, config):
                chosen, apart, left = set_apart(self.chosen, reasons, isolate, manager, until)
                if apart:
                    plan = replace(plan, apart=tuple(apart.items()))
                    devices = planning.CompileDevices(chosen, manager, apart=True)
                    isolated = isolated or self._isolated_compile(until, chosen)
        if isolated and not self.allow:
            from penstock.execution.availability import refuse_unavailable

            refuse_unavailable(plan)
        operations, parts = counted(len(plan.operations), "operation"), len(plan.steps)
        log.info("compiling %s in %s", operations, counted(parts, "step"))
        caching = self._caching(shapes, plan)
        meanwhile = None
        # A background compile could outlive the call, and the caller's descriptors with it.
        if self.policy.while_compiling == "reference" and not (caching and caching.in_given_files):
            meanwhile = manager.by_name(FALLBACK_DEVICE)
        uncached = arguments.uncached if arguments.cache is None else FILES_GIVEN_BACK
        options = CompileOptions(self.allow, caching, meanwhile, recorder, uncached=uncached)
        with isolated.answering() if isolated else nullcontext(), _ending(plan, devices):
            compilation = compile_plan(plan, devices, config, options)
        if compilation.plan is not plan:
            compilation = replace(compilation, plan=self._judged(compilation.plan, until))
        receipt = compilation.receipt
        steps = "; ".join(f"{step.device}, cache {step.cache}" for step in receipt.steps)
        counts = len(plan.operations), len(plan.steps), receipt.wall_ns / 1e9, receipt.compiles
        text = "compiled %d operations in %d steps in %.3f s, %d driver compiles: %s"
        log.info(text, *counts, steps)
        if plan.apart:
            from penstock.runtime.apart import end_with_their_calls

            end_with_their_calls(compilation, devices)
        outcome = kept.outcome
        if occasion is not None and kept.case is not None and outcome is not None:
            from penstock.runtime.keeping import keep

            why_not = keep(kept.case, occasion, plan, isolate, manager)
            outcome = replace(outcome, saved=not why_not, not_saved=why_not)
        tuning = self._notes_on_tuning(plan, config, is_measured=is_measured)
        slow = () if compilation.plan.slow is None else (str(compilation.plan.slow),)
        for note in slow:
            log.warning("%s", note)
        notes = [*slow, *tuning, *planning.notes_on_devices(plan, arguments, manager), *left]
        # A restored plan rests on no verdict, so nothing in it moved.
        if self._chosen is not None and not self._names_fallback:
            notes += planning.notes_on_moved(plan)
        receipt = replace(compilation.receipt, notes=tuple(notes), plan=outcome)
        compilation = replace(compilation, receipt=receipt)
        absence = None
        if isolated:
            compilation, absence = isolated.with_notes(compilation, devices)
        variant = self.variant_of(compilation, devices, _for_later(config), self.allow)
        variant.absence = absence
        self._learn_from(variant, occasion, restored)
        return variant

    def _learn_from(
        self,
        variant: Variant,
        occasion: compile_arguments.Occasion | None,
        restored: RestoredPlan | None,
    ) -> None:
        """Has the times of runs kept for the next compile, if there is a choice of devices."""
        directory, key = None, ""
        if restored is not None and self._case is not None:
            directory, key = self._case.directory, restored.learned_key
        elif occasion is not None and len(occasion.devices) > 1:
            directory = occasion.directory
        if directory is None or self.policy.placement != "cost" or self.arguments.variants:
            return
        if occasion is not None:
            key = occasion.verdict_key
        if key:
            from penstock.runtime.watching import watch

            watch(variant, directory, key)
        plan = variant.compilation.plan
        if SHIPPED_COSTS in plan.basis and not plan.apart:
            from penstock.runtime.calibration.later import measure_later

            measure_later(plan, directory, self.config.num_threads or 1)

    def _planned(
        self,
        shapes: Mapping[int, Sequence[int]],
        config: hal.PrepareConfig,
        recorder: Recorder,
    ) -> Planned:
        from penstock.ir.infer import infer_shapes

        arguments, until = self.arguments, config.deadline_ns
        if any(map(is_placeholder, self.chosen)):
            self._chosen = self._choose(until)
        devices = planning.CompileDevices(self.chosen, manager)
        isolated = self._isolated_compile(until, self.chosen)
        with recorder.time("partition", ""):
            model = infer_shapes(self.model, shapes)
            planning.check_run_memory(model)
            directory = None
            if arguments.cache is not None and not arguments.cache.trust_token:
                directory = arguments.cache.place
            given = self.model, model, shapes, self.chosen, devices, self.policy, config
            occasion = compile_arguments.Occasion(*given, directory, verdicts=self._verdicts)
            with isolated.answering(in_half=True) if isolated else nullcontext():
                before = len(self._verdicts)
                plan = self._judged(self._placed(occasion), until)
        return Planned(plan, devices, isolated, occasion, len(self._verdicts) > before)

    def _restored(self, restored: RestoredPlan, deadline_ns: int | None) -> Planned:
        """The restored plan. What the machine's memory allows may have changed."""
        plan, isolate = restored.plan, self.arguments.isolate
        planning.check_run_memory(plan.model, is_small=restored.is_small)

        def find(name: str) -> hal.Device:
            (found,) = manager.choose([name], isolate, absent=self.allow)
            return found

        devices = planning.PlannedDevices(restored.devices, plan.devices, find, manager)
        isolated = self._isolated_compile(deadline_ns, [*restored.devices.values()])
        return Planned(plan, devices, isolated, None)

    def _isolated_compile(
        self, deadline_ns: int | None, chosen: Sequence[hal.Device]
    ) -> IsolatedCompile | None:
        if not any(map(is_isolated, chosen)):
            return None
        from penstock.ir.transforms import pooled
        from penstock.runtime.isolation import IsolatedCompile

        # The pools of this model record the copies for other processes.
        self.model = pooled(self.model)
        return IsolatedCompile(self.model, deadline_ns)

    def _judged(self, plan: ExecutionPlan, deadline_ns: int | None) -> ExecutionPlan:
        """*plan*, with what would mend it if most of its work is on the fallback device."""
        if all(step.device != FALLBACK_DEVICE for step in plan.steps):
            return plan if plan.slow is None else replace(plan, slow=None)
        from penstock.runtime.mending import judged

        is_listed = self.arguments.devices is not None
        return judged(plan, self.policy, manager, deadline_ns, is_listed=is_listed)

    def _placed(self, occasion: compile_arguments.Occasion) -> ExecutionPlan:
        """The plan on the chosen devices, or with the fallback for dead or blocklisted ones."""

        def plan(*more: hal.Device) -> ExecutionPlan:
            widened = replace(occasion, devices=[*self.chosen, *more])
            measure = self.arguments.tune and not self._why_not_measured(occasion.config)
            return planning.plan_model(widened, measure=measure, keep=True)

        try:
            try:
                return plan()
            except PlacementError as error:
                if (last := self._substitute_for_dead(error)) is not None:
                    return plan(last)
                if (last := self._substitute_for_blocklisted()) is None:
                    raise
                try:
                    found = plan(last)
                except PlacementError:
                    raise error from None
                return planning.with_fallbacks(found, self.chosen, self.policy)
        except PlacementError as error:
            from penstock.execution.availability import with_crash_details

            full = with_crash_details(error)
            if self.policy.require:
                full = planning.with_unusable(full, self.policy, manager, self.arguments.isolate)
            raise full from error.__cause__

    def _why_not_measured(self, config: hal.PrepareConfig) -> str:
        """Why no placement is measured for the shapes of a run; empty for the first compile too."""
        if self.files_lent:
            return ""
        if config.deadline_ns is not None:
            return "the run has a timeout"
        if len(self._verdicts) > MOST_LATER:
            return f"{counted(MOST_LATER, 'set')} of shapes have been measured"
        return ""

    @property
    def _names_fallback(self) -> bool:
        return any(device.name == FALLBACK_DEVICE for device in self.chosen)

    def _substitute_for_dead(self, error: PlacementError) -> hal.Device | None:
        """The fallback device if *error* comes from a dead process; None if there is none."""
        from penstock.execution.availability import lists_unavailable

        if not self.allow or not lists_unavailable(error.refusals):
            return None
        if not self._names_fallback:
            return manager.by_name(FALLBACK_DEVICE)
        return planning.last_resort(manager)

    def _substitute_for_blocklisted(self) -> hal.Device | None:
        """The fallback device for blocklisted operations; None if not allowed or not needed."""
        if not self.allow or self._names_fallback or not planning.has_driver_verdicts():
            return None
        from penstock.runtime.blocklist import substitute_for

        last = manager.by_name(FALLBACK_DEVICE)
        return substitute_for(last, self.chosen, self.policy.accuracy)

    def _notes_on_tuning(
        self, plan: ExecutionPlan, config: hal.PrepareConfig, *, is_measured: bool
    ) -> Iterator[str]:
        """What was measured, or why nothing was, if the caller asked for it."""
        tuned = plan.tuned
        if not self.arguments.tune:
            return
        if tuned is None:
            if (reason := self._why_not_measured(config)) and len(self.chosen) > 1:
                yield f"tune: nothing was measured for these shapes: {reason}: give shapes"
        elif tuned.outcome == "unmeasured":
            yield f"tune: nothing was measured: {tuned.reason}"
        elif tuned.shapes:
            others = "other shapes are measured in their first run"
            yield f"tune: measured with {tuned.shapes}; {others}"
        elif is_measured and not self.files_lent:
            yield f"tune: measured for these shapes: {tuned.winner}: {tuned.reason}"

    def _caching(self, shapes: Mapping[int, Sequence[int]], plan: ExecutionPlan) -> Caching | None:
        info = self.arguments.cache
        # The descriptors belong to the caller, who may close them once the call has returned.
        if info is None or (info.place is None and not self.files_lent):
            return None
        from penstock.compilation.entry import Caching

        return Caching(info, self.model, shapes, plan)


def _ending(plan: ExecutionPlan, devices: Mapping[str, hal.Device]) -> AbstractContextManager[None]:
    if not plan.apart:
        return nullcontext()
    from penstock.runtime.apart import abandoned_late

    return abandoned_late(devices, dict(plan.apart))


def kept_plan(
    file: ConstantPool, arguments: compile_arguments.CompileArguments, deadline_ns: int | None
) -> Kept:
    """What the cache of *arguments* has kept for *file*."""
    if arguments.cache is None:
        return Kept()
    with uncollected:
        from penstock.runtime import keeping

        return Kept(*keeping.kept_plan(file, arguments, manager, deadline_ns))


def recompile(model: Model, arguments: compile_arguments.CompileArguments) -> CompiledModel:
    """Compiles *model*, which is the signature's own, as *arguments* say."""
    return Session(model, arguments).compile(Recorder())


def compile_alone(
    model: Model, device: AnyDevice, policy: Policy, timeout: float | None = None
) -> CompiledModel:
    """Compiles *model* for *device* alone, without a cache. Raises as `compile_model`."""
    knobs.check()
    deadline_ns = deadline_of(timeout, time.monotonic_ns())
    with interruptible(deadline_ns, None):
        arguments = compile_arguments.CompileArguments([device], policy=policy)
        return Session(model, arguments, deadline_ns).compile(Recorder())


def _for_later(config: hal.PrepareConfig) -> hal.PrepareConfig:
    """*config* without the values of one call: deadline, progress, cancellation."""
    return replace(config, deadline_ns=None, progress=None, cancel=None)
