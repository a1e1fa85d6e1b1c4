"""System calls that a driver's process may make, by their numbers on each architecture.

All others are forbidden, including calls that a later kernel adds. Numbers are those of Linux's
`arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`; None if an
architecture does not have the call.
"""

from __future__ import annotations

from typing import Final, NamedTuple

Numbers = tuple[int | None, int | None]
"""Numbers on x86-64 and on aarch64."""


class Architecture(NamedTuple):
    """One architecture: *audit* is the kernel's number (`AUDIT_ARCH_*`), *column* its place in the
    tables, *last* the newest call in them: C libraries accept `ENOSYS` for newer ones.
    """

    audit: int
    column: int
    last: int


X86_64: Final = 0xC000_003E

ARCHITECTURES: Final = {
    "x86_64": Architecture(X86_64, 0, 469),
    "aarch64": Architecture(0xC00000B7, 1, 469),
}

X32_BIT: Final = 0x4000_0000
"""Set in the numbers of x86-64's third set of calls (x32)."""

OWN: Final = -1
"""A value in checks that stands for the process's own number."""

WHOLE: Final = 0xFFFF_FFFF


class Check(NamedTuple):
    """A check of the low or *high* 32 bits of a call's *argument*.

    Masked, they must be one of *values*, or none of them if *refused*. Memory behind pointers
    cannot be checked.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = WHOLE
    high: bool = False
    refused: bool = False


Uses = tuple[tuple[Check, ...], ...]
"""A call is allowed if all checks of one of these pass."""


def _numbers(table: str) -> dict[str, Numbers]:
    """The calls of *table* by name: each has its two numbers, or `-`. `#` begins a comment."""
    rows = (row for row in table.splitlines() if not row.strip().startswith("#"))
    calls = (call.split() for call in ",".join(rows).split(",") if call.strip())
    return {name: (_number(first), _number(second)) for name, first, second in calls}


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


ALLOWED: Final = _numbers(
    """
    # Its own memory.
    brk 12 214, mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233,
    msync 26 227, mlock 149 228, mlock2 325 284, munlock 150 229, mlockall 151 230,
    munlockall 152 231, memfd_create 319 279, mbind 237 235, set_mempolicy 238 237,
    get_mempolicy 239 236, set_mempolicy_home_node 450 450, pkey_alloc 330 289, pkey_free 331 290,
    pkey_mprotect 329 288, mseal 462 462, map_shadow_stack 453 453
    # Descriptors that it has.
    read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69,
    pwritev 296 70, preadv2 327 286, pwritev2 328 287, close 3 57, close_range 436 436, dup 32 23,
    dup2 33 -, dup3 292 24, lseek 8 62, pipe 22 -, pipe2 293 59, poll 7 -, ppoll 271 73,
    select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21,
    epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19,
    signalfd 282 -, signalfd4 289 74, timerfd_create 283 85, timerfd_settime 286 86,
    timerfd_gettime 287 87, sendfile 40 71, copy_file_range 326 285, splice 275 76, tee 276 77,
    vmsplice 278 75
    # Files. Landlock restricts which.
    open 2 -, openat 257 56, openat2 437 437, creat 85 -, access 21 -, faccessat 269 48,
    faccessat2 439 439, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291,
    readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61, statfs 137 43,
    fstatfs 138 44, ftruncate 77 46, fallocate 285 47, fsync 74 82, fdatasync 75 83, flock 73 32,
    fadvise64 221 223, readahead 187 213, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -,
    unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37,
    getcwd 79 17, chdir 80 49, fchdir 81 50, umask 95 166, fgetxattr 193 10, flistxattr 196 13
    # Sockets that were passed to it: it cannot create, bind or connect any.
    listen 50 201, accept 43 202, accept4 288 242, recvfrom 45 207, recvmsg 47 212,
    recvmmsg 299 243, sendmsg 46 211, shutdown 48 210, getsockname 51 204, getpeername 52 205,
    getsockopt 55 209, setsockopt 54 208
    # Threads, and waiting.
    futex 202 98, futex_waitv 449 449, futex_wake 454 454, futex_wait 455 455,
    futex_requeue 456 456, set_robust_list 273 99, set_tid_address 218 96, rseq 334 293,
    gettid 186 178, exit 60 93, exit_group 231 94, sched_yield 24 124,
    sched_get_priority_max 146 125, sched_get_priority_min 147 126, getcpu 309 168,
    arch_prctl 158 -, restart_syscall 219 128, wait4 61 260, waitid 247 95
    # Signals to itself.
    rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
    rt_sigsuspend 130 133, rt_sigtimedwait 128 137, sigaltstack 131 132, pause 34 -
    # Clocks.
    clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101,
    gettimeofday 96 169, time 201 -, times 100 153, getitimer 36 102, setitimer 38 103, alarm 37 -,
    timer_create 222 107, timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109,
    timer_delete 226 111
    # Identity, system information, and dropping further rights.
    getpid 39 172, getppid 110 173, getpgrp 111 -, getuid 102 174, geteuid 107 175, getgid 104 176,
    getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, capget 125 90,
    getrlimit 97 163, setrlimit 160 164, getrusage 98 165, sysinfo 99 179, uname 63 160,
    getrandom 318 278, seccomp 317 277, landlock_create_ruleset 444 444, landlock_add_rule 445 445,
    landlock_restrict_self 446 446
    """
)

OF_ITSELF: Final = _numbers(
    """
    prlimit64 302 261, sched_getaffinity 204 123, sched_setaffinity 203 122,
    sched_getparam 143 121, sched_setparam 142 118, sched_getscheduler 145 120,
    sched_setscheduler 144 119, sched_getattr 315 275, sched_setattr 314 274,
    sched_rr_get_interval 148 127, getpgid 121 155, getsid 124 156, move_pages 279 239
    """
)
"""Allowed if the first argument is the process itself, or 0 for the calling thread."""

CLONE_THREAD: Final = 0x0001_0000 | 0x0000_0800 | 0x0000_0100
"""With CLONE_SIGHAND and CLONE_VM, which every thread needs."""
CLONE_NAMESPACES: Final = 0x7E02_0000

SOCKET_FLAGS: Final = 0x0008_0800
"""SOCK_CLOEXEC and SOCK_NONBLOCK."""

FCNTL: Final = (*range(8), 36, 37, 38, 1027, 1030, 1031, 1032, 1033, 1034)
"""Duplicates, flags, locks, pipe sizes and seals; no owners, leases or notifications."""

PRCTL: Final = (3, 4, 15, 16, 21, 22, 23, 29, 30, 38, 39, 41, 42, 47, *range(50, 57), 0x53564D41)
"""Names of threads and of memory, dumping, timers, vectors, and dropping rights."""

MEMBARRIER: Final = (0, 8, 16, 32, 64)
"""Between the threads of the process alone."""

IOCTL_TYPES: Final = tuple(ord(c) << 8 for c in "TEXf\x12\x89\x94")
"""Forbidden groups of requests: terminals, input, file systems, disks and sockets.

They could type in the user's place, or change attributes of files that were opened for reading
(`Documentation/userspace-api/ioctl`).
"""
IOCTL_REQUESTS: Final = (0x4004_7602, 0x4008_7602)
"""FS_IOC_SETVERSION, in a group that accelerators have too."""
IOCTL_OF_ANY: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Any file: whether it is a terminal and its width, available bytes, and blocking mode."""

CHECKED: Final[dict[str, tuple[Numbers, Uses]]] = {
    "clone": ((56, 220), ((Check(0, (CLONE_THREAD,), CLONE_THREAD | CLONE_NAMESPACES),),)),
    "kill": ((62, 129), ((Check(0, (OWN,)),),)),
    "tgkill": ((234, 131), ((Check(0, (OWN,)),),)),
    # A stream or a sequence of packets between two ends can only be sent to the other end.
    "socketpair": ((53, 199), ((Check(0, (1,)), Check(1, (1, 5), WHOLE & ~SOCKET_FLAGS)),)),
    "sendto": ((44, 206), ((Check(4, (0,)), Check(4, (0,), high=True)),)),
    "fcntl": ((72, 25), ((Check(1, FCNTL),),)),
    "ioctl": (
        (16, 29),
        (
            (Check(1, IOCTL_OF_ANY),),
            (Check(1, IOCTL_TYPES, 0xFF00, refused=True), Check(1, IOCTL_REQUESTS, refused=True)),
        ),
    ),
    "prctl": ((157, 167), ((Check(0, PRCTL),),)),
    # Reading the personality, and setting the usual one.
    "personality": ((135, 92), ((Check(0, (0, WHOLE)),),)),
    "membarrier": ((324, 283), ((Check(0, MEMBARRIER),),)),
    "getpriority": ((140, 141), ((Check(0, (0,)), Check(1, (0, OWN))),)),
    "setpriority": ((141, 140), ((Check(0, (0,)), Check(1, (0, OWN))),)),
    **{name: (numbers, ((Check(0, (0, OWN)),),)) for name, numbers in OF_ITSELF.items()},
}
"""Calls that have uses beyond the process, with the uses that are allowed."""

CLONE3: Final = (435, 435)
"""Fails with ENOSYS: C libraries then use `clone`, whose flags a filter can see."""

SECCOMP_CALL: Final = (317, 277)
LANDLOCK_CREATE_RULESET: Final = 444
LANDLOCK_ADD_RULE: Final = 445
LANDLOCK_RESTRICT_SELF: Final = 446
