"""The code by which threads share a run: `run`, claims, and what waiting threads execute.

`run` claims idle workers of the team, gives them the program, executes it itself, and waits for the
others. If no worker is idle it executes the program alone.

The work of a kernel has as many shares as there are threads. Each thread claims its own share of a
kernel, then any that nobody has claimed, and goes on when all are finished. So a run does not wait
for a thread that the system does not let run, unless it holds a share. A thread that waits spins
for some tens of microseconds, and then sleeps in the system until it is woken.

A team is memory: `TEAM_BYTES` for all workers, then `BOX_BYTES` for each (`Box`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from msgspec import Struct

from penstock.drivers.llvm.frame import Word
from penstock.drivers.llvm.isa import Isa

TEAM_BYTES: Final = 128
BOX_BYTES: Final = 128

MOST_WORKERS: Final = 63


class Team(IntEnum):
    """The bytes of a team's memory before its boxes."""

    SPINS = 0
    """An int64: how often a waiting thread looks before it sleeps."""

    WAIT = 8
    """The system's function that sleeps until a word changes (`Sleeping`)."""

    WAKE = 16
    """The system's function that wakes those who sleep for a word."""

    COUNT = 24
    """An int64: how many workers there are."""


class Box(IntEnum):
    """The bytes of one worker's memory, by place."""

    TICKET = 0
    """An int32: how many jobs the worker was given."""

    IDLE = 4
    """An int32: not 0 while the worker sleeps."""

    OVER = 8
    """An int32: not 0 once the worker must end."""

    CLAIMED = 12
    """An int32: not 0 while the worker belongs to a run."""

    FUNCTION = 16
    FRAME = 24
    INDEX = 32
    THREADS = 40

    DONE = 64
    """An int32: how many jobs the worker has finished."""

    WAITED = 68
    """An int32: not 0 while a run sleeps until the job is finished."""

    TAKEN = 72
    """An int32: how many jobs the worker has begun, or were taken back before it did."""


class Sleeping(Struct, frozen=True):
    """How a system lets a thread sleep until a word of memory changes.

    *wait* and *wake* are the names of its functions in *library* (empty: the C library). The
    fields `*_code` are LLVM text that calls `%function` for `%word`; the wait is for another value
    than `%old`.
    """

    library: str
    wait: str
    wake: str
    wait_code: str
    wake_code: str


SLEEPING: Final[Mapping[str, Sleeping]] = {
    # futex(2): FUTEX_WAIT is 0, FUTEX_WAKE is 1, FUTEX_PRIVATE_FLAG is 128.
    "linux": Sleeping(
        "",
        "syscall",
        "syscall",
        "  call i64 (i64, ...) %function(i64 FUTEX, ptr %word, i64 128, i32 %old, ptr null, "
        "ptr null, i64 0)",
        "  call i64 (i64, ...) %function(i64 FUTEX, ptr %word, i64 129, i64 2147483647, ptr null, "
        "ptr null, i64 0)",
    ),
    # UL_COMPARE_AND_WAIT is 1, ULF_WAKE_ALL is 0x100.
    "darwin": Sleeping(
        "",
        "__ulock_wait",
        "__ulock_wake",
        "  %wide = zext i32 %old to i64\n  call i32 %function(i32 1, ptr %word, i64 %wide, i32 0)",
        "  call i32 %function(i32 257, ptr %word, i64 0)",
    ),
    "win32": Sleeping(
        "api-ms-win-core-synch-l1-2-0.dll",
        "WaitOnAddress",
        "WakeByAddressAll",
        "  %seen = alloca i32, align 4\n  store i32 %old, ptr %seen, align 4\n"
        "  call i32 %function(ptr %word, ptr %seen, i64 4, i32 -1)",
        "  call void %function(ptr %word)",
    ),
}
"""By `sys.platform`."""

FUTEX: Final = {"x86_64": 202, "aarch64": 98}
"""The number of the system call, by architecture."""

PAUSE: Final = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
}
PAUSES: Final = {
    "x86_64": "declare void @llvm.x86.sse2.pause()",
    "aarch64": "declare void @llvm.aarch64.hint(i32)",
}

TICKS: Final = {
    "x86_64": "call i64 @llvm.readcyclecounter()",
    # The counter of cycles may not be read by programs there; the one of time may (cntvct_el0).
    # LLVM assembles for no other processor than this one: no inline assembly.
    "aarch64": "call i64 @llvm.readsteadycounter()",
}
"""Reads the clock that time stamps are taken from."""


def ticks(isa: Isa) -> str:
    """`ticks()` returns the clock; `stamp(times, place)` stores it; `mark(marker, number, counted,
    times, place)` stores that kernel *number* begins, and if that is counted the clock.
    """
    return f"""
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.readsteadycounter()
define i64 @ticks() noinline nounwind {{
  %now = {TICKS[isa.architecture]}
  ret i64 %now
}}
define internal void @stamp(ptr %times, i64 %place) noinline nounwind {{
  %now = {TICKS[isa.architecture]}
  %at = getelementptr i64, ptr %times, i64 %place
  store i64 %now, ptr %at, align 8
  ret void
}}
define internal void @mark(ptr %marker, i64 %number, i1 %counted, ptr %times, i64 %place)
    noinline nounwind {{
  store i64 %number, ptr %marker, align 8
  br i1 %counted, label %count, label %done
count:
  call void @stamp(ptr %times, i64 %place)
  br label %done
done:
  ret void
}}"""


ALONE: Final = f"""
define i32 @run(ptr %frame) noinline nounwind {{
  call void @share(ptr %frame, i64 0, i64 1)
  %place = getelementptr i8, ptr %frame, i64 {8 * Word.STOP}
  %stop = load ptr, ptr %place, align 8
  %flag = load atomic i32, ptr %stop monotonic, align 4
  %set = icmp ne i32 %flag, 0
  %result = zext i1 %set to i32
  ret i32 %result
}}"""
"""`run` of a program that one thread executes alone."""


def shared(isa: Isa, system: Sleeping, slots: int) -> str:
    """`run` of a program that threads share, with so many *slots* an image; `worker(team, box)`,
    which a thread executes until `dismiss(team, box)`; `pauses(turns)`, which takes as long as so
    many turns of a waiting thread; and for each slot: `claim(slot, own share,
    shares)`, which returns a share or -1, `finish(frame, team, slot, shares)` after each share, and
    `complete(frame, team, slot, shares)`, which waits for all.
    """
    number = str(FUTEX[isa.architecture])
    pause, declared = PAUSE[isa.architecture], PAUSES[isa.architecture]
    wait_code, wake_code = (
        c.replace("FUTEX", number) for c in (system.wait_code, system.wake_code)
    )
    return f"""
{declared}
declare i64 @llvm.cttz.i64(i64, i1)
define internal void @sleep(ptr %team, ptr %word, i32 %old) noinline nounwind {{
  %place = getelementptr i8, ptr %team, i64 {Team.WAIT}
  %function = load ptr, ptr %place, align 8
{wait_code}
  ret void
}}
define internal void @wake(ptr %team, ptr %word) noinline nounwind {{
  %place = getelementptr i8, ptr %team, i64 {Team.WAKE}
  %function = load ptr, ptr %place, align 8
{wake_code}
  ret void
}}
define internal void @until(ptr %team, ptr %word, ptr %asleep, i32 %old) noinline nounwind {{
entry:
  %place = getelementptr i8, ptr %team, i64 {Team.SPINS}
  %spins = load i64, ptr %place, align 8
  br label %look
look:
  %turn = phi i64 [0, %entry], [%next, %again]
  %value = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %value, %old
  br i1 %same, label %again, label %done
again:
  {pause}
  %next = add nuw nsw i64 %turn, 1
  %more = icmp slt i64 %next, %spins
  br i1 %more, label %look, label %tired
tired:
  %before = atomicrmw add ptr %asleep, i32 1 seq_cst
  br label %check
check:
  %now = load atomic i32, ptr %word seq_cst, align 4
  %still = icmp eq i32 %now, %old
  br i1 %still, label %rest, label %up
rest:
  call void @sleep(ptr %team, ptr %word, i32 %old)
  br label %check
up:
  %after = atomicrmw sub ptr %asleep, i32 1 seq_cst
  br label %done
done:
  ret void
}}
define void @pauses(i64 %turns) noinline nounwind {{
entry:
  br label %again
again:
  %turn = phi i64 [0, %entry], [%next, %again]
  {pause}
  %next = add nuw nsw i64 %turn, 1
  %more = icmp slt i64 %next, %turns
  br i1 %more, label %again, label %done
done:
  ret void
}}
define internal void @advance(ptr %team, ptr %word, ptr %asleep) noinline nounwind {{
  %old = atomicrmw add ptr %word, i32 1 seq_cst
  %sleepers = load atomic i32, ptr %asleep seq_cst, align 4
  %some = icmp ne i32 %sleepers, 0
  br i1 %some, label %call, label %done
call:
  call void @wake(ptr %team, ptr %word)
  br label %done
done:
  ret void
}}
define internal i64 @claim(ptr %slot, i64 %own, i64 %shares) noinline nounwind {{
entry:
  %bit = shl i64 1, %own
  %old = atomicrmw or ptr %slot, i64 %bit seq_cst
  %had = and i64 %old, %bit
  %mine = icmp eq i64 %had, 0
  br i1 %mine, label %own.share, label %mask
own.share:
  ret i64 %own
mask:
  %spare = sub i64 64, %shares
  %all = lshr i64 -1, %spare
  br label %search
search:
  %seen = phi i64 [%old, %mask], [%newer, %try]
  %left = xor i64 %seen, -1
  %free = and i64 %left, %all
  %none = icmp eq i64 %free, 0
  br i1 %none, label %nothing, label %try
try:
  %other = call i64 @llvm.cttz.i64(i64 %free, i1 true)
  %other.bit = shl i64 1, %other
  %newer = atomicrmw or ptr %slot, i64 %other.bit seq_cst
  %lost = and i64 %newer, %other.bit
  %won = icmp eq i64 %lost, 0
  br i1 %won, label %other.share, label %search
other.share:
  ret i64 %other
nothing:
  ret i64 -1
}}
define internal void @finish(ptr %frame, ptr %team, ptr %slot, i64 %shares) noinline nounwind {{
  %done = getelementptr i8, ptr %slot, i64 8
  %before = atomicrmw add ptr %done, i32 1 seq_cst
  %now = add i32 %before, 1
  %all = trunc i64 %shares to i32
  %last = icmp eq i32 %now, %all
  br i1 %last, label %look, label %leave
look:
  %asleep = getelementptr i8, ptr %frame, i64 {8 * Word.ASLEEP}
  %sleepers = load atomic i32, ptr %asleep seq_cst, align 4
  %some = icmp ne i32 %sleepers, 0
  br i1 %some, label %call, label %leave
call:
  call void @wake(ptr %team, ptr %done)
  br label %leave
leave:
  ret void
}}
define internal void @complete(ptr %frame, ptr %team, ptr %slot, i64 %shares) noinline nounwind {{
  %done = getelementptr i8, ptr %slot, i64 8
  %asleep = getelementptr i8, ptr %frame, i64 {8 * Word.ASLEEP}
  %all = trunc i64 %shares to i32
  br label %look
look:
  %now = load atomic i32, ptr %done acquire, align 4
  %whole = icmp eq i32 %now, %all
  br i1 %whole, label %leave, label %wait
wait:
  call void @until(ptr %team, ptr %done, ptr %asleep, i32 %now)
  br label %look
leave:
  ret void
}}
define void @worker(ptr %team, ptr %box) noinline nounwind {{
entry:
  %ticket = getelementptr i8, ptr %box, i64 {Box.TICKET}
  %idle = getelementptr i8, ptr %box, i64 {Box.IDLE}
  %over = getelementptr i8, ptr %box, i64 {Box.OVER}
  %done = getelementptr i8, ptr %box, i64 {Box.DONE}
  %waited = getelementptr i8, ptr %box, i64 {Box.WAITED}
  %function.at = getelementptr i8, ptr %box, i64 {Box.FUNCTION}
  %frame.at = getelementptr i8, ptr %box, i64 {Box.FRAME}
  %index.at = getelementptr i8, ptr %box, i64 {Box.INDEX}
  %threads.at = getelementptr i8, ptr %box, i64 {Box.THREADS}
  %taken = getelementptr i8, ptr %box, i64 {Box.TAKEN}
  br label %next
next:
  %seen = phi i32 [0, %entry], [%following, %begin], [%following, %job]
  call void @until(ptr %team, ptr %ticket, ptr %idle, i32 %seen)
  %ended = load atomic i32, ptr %over acquire, align 4
  %end = icmp ne i32 %ended, 0
  br i1 %end, label %leave, label %begin
begin:
  %following = add i32 %seen, 1
  %taking = cmpxchg ptr %taken, i32 %seen, i32 %following seq_cst seq_cst
  %took = extractvalue {{ i32, i1 }} %taking, 1
  br i1 %took, label %job, label %next
job:
  %function = load ptr, ptr %function.at, align 8
  %frame = load ptr, ptr %frame.at, align 8
  %index = load i64, ptr %index.at, align 8
  %threads = load i64, ptr %threads.at, align 8
  call void %function(ptr %frame, i64 %index, i64 %threads)
  call void @advance(ptr %team, ptr %done, ptr %waited)
  br label %next
leave:
  ret void
}}
define void @dismiss(ptr %team, ptr %box) noinline nounwind {{
  %ticket = getelementptr i8, ptr %box, i64 {Box.TICKET}
  %idle = getelementptr i8, ptr %box, i64 {Box.IDLE}
  %over = getelementptr i8, ptr %box, i64 {Box.OVER}
  store atomic i32 1, ptr %over seq_cst, align 4
  call void @advance(ptr %team, ptr %ticket, ptr %idle)
  ret void
}}
define i32 @run(ptr %frame) noinline nounwind {{
entry:
  %boxes = alloca [{MOST_WORKERS + 1} x ptr], align 8
  %threads.at = getelementptr i8, ptr %frame, i64 {8 * Word.THREADS}
  %most = load i64, ptr %threads.at, align 8
  %team.at = getelementptr i8, ptr %frame, i64 {8 * Word.TEAM}
  %team = load ptr, ptr %team.at, align 8
  %none = icmp eq ptr %team, null
  %one = icmp sle i64 %most, 1
  %alone = or i1 %none, %one
  br i1 %alone, label %work, label %gather
gather:
  %count.at = getelementptr i8, ptr %team, i64 {Team.COUNT}
  %count = load atomic i64, ptr %count.at acquire, align 8
  br label %offer
offer:
  %number = phi i64 [0, %gather], [%number.next, %asked]
  %members = phi i64 [1, %gather], [%members.next, %asked]
  %left = icmp slt i64 %number, %count
  %wanted = icmp slt i64 %members, %most
  %go = and i1 %left, %wanted
  br i1 %go, label %ask, label %ready
ask:
  %offset = mul i64 %number, {BOX_BYTES}
  %offset.box = add i64 %offset, {TEAM_BYTES}
  %box = getelementptr i8, ptr %team, i64 %offset.box
  %claimed.at = getelementptr i8, ptr %box, i64 {Box.CLAIMED}
  %claim = cmpxchg ptr %claimed.at, i32 0, i32 1 seq_cst seq_cst
  %got = extractvalue {{ i32, i1 }} %claim, 1
  br i1 %got, label %take, label %asked
take:
  %slot = getelementptr ptr, ptr %boxes, i64 %members
  store ptr %box, ptr %slot, align 8
  %taken = add nuw nsw i64 %members, 1
  br label %asked
asked:
  %members.next = phi i64 [%members, %ask], [%taken, %take]
  %number.next = add nuw nsw i64 %number, 1
  br label %offer
ready:
  %slots.at = getelementptr i8, ptr %frame, i64 {8 * Word.SLOTS}
  %slots = load ptr, ptr %slots.at, align 8
  %images.at = getelementptr i8, ptr %frame, i64 {8 * Word.IMAGES}
  %images = load i64, ptr %images.at, align 8
  %places = mul i64 %images, {2 * slots}
  br label %clear
clear:
  %place = phi i64 [0, %ready], [%place.next, %clear]
  %cleared = getelementptr i64, ptr %slots, i64 %place
  store i64 0, ptr %cleared, align 8
  %place.next = add nuw nsw i64 %place, 1
  %dirty = icmp slt i64 %place.next, %places
  br i1 %dirty, label %clear, label %publish
publish:
  %give = phi i64 [1, %clear], [%give.next, %given]
  %some = icmp slt i64 %give, %members
  br i1 %some, label %given, label %work
given:
  %slot.give = getelementptr ptr, ptr %boxes, i64 %give
  %box.give = load ptr, ptr %slot.give, align 8
  %function.at = getelementptr i8, ptr %box.give, i64 {Box.FUNCTION}
  store ptr @share, ptr %function.at, align 8
  %frame.at = getelementptr i8, ptr %box.give, i64 {Box.FRAME}
  store ptr %frame, ptr %frame.at, align 8
  %index.at = getelementptr i8, ptr %box.give, i64 {Box.INDEX}
  store i64 %give, ptr %index.at, align 8
  %number.at = getelementptr i8, ptr %box.give, i64 {Box.THREADS}
  store i64 %members, ptr %number.at, align 8
  %ticket.give = getelementptr i8, ptr %box.give, i64 {Box.TICKET}
  %idle.give = getelementptr i8, ptr %box.give, i64 {Box.IDLE}
  call void @advance(ptr %team, ptr %ticket.give, ptr %idle.give)
  %give.next = add nuw nsw i64 %give, 1
  br label %publish
work:
  %all = phi i64 [1, %entry], [%members, %publish]
  call void @share(ptr %frame, i64 0, i64 %all)
  br label %gather.in
gather.in:
  %back = phi i64 [1, %work], [%back.next, %free]
  %waiting = icmp slt i64 %back, %all
  br i1 %waiting, label %joined, label %leave
joined:
  %slot.back = getelementptr ptr, ptr %boxes, i64 %back
  %box.back = load ptr, ptr %slot.back, align 8
  %ticket.at = getelementptr i8, ptr %box.back, i64 {Box.TICKET}
  %ticket = load i32, ptr %ticket.at, align 4
  %unfinished = sub i32 %ticket, 1
  %taken.at = getelementptr i8, ptr %box.back, i64 {Box.TAKEN}
  %taking = cmpxchg ptr %taken.at, i32 %unfinished, i32 %ticket seq_cst seq_cst
  %idle.back = extractvalue {{ i32, i1 }} %taking, 1
  %done.at = getelementptr i8, ptr %box.back, i64 {Box.DONE}
  %waited.at = getelementptr i8, ptr %box.back, i64 {Box.WAITED}
  br i1 %idle.back, label %revoked, label %working
revoked:
  %skipped = atomicrmw add ptr %done.at, i32 1 seq_cst
  br label %free
working:
  call void @until(ptr %team, ptr %done.at, ptr %waited.at, i32 %unfinished)
  br label %free
free:
  %free.at = getelementptr i8, ptr %box.back, i64 {Box.CLAIMED}
  store atomic i32 0, ptr %free.at release, align 4
  %back.next = add nuw nsw i64 %back, 1
  br label %gather.in
leave:
  %stop.at = getelementptr i8, ptr %frame, i64 {8 * Word.STOP}
  %stop = load ptr, ptr %stop.at, align 8
  %flag = load atomic i32, ptr %stop monotonic, align 4
  %set = icmp ne i32 %flag, 0
  %result = zext i1 %set to i32
  ret i32 %result
}}"""
