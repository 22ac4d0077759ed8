"""The system calls that programs in a sandbox may make, by purpose; the kernel has a hundred more.

A call that is not listed, also one of a future kernel, returns "function not implemented", which
makes libraries try an older call. Listed calls can still be refused by their arguments; see `seccomp`.
"""

from __future__ import annotations

from typing import Final

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
