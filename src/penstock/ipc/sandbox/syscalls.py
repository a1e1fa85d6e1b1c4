"""System calls that a driver's process has no use for, by their numbers on each architecture.

Numbers are those of Linux's `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`; None
where an architecture does not have the call.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Architecture(NamedTuple):
    """*audit* is the kernel's number for it (`AUDIT_ARCH_*`), *column* its place in the tables, *last* the newest call
    that they know of.
    """

    audit: int
    column: int
    last: int


ARCHITECTURES: Final = {
    "x86_64": Architecture(0xC000003E, 0, 469),
    "aarch64": Architecture(0xC00000B7, 1, 469),
}

X32_BIT: Final = 0x4000_0000
"""Set in the numbers of x86-64's third set of calls (x32)."""

REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    # Other programs, and other processes.
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130),
    # Talking to others than those it was connected with.
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # Another view of the file system.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "unshare": (272, 97),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "fanotify_init": (300, 262),
    # What Landlock says nothing of.
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    # The kernel, the machine and its clock.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    # Other rights.
    "personality": (135, 92),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "setgroups": (116, 159),
    "capset": (126, 91),
}
"""Answered with EPERM."""

CLONE: Final = (56, 220)
"""Allowed for threads alone."""

CLONE3: Final = (435, 435)
"""Answered with ENOSYS, upon which C libraries take `clone`, whose flags a filter can see."""

TO_ITSELF: Final = {"kill": (62, 129), "tgkill": (234, 131)}
"""Allowed where the first argument is the process itself."""

PRLIMIT: Final = (302, 261)
"""Allowed for the process itself, which may be called 0."""

IOCTL: Final = (16, 29)
TERMINAL_REQUESTS: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing on a terminal in the user's place."""

SECCOMP_CALL: Final = (317, 277)
LANDLOCK_CREATE_RULESET: Final = 444
LANDLOCK_ADD_RULE: Final = 445
LANDLOCK_RESTRICT_SELF: Final = 446
