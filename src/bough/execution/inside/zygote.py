"""The first process of a warm sandbox: it waits with Python already started, and forks for every run.

It is started as `python3 -I -S zygote.py CONTROL_FD`. CONTROL_FD is a socket. Each message `g` on it carries five
descriptors: configuration, stdin, stdout, stderr, and a status socket as in `init.py`.

The zygote itself never runs a program. The forked child creates new mounts (`/work`, `/tmp`, `/dev/shm`), gives up all
privileges, and only then becomes the program. When the program has ended, or the host has closed the status socket,
every other process of the namespace is killed before the end is reported, so that no process remains for the next run.
When the host closes CONTROL_FD, the zygote exits, which ends the sandbox.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# ruff: noqa: S108, SIM105, UP031 - as little as possible is imported, for old Pythons too
import array
import gc
import os
import select
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _signal as signal

import init
import program
from mounts import (
    LIBC,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    check,
    make_read_only,
    mount,
)

CLONE_NEWNS = 0x00020000
EMPTY = "/run/bough/empty"


def create_mounts(conf):
    """Create the mounts of a run in a new mount namespace: its folders, and empty folders for temporary files."""
    check(LIBC.unshare(CLONE_NEWNS), "unshare")
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    for source, target, read_only in conf["binds"]:
        mount(source, target, None, MS_BIND | MS_REC)
        if read_only:
            mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    for path, identity in conf["guarded"]:
        make_read_only("/work", path, identity)
    init.check_identities(conf["shown"])  # while this process may still read every folder
    for target in ("/tmp", "/dev/shm"):
        options = "size=%d,nr_inodes=%d,mode=1777" % (conf["tmp_bytes"], conf["tmp_names"])
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for folder in conf["hidden"]:
        mount(EMPTY, folder, None, MS_BIND)  # faster than unmounting, for which the kernel waits for all processors


def give_up_rights(conf):
    """Change to the run's user, and give up all capabilities."""
    init.drop_bounding_set()
    if conf["uid"] is not None:
        init.drop_privileges(conf["uid"], conf["gid"])
    init.call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    init.drop_capabilities()


def become_program(fds):
    """Turn this forked process into the program of a run; for a Python file, return the code to execute."""
    conf_fd, stdin, stdout, stderr, status_fd = fds
    for number, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, number)
    status_fd = os.dup2(status_fd, 200, inheritable=False)
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        conf = init.read_configuration(str(conf_fd))
        create_mounts(conf)
        give_up_rights(conf)
        init.prepare_child(conf, status_fd)
    except OSError as error:
        os.write(status_fd, b"e %d\n" % (error.errno or 5))
        os._exit(127)
    if conf["python"] is None:
        program.execute(conf, status_fd)
    os.close(status_fd)
    return program.become_main(conf)


def receive(control):
    """Return the descriptors of the next run; None if the host has exited."""
    data, ancillary, _, _ = control.recvmsg(16, socket.CMSG_SPACE(5 * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content)
    return list(fds) if data and len(fds) == 5 else None


def serve(control):
    """Fork a process for every message, and wait for it. Returns only in a forked process, as `become_program` does."""
    wakeup_fd = init.wake_on_child()
    gc.freeze()  # as in `init.run`
    while True:
        fds = receive(control)
        if fds is None:
            os._exit(0)
        status_fd = fds[4]
        os.write(status_fd, b"r\n")
        pid = os.fork()
        if not pid:
            control.close()
            return become_program(fds)
        for fd in fds[:4]:
            os.close(fd)
        namespace_fd = hold_mounts(pid)
        program_end = wait_for(pid, status_fd, wakeup_fd, control)
        init.kill_everything()
        try:
            init.report(status_fd, program_end)
        except OSError:
            pass
        os.close(status_fd)
        os.close(namespace_fd)


def hold_mounts(pid):
    """Return a descriptor that keeps the mounts of a run, so that its report need not wait until they are unmounted."""
    try:
        return os.open("/proc/%d/ns/mnt" % pid, os.O_RDONLY)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY)


def wait_for(pid, status_fd, wakeup_fd, control):
    """Wait for a run as `init.wait_for` does; exit if the host has exited."""
    poller = select.poll()
    poller.register(control, select.POLLHUP)
    program_end = init.wait_for(pid, status_fd, wakeup_fd)
    if any(event & select.POLLHUP for _, event in poller.poll(0)):
        os._exit(0)
    return program_end


def main():
    """Prepare the interpreter, report that it is ready, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    init.call("prctl", init.PR_SET_DUMPABLE, 0, 0, 0, 0)
    program.add_site(None)
    compile("", "", "exec")  # the first call allocates objects that all children then share
    control = socket.socket(fileno=int(sys.argv[1]))
    control.send(b"r")
    return serve(control)


if __name__ == "__main__":
    program.execute_main(*main())
