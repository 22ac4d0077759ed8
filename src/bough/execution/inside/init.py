"""The first process of a run, inside the sandbox: it starts the program, waits for it and reports its end.

It is started from compiled code with the arguments `start CONF_FD STATUS_FD`. CONF_FD contains a marshalled dict from
the host. STATUS_FD is a socket on which it reports `r` when it is ready, `e ERRNO` if the program could not be started,
and `s WAIT_STATUS CPU_MICROSECONDS MAX_RSS_KIB` when the program has ended. The host does not trust these reports about
time or limits.

When the host sends `k`, this process stops the program, kills every other process and answers `k`. When the host sends
`c`, the program continues. This process exits when the program has exited, or when the host has closed its end of the
socket or has exited. Its exit kills every process in its process namespace, daemons included.

Sandboxes that inherit no descriptors pass a file name as CONF_FD and 0 as STATUS_FD. The dict then names
the file with the program's input as `stdin`.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: S302 - as little as possible is imported, for old Pythons too

import _signal as signal  # `signal` imports enum, which takes longer than all other imports together
import gc
import marshal
import posix as os  # importing os takes another millisecond
import select
import sys

from program import become_main, call, execute, execute_main

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
SECCOMP_MODE_FILTER = 2
ST_RDONLY = 1
ESTALE = 116
CAPABILITY_VERSION_3 = 0x20080522

PROGRAM_PID = (0x7EB0CA75).to_bytes(4, sys.byteorder)
"""Placeholder in a filter for the program's pid: the program may change only its own limits and scheduling."""

RLIMITS = {"FSIZE": 1, "DATA": 2, "CORE": 4, "NPROC": 6, "NOFILE": 7, "AS": 9}
"""Numbers of the resource limits; importing `resource` for them takes half a millisecond."""


def read_configuration(location):
    """Return the dict that the host wrote to a descriptor or file; `location` is its number or path. Closes it."""
    with open(int(location) if location.isdigit() else location, "rb") as source:
        return marshal.loads(source.read())


def free_stdin(path):
    """Move the status socket from descriptor 0 to a new descriptor, and open the program's input as descriptor 0.

    Returns the new descriptor of the status socket.
    """
    status_fd = os.dup(0)  # before dup2, which closes the only descriptor of the socket
    source = os.open(path, os.O_RDONLY)
    os.dup2(source, 0)
    os.close(source)
    return status_fd


def drop_privileges(uid, gid):
    """Change to `uid` and `gid` irrevocably. Needed if the caller is root and there is no user namespace."""
    # Groups first and the user last: without the uid of root, changing groups is not permitted.
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def drop_capabilities():
    """Give up every capability, inheritable ones included."""
    call("capset", CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4), bytes(24))


def drop_bounding_set():
    """Clear the capability bounding set, so that no executed file can restore a capability."""
    # Must be called before `drop_privileges`: it needs CAP_SETPCAP, which a change of uid removes.
    with open("/proc/sys/kernel/cap_last_cap") as source:
        last_capability = int(source.read())
    for capability in range(last_capability + 1):
        call("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)


def check_identities(entries):
    """Check that each path leads to the file that the host checked, and is read-only if required.

    Args:
        entries: (path, device, inode, whether it must be read-only) of each mounted file.

    Raises:
        OSError: `ESTALE`: a path leads to another file, or is writable.
    """
    for path, device, inode, read_only in entries:
        try:
            state = os.lstat(path)
            is_same = (state.st_dev, state.st_ino) == (device, inode)
            is_protected = not read_only or os.statvfs(path).f_flag & ST_RDONLY
        except OSError:
            is_same = is_protected = False
        if not (is_same and is_protected):
            raise OSError(ESTALE, path)


def set_limits(limits):
    """Lower the resource limits, soft and hard, of this process and its children."""
    for name, value in limits.items():
        try:
            call("setrlimit", RLIMITS[name], value.to_bytes(8, sys.byteorder) * 2)
        except OSError:
            if not is_limited(RLIMITS[name], value):
                raise


def is_limited(number, value):
    """Whether the hard limit of a resource is `value` or lower."""
    import resource

    hard = resource.getrlimit(number)[1]
    return hard != resource.RLIM_INFINITY and hard <= value


def set_filter(instructions):
    """Install a system-call filter, in addition to existing ones. It cannot be removed."""
    import ctypes

    class FilterProgram(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    pointer = ctypes.byref(FilterProgram(len(instructions) // 8, instructions))
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.cast(pointer, ctypes.c_void_p).value, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def prepare_child(conf, status_fd):
    """Prepare the forked child for the program: close descriptors, set working folder, signals, limits and filter."""
    os.set_inheritable(status_fd, False)
    # All except the status socket: the program must not inherit the wake-up pipe or any descriptor of the host.
    os.closerange(3, status_fd)
    os.closerange(status_fd + 1, 4096)
    # Undone for the program, which inherits the flag from the first process and must read its own `/proc` files.
    if conf["unreachable"]:
        call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)
    os.mkdir(conf["home"], 0o700)
    os.chdir(conf["cwd"])
    for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_limits(conf["limits"])
    if conf.get("waits_for_host"):
        make_first_oom_victim()
    # After the fork: the filter contains the program's pid, which is unknown before.
    if "filter" in conf:
        set_filter(conf["filter"].replace(PROGRAM_PID, os.getpid().to_bytes(4, sys.byteorder)))


def make_first_oom_victim():
    """Make the out-of-memory killer choose the program before the first process, which must report the kill."""
    with open("/proc/self/oom_score_adj", "w") as target:
        target.write("1000")


def wake_on_child():
    """Return a descriptor that becomes readable whenever a child has exited."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only signals with a handler are written to the pipe
    return reading


def wait_for(child, status_fd, wakeup_fd):
    """Reap processes and obey the host until `child` exits; return (wait status, resource usage) of `child`.

    Returns None if the host has closed the socket.
    """
    poller = select.poll()
    poller.register(status_fd, select.POLLIN | select.POLLHUP)
    poller.register(wakeup_fd, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poller.poll()]
        if wakeup_fd in ready:
            os.read(wakeup_fd, 4096)
        # One byte may mean several exits, so every exited child is reaped before the next poll.
        pid = -1
        while pid:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == child:
                return status, usage
        if status_fd in ready:
            command = os.read(status_fd, 1)
            if command == b"k":
                freeze(child)
                kill_others(child)
                freeze(child)  # again: one of the killed processes may have sent SIGCONT to it
                os.write(status_fd, b"k\n")
            elif command == b"c":
                os.kill(child, signal.SIGCONT)
            else:
                return None


def is_running(pid):
    """Whether a process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            return source.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def freeze(child):
    """Stop all threads of the program and wait until it has stopped or exited."""
    os.kill(child, signal.SIGSTOP)
    # WNOWAIT leaves the exit status for `wait_for`, which reports it to the host.
    os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def kill_others(child):
    """Kill every process of the namespace except this one and `child`."""
    # Repeated until no other process is running: a process may fork after the listing and before it is killed.
    while True:
        spared = (os.getpid(), child)
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        other_pids = [pid for pid in pids if pid not in spared and is_running(pid)]
        if not other_pids:
            return
        for pid in other_pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.sched_yield()


def kill_everything():
    """Kill and reap every other process of the namespace. Must be called only in the first process of a namespace."""
    # -1 is every process that this process may signal: in a namespace those of the run, elsewhere all of the user.
    try:
        while True:
            os.kill(-1, signal.SIGKILL)
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def report(status_fd, program_end):
    """Send the program's end, its wait status and usage, to the host; send nothing if it is None."""
    if program_end is not None:
        status, usage = program_end
        cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
        os.write(status_fd, b"s %d %d %d\n" % (status, cpu, usage.ru_maxrss))


def run(conf, status_fd):
    """Fork the program. The parent reports its end and exits; in the child, return the code to execute.

    The child returns only for a Python file; another program replaces it.
    """
    wakeup_fd = wake_on_child()  # before the fork, so that a child that exits at once is not missed
    gc.freeze()  # garbage collection in the child would write to the shared pages, and the kernel would copy them
    child = os.fork()
    if child:
        program_end = wait_for(child, status_fd, wakeup_fd)
        if program_end is not None and os.getpid() == 1:
            kill_everything()  # before the report: the host collects files once it has the report
        report(status_fd, program_end)
        # The control group exists as long as this process. The host reads its counters, and then closes the socket.
        while conf.get("waits_for_host") and os.read(status_fd, 1):
            pass
        os._exit(0)
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        prepare_child(conf, status_fd)
    except OSError as error:
        os.write(status_fd, b"e %d\n" % (error.errno or 0))
        os._exit(127)
    if conf["python"] is None:
        execute(conf, status_fd)
    os.close(status_fd)
    return become_main(conf)


def hand_over_listener(port, status_fd):
    """Listen on the loopback of this namespace and send the socket to the host, whose proxy accepts connections."""
    import array
    import socket

    with socket.socket() as listener, socket.socket(fileno=os.dup(status_fd)) as status:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        rights = array.array("i", [listener.fileno()])
        status.sendmsg([b"l\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def check_mounts(conf, status_fd):
    """Check the mounted files before the program starts; if one has been replaced, report the error and exit."""
    try:
        check_identities(conf.get("shown", ()))
    except OSError as error:
        os.write(status_fd, b"e %d\n" % error.errno)
        os._exit(127)


def start():
    """Read the configuration, give up all remaining privileges, and run the program; returns as `run` does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    status_fd = int(sys.argv[3])
    conf = read_configuration(sys.argv[2])
    if status_fd == 0:
        status_fd = free_stdin(conf["stdin"])
    check_mounts(conf, status_fd)  # before dropping capabilities: one is needed to read another user's folder
    if conf["uid"] is not None:
        drop_bounding_set()
        drop_privileges(conf["uid"], conf["gid"])
    drop_capabilities()
    # After the change of uid, which resets the flag. The program has the same uid, and could trace this process.
    if conf["unreachable"]:
        call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.write(status_fd, b"r\n")
    if conf.get("proxy_port"):
        hand_over_listener(conf["proxy_port"], status_fd)
    return run(conf, status_fd)


if __name__ == "__main__":
    execute_main(*start())
