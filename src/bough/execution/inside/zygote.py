"""The first process of a warm sandbox: waits with Python already started, and forks for every run.

It is started as `python3 -I -S zygote.py CONTROL_FD`. CONTROL_FD is a socket on which each message `g` brings five
descriptors: configuration, input, output, errors, and a status socket as `init.py` has one. It never runs a program
itself: the child it forks gets new mounts (`/work`, `/tmp`, `/dev/shm`), gives up every right, and only then becomes
the program. When the program has ended, or the host hangs up, everything in the namespace is killed before the end
is reported, so one run leaves nothing to the next. When CONTROL_FD is closed, it ends, and with it the sandbox.
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
    """Set up the mounts of this process: the run's folders, and empty folders for temporary files."""
    check(LIBC.unshare(CLONE_NEWNS), "unshare")
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    for source, target, read_only in conf["binds"]:
        mount(source, target, None, MS_BIND | MS_REC)
        if read_only:
            mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    for path, identity in conf["guarded"]:
        make_read_only("/work", path, identity)
    init.check_shown(conf["shown"])  # while this process may still look into every folder
    for target in ("/tmp", "/dev/shm"):
        options = "size=%d,nr_inodes=%d,mode=1777" % (conf["tmp_bytes"], conf["tmp_names"])
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for folder in conf["hidden"]:
        mount(EMPTY, folder, None, MS_BIND)  # to unmount would make the kernel wait for all its processors


def give_up_rights(conf):
    """Become the run's user without any capability."""
    init.drop_bounding_set()
    if conf["uid"] is not None:
        init.drop_privileges(conf["uid"], conf["gid"])
    init.call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    init.drop_capabilities()


def become_program(fds):
    """Set up and become the program; return the code to execute here."""
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
    """Fork for every message; returns only in the child, with the code to execute."""
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
        ended = wait_for(pid, status_fd, wakeup_fd, control)
        init.kill_everything()
        try:
            init.report(status_fd, ended)
        except OSError:
            pass
        os.close(status_fd)
        os.close(namespace_fd)


def hold_mounts(pid):
    """Keep the mounts of a run until its end was reported, because unmounting takes milliseconds."""
    try:
        return os.open("/proc/%d/ns/mnt" % pid, os.O_RDONLY)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY)


def wait_for(pid, status_fd, wakeup_fd, control):
    """Wait as `init.py`; everything ends with the host."""
    watched = select.poll()
    watched.register(control, select.POLLHUP)
    ended = init.wait_for(pid, status_fd, wakeup_fd)
    if any(event & select.POLLHUP for _, event in watched.poll(0)):
        os._exit(0)
    return ended


def main():
    """Report that it is ready, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    init.call("prctl", init.PR_SET_DUMPABLE, 0, 0, 0, 0)
    program.add_site(None)
    compile("", "", "exec")  # the first call allocates objects that all children then share
    control = socket.socket(fileno=int(sys.argv[1]))
    control.send(b"r")
    return serve(control)


if __name__ == "__main__":
    program.execute_main(*main())
