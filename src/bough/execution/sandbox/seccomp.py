"""The system-call filter of a sandbox, as a BPF program.

Namespaces hide the machine's objects; the filter closes kernel code that scripts do not need and that escapes
exploit. It has two halves: the first allows only the calls in `ALLOWED`; allowed calls pass to
the second, which refuses by name, with the error that programs expect, and by arguments. A refused call returns an
error and never kills, so a program that only tries it continues.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import sys
import tempfile
from typing import Any, Final

ALLOWED: Final[dict[str, str]] = {
    "files by descriptor": (
        "read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek _llseek close close_range dup "
        "dup2 dup3 fcntl fcntl64 flock fsync fdatasync sync sync_file_range sync_file_range2 syncfs ftruncate "
        "ftruncate64 fallocate fadvise64 fadvise64_64 readahead sendfile sendfile64 splice tee copy_file_range ioctl "
        "cachestat"
    ),
    "files by name": (
        "open openat creat access faccessat faccessat2 stat stat64 lstat lstat64 fstat fstat64 newfstatat fstatat64 "
        "statx statfs statfs64 fstatfs fstatfs64 truncate truncate64 rename renameat renameat2 link linkat symlink "
        "symlinkat unlink unlinkat readlink readlinkat mkdir mkdirat rmdir mknod mknodat chmod fchmod fchmodat "
        "fchmodat2 chown fchown lchown fchownat chown32 fchown32 lchown32 utime utimes utimensat utimensat_time64 "
        "futimesat umask getdents getdents64 getcwd chdir fchdir"
    ),
    "attributes of files": (
        "getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr setxattr lsetxattr fsetxattr removexattr "
        "lremovexattr fremovexattr"
    ),
    "news of files": ("inotify_init inotify_init1 inotify_add_watch inotify_rm_watch"),
    "memory": (
        "mmap mmap2 munmap mremap mprotect madvise mincore msync brk mlock mlock2 munlock mlockall munlockall "
        "membarrier get_mempolicy pkey_alloc pkey_free pkey_mprotect map_shadow_stack mseal"
    ),
    "processes and threads": (
        "fork vfork clone execve execveat exit exit_group wait4 waitid waitpid set_tid_address gettid getpid getppid "
        "set_robust_list get_robust_list rseq futex futex_time64 futex_waitv futex_wait futex_wake futex_requeue "
        "arch_prctl prctl set_thread_area get_thread_area riscv_flush_icache pidfd_open uname restart_syscall"
    ),
    "signals": (
        "kill tkill tgkill pidfd_send_signal rt_sigaction rt_sigprocmask rt_sigpending rt_sigqueueinfo rt_sigreturn "
        "rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sigaltstack sigreturn pause signalfd "
        "signalfd4"
    ),
    "who one is": (
        "getuid geteuid getgid getegid getgroups getresuid getresgid setuid setgid setreuid setregid setresuid "
        "setresgid setgroups setfsuid setfsgid getuid32 geteuid32 getgid32 getegid32 getgroups32 getresuid32 "
        "getresgid32 setuid32 setgid32 setreuid32 setregid32 setresuid32 setresgid32 getpgid getpgrp setpgid getsid "
        "setsid capget capset"
    ),
    "bounds and order": (
        "getrlimit ugetrlimit setrlimit prlimit64 getrusage getpriority setpriority ioprio_get ioprio_set sched_yield "
        "sched_getaffinity sched_setaffinity sched_getparam sched_setparam sched_getscheduler sched_setscheduler "
        "sched_getattr sched_setattr sched_get_priority_max sched_get_priority_min sched_rr_get_interval getcpu "
        "sched_rr_get_interval_time64 times sysinfo"
    ),
    "time": (
        "time gettimeofday clock_gettime clock_gettime64 clock_getres clock_getres_time64 clock_nanosleep "
        "clock_nanosleep_time64 nanosleep alarm getitimer setitimer timer_create timer_settime timer_settime64 "
        "timer_gettime timer_gettime64 timer_getoverrun timer_delete timerfd_create timerfd_settime timerfd_settime64 "
        "timerfd_gettime timerfd_gettime64"
    ),
    "waiting": (
        "select _newselect pselect6 pselect6_time64 poll ppoll ppoll_time64 epoll_create epoll_create1 epoll_ctl "
        "epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 pipe pipe2"
    ),
    "sockets, which another rule bounds": (
        "socket socketpair connect bind listen accept accept4 getsockname getpeername getsockopt setsockopt send "
        "sendto sendmsg sendmmsg recv recvfrom recvmsg recvmmsg recvmmsg_time64 shutdown"
    ),
    "chance": ("getrandom"),
    "more bounds for oneself": ("seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self"),
}
"""Names by purpose, including those that exist on other architectures only."""


SECCOMP_INSTALL: Final = "apt-get install libseccomp2 && pip install pyseccomp"
"""The command that installs libseccomp's Python binding."""

_REFUSED: Final = {
    "other processes and their memory": (
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "process_madvise",
        "process_mrelease",
        "kcmp",
        "pidfd_getfd",
    ),
    "kernel machinery with a long record of holes": (
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "add_key",
        "keyctl",
        "request_key",
        "fanotify_init",
        "fanotify_mark",
        "lookup_dcookie",
        "modify_ldt",
    ),
    "mounts and namespaces": (
        "mount",
        "umount",
        "umount2",
        "pivot_root",
        "chroot",
        "move_mount",
        "open_tree",
        "open_tree_attr",
        "fsopen",
        "fsconfig",
        "fsmount",
        "fspick",
        "mount_setattr",
        "setns",
        "unshare",
        "statmount",
        "listmount",
    ),
    "files by handle reach past mounts": (
        "open_by_handle_at",
        "name_to_handle_at",
    ),
    "the machine": (
        "swapon",
        "swapoff",
        "reboot",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
        "acct",
        "quotactl",
        "quotactl_fd",
        "syslog",
        "vhangup",
        "iopl",
        "ioperm",
        "clock_settime",
        "settimeofday",
        "stime",
        "adjtimex",
        "clock_adjtime",
        "sethostname",
        "setdomainname",
        "personality",
        "nfsservctl",
        "uselib",
        "_sysctl",
        "sysfs",
        "ustat",
    ),
    "memory placement, and memory that no other bound counts": (
        "mbind",
        "migrate_pages",
        "move_pages",
        "set_mempolicy",
        "set_mempolicy_home_node",
        "vmsplice",
        "remap_file_pages",
        "memfd_secret",
        "shmget",
        "shmat",
        "shmctl",
        "semget",
        "semop",
        "semctl",
        "semtimedop",
        "msgget",
        "msgsnd",
        "msgrcv",
        "msgctl",
        "mq_open",
        "mq_unlink",
    ),
}
"""The refused calls, with the reasons."""


_INSTRUCTION: Final = struct.Struct("=HBBI")
"""One instruction of a filter: code, jump if true, jump if false, value."""

_RETURN, _JUMP, _JUMP_EQUAL, _LOAD = 0x06, 0x05, 0x15, 0x20
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_TO_END: Final = 0xFF
"""Placeholder for a jump body the checks."""

PROGRAM_PID: Final = 0x7EB0CA75
"""Placeholder for the program's pid, which `inside/init.py` fills in, as it is unknown when the filter is built."""

_PRIO_PROCESS, _IOPRIO_PROCESS = 0, 1
_PID_ARGUMENTS: Final = {
    "prlimit64": 0,
    "sched_setaffinity": 0,
    "sched_setattr": 0,
    "sched_setparam": 0,
    "sched_setscheduler": 0,
    "setpriority": 1,
    "ioprio_set": 2,
}
"""Calls that set limits or priorities of a process by its pid. Without a process namespace, others can be named."""

_NAMESPACE_FLAGS: Final = (
    0x00000080,  # CLONE_NEWTIME
    0x00020000,  # CLONE_NEWNS
    0x02000000,  # CLONE_NEWCGROUP
    0x04000000,  # CLONE_NEWUTS
    0x08000000,  # CLONE_NEWIPC
    0x10000000,  # CLONE_NEWUSER
    0x20000000,  # CLONE_NEWPID
    0x40000000,  # CLONE_NEWNET
)

_CLONE_FILES, _CLONE_THREAD, _CLOSE_RANGE_UNSHARE = 0x400, 0x10000, 2

_MODE_ARGUMENTS: Final = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "mkdir": 1,
    "mkdirat": 2,
    "mknod": 1,
    "mknodat": 2,
}
"""The index of the argument with the mode of a file, by call."""

_TERMINAL_REQUESTS: Final = (0x5412, 0x541C, 0x541D, 0x5423)
"""TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD: typing into a terminal, and its relatives."""

_LEASE_COMMANDS: Final = (1024, 1040)
"""F_SETLEASE, F_SETDELEG: whoever opens a leased file, or changes a delegated folder, waits for up to 45 seconds."""


_BY_HOST_PATH: Final = (
    "inotify_init",
    "inotify_init1",
    "inotify_add_watch",
    "utime",
    "utimes",
    "futimesat",
)
"""Calls that neither Landlock nor its supervisor checks: watching any folder, and older ones that set file times."""


_BY_DESCRIPTOR: Final = {
    "fchmod": errno.EPERM,
    "fchown": errno.EPERM,
    "fchown32": errno.EPERM,
    "fsetxattr": errno.EOPNOTSUPP,
    "fremovexattr": errno.EOPNOTSUPP,
}
"""Calls that change an open file, however it was opened, and the error with which most programs continue."""

_FLAG_REQUESTS: Final = (0x40086602, 0x40046602, 0x401C5820)
"""FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, FS_IOC_FSSETXATTR: the same for the flags of a file, by `ioctl`."""


def filter_program(*, network: bool = False, host_paths: bool = False, read_only_mounts: bool = True) -> bytes:
    """Return the filter as BPF instructions of this machine; costs about a millisecond.

    Args:
        network: Whether TCP sockets are allowed (their namespace has a loopback only).
        host_paths: Whether paths are the host's: then calls by path that nothing else restricts are refused.
        read_only_mounts: Whether files that a program may only read are on read-only mounts. If not, calls are refused
            that change the mode, times, owner or attributes of a file through a descriptor.

    Raises:
        ImportError: libseccomp or its binding is missing.
    """
    import pyseccomp as seccomp  # pyright: ignore[reportMissingTypeStubs]

    return _make_own_process_filter(seccomp) + _chain_filters(
        _make_allowlist_filter(seccomp),
        _make_refusing_filter(seccomp, network=network, host_paths=host_paths, read_only_mounts=read_only_mounts),
    )


def _make_own_process_filter(seccomp: Any) -> bytes:
    """Return a filter that refuses limits and priorities for a process other than the caller; allowed calls pass on.

    Written by hand, since libseccomp takes an argument once in a rule. It is short enough for jumps of one byte.
    """
    blocks = [_check_process(None, 0), _check_process(_PRIO_PROCESS, 1), _check_process(_IOPRIO_PROCESS, 1)]
    numbered = [(seccomp.resolve_syscall(seccomp.Arch.NATIVE, name), kind) for name, kind in _PID_ARGUMENTS.items()]
    numbers = [(number, kind) for number, kind in numbered if number >= 0]
    block_offsets = [sum(map(len, blocks[:kind])) for kind in range(len(blocks) + 1)]  # the last one: body them all
    head = [_INSTRUCTION.pack(_LOAD, 0, 0, 0)]
    for position, (number, kind) in enumerate(numbers):
        to_blocks = len(numbers) - position  # over the other comparisons, and the jump that follows them
        head.append(_INSTRUCTION.pack(_JUMP_EQUAL, to_blocks + block_offsets[kind], 0, number))
    head.append(_INSTRUCTION.pack(_JUMP, 0, 0, block_offsets[-1]))
    body = [
        _INSTRUCTION.pack(code, block_offsets[-1] - position - 1 if if_true == _TO_END else if_true, if_false, value)
        for position, (code, if_true, if_false, value) in enumerate(
            instruction for block in blocks for instruction in block
        )
    ]
    return b"".join(head + body)


def _check_process(which: int | None, argument: int) -> list[tuple[int, int, int, int]]:
    """Return instructions that refuse any process except 0, which is the caller, and the program.

    Args:
        which: The value of the first argument that creates the other one a process; None if the first one is a process.
        argument: The index of the argument with the process.
    """
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    kind = [] if which is None else [(_LOAD, 0, 0, _argument_offset(0)), (_JUMP_EQUAL, 1, 0, which), refuse]
    own = [(_JUMP_EQUAL, _TO_END, 0, pid) for pid in (0, PROGRAM_PID)]
    return [*kind, (_LOAD, 0, 0, _argument_offset(argument)), *own, refuse]


def _argument_offset(argument: int) -> int:
    """Return the offset of an argument's lower half in the filter's data; a pid is an `int`."""
    return 16 + 8 * argument + (4 if sys.byteorder == "big" else 0)


def _make_allowlist_filter(seccomp: Any) -> bytes:
    """Return the first filter: it allows the calls in `ALLOWED`, and those that the second filter refuses by name."""
    calls: Any = seccomp.SyscallFilter(defaction=seccomp.ERRNO(errno.ENOSYS))
    names = {name for text in ALLOWED.values() for name in text.split()}
    for name in sorted(names.union(*_REFUSED.values())):
        if seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) >= 0:
            calls.add_rule(seccomp.ALLOW, name)
    return _export(calls, seccomp)


def _chain_filters(first: bytes, second: bytes) -> bytes:
    """Return a filter that passes the calls allowed by `first` to `second`."""
    instructions: list[bytes] = []
    count = len(first) // _INSTRUCTION.size
    for position, (code, if_true, if_false, value) in enumerate(_INSTRUCTION.iter_unpack(first)):
        if (code, value) == (_RETURN, _ALLOW):
            code, value = _JUMP, count - position - 1
        instructions.append(_INSTRUCTION.pack(code, if_true, if_false, value))
    return b"".join(instructions) + second


def _make_refusing_filter(seccomp: Any, *, network: bool, host_paths: bool, read_only_mounts: bool) -> bytes:
    """Return the filter that refuses by name and by arguments."""
    calls: Any = seccomp.SyscallFilter(defaction=seccomp.ALLOW)
    for names in _REFUSED.values():
        _refuse(calls, seccomp, names, errno.EPERM)
    # glibc falls back to clone, whose flags a filter can see
    calls.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    _refuse(calls, seccomp, ("memfd_create",), errno.ENOSYS)
    if host_paths:
        _refuse(calls, seccomp, _BY_HOST_PATH, errno.ENOSYS)
    if not read_only_mounts:
        _refuse_changes_by_descriptor(calls, seccomp)
    for flag in _NAMESPACE_FLAGS[1:]:
        calls.add_rule(seccomp.ERRNO(errno.EPERM), "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    for request in _TERMINAL_REQUESTS:
        calls.add_rule(seccomp.ERRNO(errno.EPERM), "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))
    for command in _LEASE_COMMANDS:  # as a file system without leases answers
        rule = seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, command)
        for name in ("fcntl", "fcntl64"):
            _add_rule(calls, seccomp.ERRNO(errno.EINVAL), name, rule)
    for name, mode_argument in (("mknod", 1), ("mknodat", 2)):
        for kind in (stat.S_IFCHR, stat.S_IFBLK):
            rule = seccomp.Arg(mode_argument, seccomp.MASKED_EQ, 0o170000, kind)
            _add_rule(calls, seccomp.ERRNO(errno.EPERM), name, rule)
    _refuse_setuid_files(calls, seccomp)
    _refuse_hiding(calls, seccomp)
    _refuse_sockets(calls, seccomp, network=network)
    return _export(calls, seccomp)


def _refuse(calls: Any, seccomp: Any, names: tuple[str, ...], number: int) -> None:
    for name in names:
        if seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) != -1:
            _add_rule(calls, seccomp.ERRNO(number), name)


def _refuse_changes_by_descriptor(calls: Any, seccomp: Any) -> None:
    """Refuse what asks who owns an open file, and not how it was opened. By path, the supervisor decides."""
    for name, number in _BY_DESCRIPTOR.items():
        _refuse(calls, seccomp, (name,), number)
    for name in ("utimensat", "utimensat_time64"):  # without a path: `touch` falls back to the one with a path
        _add_rule(calls, seccomp.ERRNO(errno.ENOSYS), name, seccomp.Arg(1, seccomp.EQ, 0))
    for request in _FLAG_REQUESTS:
        calls.add_rule(seccomp.ERRNO(errno.EPERM), "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))


def _add_rule(calls: Any, action: Any, name: str, *rules: Any) -> None:
    """Add a rule, unless this architecture does not have the call."""
    try:
        calls.add_rule(action, name, *rules)
    except (OSError, ValueError, RuntimeError) as error:
        if getattr(error, "errno", None) not in (None, errno.EINVAL, errno.EDOM):
            raise


def _refuse_setuid_files(calls: Any, seccomp: Any) -> None:
    """Refuse setuid and setgid files: in a person's workspace they would outlive the run with that person's rights."""
    refused = seccomp.ERRNO(errno.EPERM)
    for bit in (stat.S_ISUID, stat.S_ISGID):
        for name, argument in _MODE_ARGUMENTS.items():
            _add_rule(calls, refused, name, seccomp.Arg(argument, seccomp.MASKED_EQ, bit, bit))
        for name, flags in (("open", 1), ("openat", 2)):
            creates = seccomp.Arg(flags, seccomp.MASKED_EQ, os.O_CREAT, os.O_CREAT)
            _add_rule(calls, refused, name, creates, seccomp.Arg(flags + 1, seccomp.MASKED_EQ, bit, bit))
    # its mode lies in memory, where a filter cannot look; callers fall back to openat
    _refuse(calls, seccomp, ("openat2",), errno.ENOSYS)


def _refuse_hiding(calls: Any, seccomp: Any) -> None:
    """Refuse what keeps files where their size is not looked for: without a name from the start, in a thread alone."""
    unnamed = os.O_TMPFILE & ~os.O_DIRECTORY
    for name, flags in (("open", 1), ("openat", 2)):
        rule = seccomp.Arg(flags, seccomp.MASKED_EQ, unnamed, unnamed)
        _add_rule(
            calls, seccomp.ERRNO(errno.EOPNOTSUPP), name, rule
        )  # as a file system that has none; libraries fall back
    refused = seccomp.ERRNO(errno.EPERM)
    # Descriptors of a thread's own: only those of its process can be listed cheaply.
    own = seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD | _CLONE_FILES, _CLONE_THREAD)
    _add_rule(calls, refused, "clone", own)
    _add_rule(
        calls, refused, "close_range", seccomp.Arg(2, seccomp.MASKED_EQ, _CLOSE_RANGE_UNSHARE, _CLOSE_RANGE_UNSHARE)
    )


def _refuse_sockets(calls: Any, seccomp: Any, *, network: bool) -> None:
    """Refuse every kind of socket but a connected stream pair; with `network`, let TCP over IPv4 through.

    A datagram of a pair can be sent to an address: to whoever listens in a folder that is shown, descriptors included.
    """
    refused = seccomp.ERRNO(errno.EACCES)
    calls.add_rule(refused, "socketpair", seccomp.Arg(0, seccomp.NE, socket.AF_UNIX))
    for kind in range(16):
        if kind not in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            calls.add_rule(refused, "socketpair", seccomp.Arg(1, seccomp.MASKED_EQ, 0xF, kind))
    # Without effect, and no error: buffers are counted by their usual size where no control group counts them.
    levels = seccomp.Arg(1, seccomp.EQ, socket.SOL_SOCKET), seccomp.Arg(2, seccomp.EQ, socket.SO_SNDBUF)
    calls.add_rule(seccomp.ERRNO(0), "setsockopt", *levels)
    if not network:
        _refuse(calls, seccomp, ("socket", "connect", "bind"), errno.EACCES)
        return
    calls.add_rule(refused, "socket", seccomp.Arg(0, seccomp.NE, socket.AF_INET))
    kind_bits = 0xF
    for kind in range(16):
        if kind != socket.SOCK_STREAM:
            calls.add_rule(refused, "socket", seccomp.Arg(1, seccomp.MASKED_EQ, kind_bits, kind))


def _export(calls: Any, seccomp: Any) -> bytes:
    calls.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.ERRNO(errno.ENOSYS))
    calls.set_attr(seccomp.Attr.CTL_OPTIMIZE, 2)  # a tree instead of a chain: the kernel walks it once for every call
    with tempfile.TemporaryFile() as target:
        calls.export_bpf(target)
        os.lseek(target.fileno(), 0, os.SEEK_SET)
        return target.read()
