"""The first process of a run without a process namespace: it starts the program, and kills its processes at the end.

It is started as `python3 -I -S keeper.py start CONF_FD STATUS_FD`. It adopts orphaned descendants
(`PR_SET_CHILD_SUBREAPER`), so a daemon that forks twice and starts a new session is still its descendant. When the
program has ended, or the host has closed the status socket or has exited, it kills every descendant. It reports as
`init.py` does.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# ruff: noqa: UP031, SIM105 - as little as possible is imported, for old Pythons too

import os
import select
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import init
import program

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Make this process the new parent of descendants whose parent exits."""
    init.call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def list_children(pid):
    """Return the pids of the direct children of `pid`, including those of all its threads."""
    children = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as source:
                children += [int(child) for child in source.read().split()]
    except OSError:
        pass
    return children


def list_descendants():
    """Return the pids of all descendants of this process; parents precede their children."""
    pids, pending = [], [os.getpid()]
    while pending:
        children = list_children(pending.pop())
        pids += children
        pending += children
    return pids


def kill_descendants():
    """Kill and reap every descendant, including those that are started at the same time."""
    while True:
        pids = list_descendants()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG if pids else 0)[0]:
                pass
        except ChildProcessError:
            if not pids:
                return


def wait_for_end(child, status_fd):
    """Wait until `child` has exited (returns True), or the host has closed the status socket (returns False)."""
    poller = select.poll()
    pidfd = os.pidfd_open(child)
    poller.register(pidfd, select.POLLIN)
    poller.register(status_fd, select.POLLIN | select.POLLHUP)
    ready = [fd for fd, _ in poller.poll()]
    os.close(pidfd)
    return pidfd in ready


def start_program(conf, status_fd):
    """Fork and execute the program; return its pid."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        init.prepare_child(conf, status_fd)
    except OSError as error:
        os.write(status_fd, b"e %d\n" % (error.errno or 0))
        os._exit(127)
    program.execute(conf, status_fd)


def main():
    """Run one program, kill all of its processes, and report how it ended (None if the host has hung up)."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    status_fd = int(sys.argv[3])
    conf = init.read_configuration(sys.argv[2])
    adopt_orphans()
    os.write(status_fd, b"r\n")  # ready
    child = start_program(conf, status_fd)
    program_end = os.wait4(child, 0)[1:] if wait_for_end(child, status_fd) else None
    kill_descendants()
    init.report(status_fd, program_end)


if __name__ == "__main__":
    main()
