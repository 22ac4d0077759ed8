"""The first process of a run, inside the sandbox: sets the bounds, starts the program, waits, reports.

It is started from compiled code with the arguments `start CONF_FD STATUS_FD`. CONF_FD holds a marshalled dict from the
host; STATUS_FD is a socket on which it answers `r` when it stands, `e ERRNO` when the program could not be started, and
`s WAIT_STATUS CPU_MICROSECONDS MAX_RSS_KIB` when the program ended. The host believes none of it about time or limits.
When the host sends `k`, it stops the program, kills everything else and answers `k`; after `c` the program continues.
It ends when the program has, or when the host closes its end of the socket (or dies); its end is the end of every
process in its process namespace, daemons included.

CONF_FD may be the name of a file, and STATUS_FD 0, for sandboxes that let nothing else through; the program's input
then is the file that the dict names.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: S302 - as little as possible is imported, for old Pythons too

import _signal as signal  # signal itself imports enum, which costs more than all the rest
import gc
import marshal
import posix as os  # os itself is a millisecond for those who need it
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
"""Stands for the program's own process in a filter, which may bound and order that one by its number."""

RLIMITS = {"FSIZE": 1, "DATA": 2, "CORE": 4, "NPROC": 6, "NOFILE": 7, "AS": 9}
"""Their numbers; the module that knows them takes half a millisecond to load."""


def read_configuration(where):
    """Return the dict that the host put into a descriptor, or a file, and close it."""
    with open(int(where) if where.isdigit() else where, "rb") as source:
        return marshal.loads(source.read())


def free_stdin(path):
    """Put the file that the program shall read to descriptor 0; return where the status socket went that was there."""
    status_fd = os.dup(0)
    source = os.open(path, os.O_RDONLY)
    os.dup2(source, 0)
    os.close(source)
    return status_fd


def drop_privileges(uid, gid):
    """Become `uid` for good; needed where the host is root and no user namespace maps it away."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def drop_capabilities():
    """Give up every capability, so that not even the inheritable ones are left."""
    call("capset", CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4), bytes(24))


def drop_bounding_set():
    """Make it impossible that an executed file brings a capability back."""
    with open("/proc/sys/kernel/cap_last_cap") as source:
        last = int(source.read())
    for capability in range(last + 1):
        call("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)


def check_shown(entries):
    """Raise an error unless everything is shown that the host looked at: names may have changed since.

    Args:
        entries: (path, device, number, whether it must be read-only) of each.
    """
    for path, device, number, read_only in entries:
        try:
            state = os.lstat(path)
            is_same = (state.st_dev, state.st_ino) == (device, number)
            is_kept = not read_only or os.statvfs(path).f_flag & ST_RDONLY
        except OSError:
            is_same = is_kept = False
        if not (is_same and is_kept):
            raise OSError(ESTALE, path)


def set_limits(limits):
    """Lower the resource limits, soft and hard, of this process and its children."""
    for name, value in limits.items():
        try:
            call("setrlimit", RLIMITS[name], value.to_bytes(8, sys.byteorder) * 2)
        except OSError:
            if not is_bounded(RLIMITS[name], value):
                raise


def is_bounded(number, value):
    """Whether a resource limit is as low as `value` already."""
    import resource

    hard = resource.getrlimit(number)[1]
    return hard != resource.RLIM_INFINITY and hard <= value


def set_filter(program):
    """Install a system-call filter on top of those there are, for good."""
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    pointer = ctypes.byref(Program(len(program) // 8, program))
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.cast(pointer, ctypes.c_void_p).value, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def prepare_child(conf, status_fd):
    """Make the forked child what the program expects to wake up in: bounds, folder, signals, no foreign descriptors."""
    os.set_inheritable(status_fd, False)
    os.closerange(3, status_fd)
    os.closerange(status_fd + 1, 4096)
    if conf["unreachable"]:
        call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)
    os.mkdir(conf["home"], 0o700)
    os.chdir(conf["cwd"])
    for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_limits(conf["limits"])
    if conf.get("stays"):
        offer_to_die_first()
    if "filter" in conf:
        set_filter(conf["filter"].replace(PROGRAM_PID, os.getpid().to_bytes(4, sys.byteorder)))


def offer_to_die_first():
    """Let the kernel, when it wants memory back, end the program and not the first process, which has to tell of it."""
    with open("/proc/self/oom_score_adj", "w") as target:
        target.write("1000")


def wake_on_child():
    """Return a descriptor that becomes readable whenever a child has ended."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reading


def wait_for(child, status_fd, wakeup_fd):
    """Reap everything that ends until `child` did: return its wait status and usage; None when the host hung up."""
    watched = select.poll()
    watched.register(status_fd, select.POLLIN | select.POLLHUP)
    watched.register(wakeup_fd, select.POLLIN)
    while True:
        ready = [fd for fd, _ in watched.poll()]
        if wakeup_fd in ready:
            os.read(wakeup_fd, 4096)
        pid = -1
        while pid:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == child:
                return status, usage
        if status_fd in ready:
            order = os.read(status_fd, 1)
            if order == b"k":
                freeze(child)
                sweep(child)
                freeze(child)  # one of the others may have let it continue
                os.write(status_fd, b"k\n")
            elif order == b"c":
                os.kill(child, signal.SIGCONT)
            else:
                return None


def is_running(pid):
    """Whether a process is there and not only waiting to be reaped by its parent."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            return source.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def freeze(child):
    """Stop the program, all its threads, and wait until it stands still; or has ended, which is noted elsewhere."""
    os.kill(child, signal.SIGSTOP)
    os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def sweep(child):
    """Kill every process of the namespace but this one and `child`, and those made meanwhile, until there is none."""
    while True:
        spared = (os.getpid(), child)
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        others = [pid for pid in pids if pid not in spared and is_running(pid)]
        if not others:
            return
        for pid in others:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.sched_yield()


def kill_everything():
    """Kill and reap every other process of the namespace; only for its first process."""
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


def report(status_fd, ended):
    """Tell the host how the program ended, if it did."""
    if ended is not None:
        status, usage = ended
        cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
        os.write(status_fd, b"s %d %d %d\n" % (status, cpu, usage.ru_maxrss))


def run(conf, status_fd):
    """Fork. In the parent: report the child's end and end. In the child: return what must be executed here."""
    wakeup_fd = wake_on_child()
    gc.freeze()  # whoever collects garbage after the fork need not touch, and so copy, what already exists
    child = os.fork()
    if child:
        ended = wait_for(child, status_fd, wakeup_fd)
        if ended is not None and os.getpid() == 1:
            kill_everything()
        report(status_fd, ended)
        while conf.get("stays") and os.read(status_fd, 1):
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
    """Listen on the loopback of this namespace, and let the host answer what connects."""
    import array
    import socket

    with socket.socket() as listener, socket.socket(fileno=os.dup(status_fd)) as status:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        rights = array.array("i", [listener.fileno()])
        status.sendmsg([b"l\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def begin(conf, status_fd):
    """Look at what is shown before anything of the program is started; end where it is something else."""
    try:
        check_shown(conf.get("shown", ()))
    except OSError as error:
        os.write(status_fd, b"e %d\n" % error.errno)
        os._exit(127)


def start():
    """Read the configuration, give up what is left of rights, and run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    status_fd = int(sys.argv[3])
    conf = read_configuration(sys.argv[2])
    if status_fd == 0:
        status_fd = free_stdin(conf["stdin"])
    begin(conf, status_fd)
    if conf["uid"] is not None:
        drop_bounding_set()
        drop_privileges(conf["uid"], conf["gid"])
    drop_capabilities()
    if conf["unreachable"]:
        call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.write(status_fd, b"r\n")
    if conf.get("proxy_port"):
        hand_over_listener(conf["proxy_port"], status_fd)
    return run(conf, status_fd)


if __name__ == "__main__":
    execute_main(*start())
