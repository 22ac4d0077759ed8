"""The system-call filter of a sandbox, as a BPF program.

Namespaces hide the machine's objects. The filter blocks the kernel code that scripts do not need and that attacks on
sandboxes exploit. The allowlist filter passes the calls in `ALLOWED` and `_REFUSED` to the refusing filter, which
refuses calls by name or by arguments, with the errors that programs expect. A refused call returns an error and never
kills the program, so a program that merely tries a call continues.
"""

from __future__ import annotations

import errno
import itertools
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
    "file notifications": ("inotify_init inotify_init1 inotify_add_watch inotify_rm_watch"),
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
    "user, group and session ids": (
        "getuid geteuid getgid getegid getgroups getresuid getresgid setuid setgid setreuid setregid setresuid "
        "setresgid setgroups setfsuid setfsgid getuid32 geteuid32 getgid32 getegid32 getgroups32 getresuid32 "
        "getresgid32 setuid32 setgid32 setreuid32 setregid32 setresuid32 setresgid32 getpgid getpgrp setpgid getsid "
        "setsid capget capset"
    ),
    "limits and scheduling": (
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
    "sockets, which the refusing filter restricts": (
        "socket socketpair connect bind listen accept accept4 getsockname getpeername getsockopt setsockopt send "
        "sendto sendmsg sendmmsg recv recvfrom recvmsg recvmmsg recvmmsg_time64 shutdown"
    ),
    "random numbers": ("getrandom"),
    "further restrictions of the caller": ("seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self"),
}
"""The allowed calls by purpose, including those that exist only on other architectures."""


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
    "kernel subsystems with a long record of vulnerabilities": (
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
    "files by handle, which bypasses mounts": (
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
    "memory placement, and memory that no limit counts": (
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
"""The calls that are refused with EPERM, by reason."""


_INSTRUCTION: Final = struct.Struct("=HBBI")
"""One instruction of a filter: code, jump if true, jump if false, value."""

_RETURN, _JUMP, _JUMP_EQUAL, _LOAD = 0x06, 0x05, 0x15, 0x20
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_TO_END: Final = 0xFF
"""Placeholder for the distance of a jump past the checks."""

PROGRAM_PID: Final = 0x7EB0CA75
"""Placeholder for the program's pid, which is unknown when the filter is built; `inside/init.py` replaces it."""

_PRIO_PROCESS, _IOPRIO_PROCESS = 0, 1
_CHECK_BY_CALL: Final = {
    "prlimit64": 0,
    "sched_setaffinity": 0,
    "sched_setattr": 0,
    "sched_setparam": 0,
    "sched_setscheduler": 0,
    "setpriority": 1,
    "ioprio_set": 2,
}
"""Calls that set limits or priorities of a process by its pid. Without a pid namespace, that may be any process.

The values are indices of the checks in `_make_own_process_filter`.
"""

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
"""TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD: inserting input into a terminal, and similar requests."""

_LEASE_COMMANDS: Final = (1024, 1040)
"""F_SETLEASE, F_SETDELEG: opening a leased file or changing a delegated folder blocks for up to 45 seconds."""


_BY_HOST_PATH: Final = (
    "inotify_init",
    "inotify_init1",
    "inotify_add_watch",
    "utime",
    "utimes",
    "futimesat",
)
"""Calls by path that neither Landlock nor its supervisor checks: watching folders, and old calls for file times."""


_BY_DESCRIPTOR: Final = {
    "fchmod": errno.EPERM,
    "fchown": errno.EPERM,
    "fchown32": errno.EPERM,
    "fsetxattr": errno.EOPNOTSUPP,
    "fremovexattr": errno.EOPNOTSUPP,
}
"""Calls that change an open file even if it was opened for reading, with an error after which programs continue."""

_FLAG_REQUESTS: Final = (0x40086602, 0x40046602, 0x401C5820)
"""FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, FS_IOC_FSSETXATTR: requests of `ioctl` that change the flags of an open file."""


def build_filter(*, network: bool = False, host_paths: bool = False, read_only_mounts: bool = True) -> bytes:
    """Return the filter as BPF instructions for this machine. Takes about a millisecond.

    Args:
        network: Whether TCP sockets are allowed; their network namespace has only a loopback interface.
        host_paths: Whether the sandbox has the host's paths. Calls by path that nothing else restricts are then
            refused.
        read_only_mounts: Whether files that a program may only read are on read-only mounts. If not, calls that change
            the mode, times, owner or attributes of a file through a descriptor are refused.

    Raises:
        ImportError: libseccomp's Python binding is missing.
        RuntimeError: libseccomp is missing.
    """
    import pyseccomp as seccomp  # pyright: ignore[reportMissingTypeStubs]

    return _make_own_process_filter(seccomp) + _chain_filters(
        _make_allowlist_filter(seccomp),
        _make_refusing_filter(seccomp, network=network, host_paths=host_paths, read_only_mounts=read_only_mounts),
    )


def _make_own_process_filter(seccomp: Any) -> bytes:
    """Return a filter that refuses changes to the limits or priorities of another process.

    All other calls reach its end, where the caller appends the next filter. It consists of a comparison for each call
    in `_CHECK_BY_CALL`, a jump to the end, and the checks. It is written by hand, because a rule of libseccomp compares
    an argument only once. It is short enough for jumps whose distance fits into one byte.
    """
    checks = [
        _make_process_check(None, 0),
        _make_process_check(_PRIO_PROCESS, 1),
        _make_process_check(_IOPRIO_PROCESS, 1),
    ]
    offsets = [sum(map(len, checks[:index])) for index in range(len(checks))]
    checks_length = sum(map(len, checks))
    # The number of a call that this architecture does not have is negative.
    numbered_checks = [
        (seccomp.resolve_syscall(seccomp.Arch.NATIVE, name), index) for name, index in _CHECK_BY_CALL.items()
    ]
    calls = [(number, index) for number, index in numbered_checks if number >= 0]
    instructions = [_INSTRUCTION.pack(_LOAD, 0, 0, 0)]
    for position, (number, index) in enumerate(calls):
        distance = len(calls) - position  # over the remaining comparisons, and the jump after them
        instructions.append(_INSTRUCTION.pack(_JUMP_EQUAL, distance + offsets[index], 0, number))
    instructions.append(_INSTRUCTION.pack(_JUMP, 0, 0, checks_length))
    for position, (code, if_true, if_false, value) in enumerate(itertools.chain.from_iterable(checks)):
        distance = checks_length - position - 1 if if_true == _TO_END else if_true
        instructions.append(_INSTRUCTION.pack(code, distance, if_false, value))
    return b"".join(instructions)


def _make_process_check(required_kind: int | None, argument: int) -> list[tuple[int, int, int, int]]:
    """Return instructions that refuse a call unless its pid argument is the program's, or 0, which is the caller.

    Args:
        required_kind: The value of the first argument with which the pid argument is a pid, and not a group or user;
            None if the call has no such argument.
        argument: The index of the pid argument.
    """
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    check_kind = (
        []
        if required_kind is None
        else [(_LOAD, 0, 0, _find_argument_offset(0)), (_JUMP_EQUAL, 1, 0, required_kind), refuse]
    )
    compare_pid = [(_JUMP_EQUAL, _TO_END, 0, pid) for pid in (0, PROGRAM_PID)]
    return [*check_kind, (_LOAD, 0, 0, _find_argument_offset(argument)), *compare_pid, refuse]


def _find_argument_offset(argument: int) -> int:
    """Return the offset of an argument's lower 32 bits in the filter's data. A pid has only 32 bits."""
    return 16 + 8 * argument + (4 if sys.byteorder == "big" else 0)


def _make_allowlist_filter(seccomp: Any) -> bytes:
    """Return a filter that allows only the calls in `ALLOWED`, and those that the refusing filter refuses by name."""
    builder: Any = seccomp.SyscallFilter(defaction=seccomp.ERRNO(errno.ENOSYS))
    names = {name for text in ALLOWED.values() for name in text.split()}
    for name in sorted(names.union(*_REFUSED.values())):
        if seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) >= 0:
            builder.add_rule(seccomp.ALLOW, name)
    return _export(builder, seccomp)


def _chain_filters(first: bytes, second: bytes) -> bytes:
    """Return the two filters as one: `second` decides about the calls that `first` allows."""
    instructions: list[bytes] = []
    count = len(first) // _INSTRUCTION.size
    for position, (code, if_true, if_false, value) in enumerate(_INSTRUCTION.iter_unpack(first)):
        if (code, value) == (_RETURN, _ALLOW):
            code, value = _JUMP, count - position - 1
        instructions.append(_INSTRUCTION.pack(code, if_true, if_false, value))
    return b"".join(instructions) + second


def _make_refusing_filter(seccomp: Any, *, network: bool, host_paths: bool, read_only_mounts: bool) -> bytes:
    """Return a filter that allows every call except those that it refuses by name or by arguments."""
    builder: Any = seccomp.SyscallFilter(defaction=seccomp.ALLOW)
    for names in _REFUSED.values():
        _refuse(builder, seccomp, names, errno.EPERM)
    # glibc falls back to clone, whose flags are arguments; those of clone3 are in memory, which a filter cannot read.
    builder.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    _refuse(builder, seccomp, ("memfd_create",), errno.ENOSYS)
    if host_paths:
        _refuse(builder, seccomp, _BY_HOST_PATH, errno.ENOSYS)
    if not read_only_mounts:
        _refuse_changes_by_descriptor(builder, seccomp)
    # Without CLONE_NEWTIME: among the flags of clone, its bit belongs to the exit signal.
    for flag in _NAMESPACE_FLAGS[1:]:
        builder.add_rule(seccomp.ERRNO(errno.EPERM), "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    for request in _TERMINAL_REQUESTS:
        builder.add_rule(seccomp.ERRNO(errno.EPERM), "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))
    for command in _LEASE_COMMANDS:  # with the error of a file system without leases
        condition = seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, command)
        for name in ("fcntl", "fcntl64"):
            _add_rule(builder, seccomp.ERRNO(errno.EINVAL), name, condition)
    for name, mode_argument in (("mknod", 1), ("mknodat", 2)):
        for kind in (stat.S_IFCHR, stat.S_IFBLK):
            condition = seccomp.Arg(mode_argument, seccomp.MASKED_EQ, 0o170000, kind)
            _add_rule(builder, seccomp.ERRNO(errno.EPERM), name, condition)
    _refuse_setuid_files(builder, seccomp)
    _refuse_uncounted_files(builder, seccomp)
    _refuse_sockets(builder, seccomp, network=network)
    return _export(builder, seccomp)


def _refuse(builder: Any, seccomp: Any, names: tuple[str, ...], error_number: int) -> None:
    """Add rules that make the named calls fail with `error_number`; skip calls that libseccomp does not know."""
    for name in names:
        if seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) != -1:
            _add_rule(builder, seccomp.ERRNO(error_number), name)


def _refuse_changes_by_descriptor(builder: Any, seccomp: Any) -> None:
    """Refuse calls on open files for which the kernel checks the owner, and not whether the file is writable.

    The same calls by path are checked by the supervisor.
    """
    for name, number in _BY_DESCRIPTOR.items():
        _refuse(builder, seccomp, (name,), number)
    for name in ("utimensat", "utimensat_time64"):  # only without a path; `touch` falls back to a call with a path
        _add_rule(builder, seccomp.ERRNO(errno.ENOSYS), name, seccomp.Arg(1, seccomp.EQ, 0))
    for request in _FLAG_REQUESTS:
        builder.add_rule(seccomp.ERRNO(errno.EPERM), "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))


def _add_rule(builder: Any, action: Any, name: str, *conditions: Any) -> None:
    """Add a rule for calls that meet all conditions, unless this architecture does not have the call."""
    try:
        builder.add_rule(action, name, *conditions)
    except (OSError, ValueError, RuntimeError) as error:
        # These errors mean that the architecture has no such call; any other must not weaken the filter silently.
        if getattr(error, "errno", None) not in (None, errno.EINVAL, errno.EDOM):
            raise


def _refuse_setuid_files(builder: Any, seccomp: Any) -> None:
    """Refuse to create setuid and setgid files: in a workspace they would give others the rights of its owner."""
    refuse_action = seccomp.ERRNO(errno.EPERM)
    for bit in (stat.S_ISUID, stat.S_ISGID):
        for name, argument in _MODE_ARGUMENTS.items():
            _add_rule(builder, refuse_action, name, seccomp.Arg(argument, seccomp.MASKED_EQ, bit, bit))
        for name, flags_argument in (("open", 1), ("openat", 2)):
            creates = seccomp.Arg(flags_argument, seccomp.MASKED_EQ, os.O_CREAT, os.O_CREAT)
            has_bit = seccomp.Arg(flags_argument + 1, seccomp.MASKED_EQ, bit, bit)
            _add_rule(builder, refuse_action, name, creates, has_bit)
    # The mode of openat2 is in memory, which a filter cannot read; callers fall back to openat.
    _refuse(builder, seccomp, ("openat2",), errno.ENOSYS)


def _refuse_uncounted_files(builder: Any, seccomp: Any) -> None:
    """Refuse files that the measurement of disk use cannot find: unnamed ones, and those open in only one thread."""
    unnamed = os.O_TMPFILE & ~os.O_DIRECTORY
    # With the error of a file system that does not support unnamed files; libraries fall back to named ones.
    for name, flags_argument in (("open", 1), ("openat", 2)):
        condition = seccomp.Arg(flags_argument, seccomp.MASKED_EQ, unnamed, unnamed)
        _add_rule(builder, seccomp.ERRNO(errno.EOPNOTSUPP), name, condition)
    refuse_action = seccomp.ERRNO(errno.EPERM)
    # A separate descriptor table of a thread: only the table of its process can be listed cheaply.
    separates_table = seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD | _CLONE_FILES, _CLONE_THREAD)
    _add_rule(builder, refuse_action, "clone", separates_table)
    unshares_table = seccomp.Arg(2, seccomp.MASKED_EQ, _CLOSE_RANGE_UNSHARE, _CLOSE_RANGE_UNSHARE)
    _add_rule(builder, refuse_action, "close_range", unshares_table)


def _refuse_sockets(builder: Any, seccomp: Any, *, network: bool) -> None:
    """Refuse every socket except connected pairs of streams and, with `network`, TCP over IPv4.

    A datagram socket of a pair is refused because it can send data and descriptors to any socket in a mounted folder.
    """
    refuse_action = seccomp.ERRNO(errno.EACCES)
    builder.add_rule(refuse_action, "socketpair", seccomp.Arg(0, seccomp.NE, socket.AF_UNIX))
    for kind in range(16):
        if kind not in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            builder.add_rule(refuse_action, "socketpair", seccomp.Arg(1, seccomp.MASKED_EQ, 0xF, kind))
    # Setting SO_SNDBUF succeeds without effect: without a control group, every buffer counts with the default size.
    sets_buffer_size = seccomp.Arg(1, seccomp.EQ, socket.SOL_SOCKET), seccomp.Arg(2, seccomp.EQ, socket.SO_SNDBUF)
    builder.add_rule(seccomp.ERRNO(0), "setsockopt", *sets_buffer_size)
    if not network:
        _refuse(builder, seccomp, ("socket", "connect", "bind"), errno.EACCES)
        return
    builder.add_rule(refuse_action, "socket", seccomp.Arg(0, seccomp.NE, socket.AF_INET))
    for kind in range(16):
        if kind != socket.SOCK_STREAM:
            builder.add_rule(refuse_action, "socket", seccomp.Arg(1, seccomp.MASKED_EQ, 0xF, kind))


def _export(builder: Any, seccomp: Any) -> bytes:
    """Return the instructions of a filter; it refuses calls of another architecture."""
    builder.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.ERRNO(errno.ENOSYS))
    builder.set_attr(seccomp.Attr.CTL_OPTIMIZE, 2)  # a binary tree, because the kernel runs the filter for every call
    with tempfile.TemporaryFile() as target:
        builder.export_bpf(target)
        os.lseek(target.fileno(), 0, os.SEEK_SET)
        return target.read()
