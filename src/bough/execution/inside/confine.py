"""The supervisor of a run under Landlock: it confines the program with `sandlock`, waits, and cleans up.

It runs outside of the sandbox, and is started as `python3 -I -S confine.py PACKAGE_FOLDER COMMAND`. The commands are:
- `start CONF_FD STATUS_FD` runs one program;
- `probe PYTHON FOLDER CODE` tests whether confinement works on this machine;
- `serve CONTROL_FD` forks a supervisor for each run, because importing sandlock takes most of a supervisor's time.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# ruff: noqa: SIM105 - as in the other first processes

import array
import gc
import marshal
import os
import resource  # imported while its folder can still be entered
import select
import shutil
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import init
import keeper
from mounts import (
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    PATH_FLAGS,
    attach_tree,
    clone_tree,
    make_read_only,
    mount,
    set_read_only,
)

IPC_RMID = 0
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MOUNT_ROOT = "/mnt"
"""The folder below which the supervisor mounts a run's files and folders, by number."""


def import_sandlock(folder):
    """Import sandlock from the folder in which it is installed, and return it."""
    sys.path.append(folder)
    import sandlock

    return sandlock


def make_sandbox(sandlock, conf):
    """Return a sandlock sandbox with the paths and limits of `conf`."""
    boundary = conf["boundary"]
    return sandlock.Sandbox(
        chroot="/",
        fs_mount=boundary["shown"],
        fs_mount_ro=boundary["read_only"],
        fs_readable=[*boundary["readable"], *boundary["read_only"]],
        fs_writable=boundary["writable"],
        cwd="/work",
        clean_env=True,
        max_memory=conf["memory_bytes"],
        max_processes=conf["processes"],
        max_open_files=conf["open_files"],
        no_coredump=True,
    )


def mount_for_user(boundary):
    """Mount every path of a run below `MOUNT_ROOT`, which every user can enter; return the boundary with these paths.

    Without these mounts, the run's user may be unable to enter the parent folders of root's workspace, and a file
    that sandlock makes read-only in a writable folder can be written through a link. The mounts are in a namespace of
    this process and its children, and are removed with it.

    Raises:
        OSError: A path leads to another file than the one that the host checked.
    """
    if os.geteuid() == 0:
        init.call("unshare", CLONE_NEWNS)
    else:
        enter_user_namespace()
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    # Opened in this namespace, because descriptors of another one cannot be mounted; and before a mount hides a path.
    trees = {}
    for kind in ("shown", "read_only"):
        for target, source in boundary[kind].items():
            trees[kind, target] = clone_checked(source, boundary["identities"].get(target))
    proc = clone_checked("/proc", None)
    # The owner of a file may change its mode, times and attributes, which no Landlock rule prevents, and a script may
    # own files that it may only read. This follows the cloning of the writable trees, which must not be read-only.
    set_read_only("/")
    attach_tree(proc, "/proc")
    mount("tmpfs", MOUNT_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=755")
    mounted = {**boundary, "shown": {}, "read_only": {}}
    for number, ((kind, target), tree) in enumerate(trees.items()):
        mount_point = f"{MOUNT_ROOT}/{number}"
        if os.path.isdir(f"/proc/self/fd/{tree}"):
            os.mkdir(mount_point)
        else:
            os.close(os.open(mount_point, os.O_CREAT | os.O_EXCL))
        attach_tree(tree, mount_point)
        if kind == "read_only":
            set_read_only(mount_point)
        mounted[kind][target] = mount_point
    for path, identity in boundary["guarded"]:
        make_read_only(mounted["shown"]["/work"], path, identity)
    cover_host_folders(mounted, boundary["system"])
    mounted["writable"] = [
        *mounted["shown"],
        *(path for path in boundary["writable"] if path not in boundary["shown"]),
    ]
    return mounted


def cover_host_folders(boundary, needed):
    """Mount the sandbox's folders over the host's folders with the same paths, most importantly over `/tmp`.

    If a file does not exist in a mounted folder, many calls of sandlock (`mkdir`, `rename`, `truncate`) use the host's
    path with the same name. Landlock allows this, because the sandbox may use that folder's path.

    Args:
        boundary: The boundary with the paths of the mounts.
        needed: Host folders that must remain visible; nothing is mounted over their parent folders.
    """
    sources = boundary["shown"] | boundary["read_only"]
    for target in sources:
        is_nested = any(target.startswith(other + "/") for other in sources)
        is_needed = any(path.startswith(target + "/") for path in needed)
        if os.path.exists(target) and not is_nested and not is_needed:
            mount(sources[target], target, None, MS_BIND | MS_REC)


def clone_checked(path, identity):
    """Return a descriptor of a detached copy of the mounts at `path`.

    Args:
        identity: The device and inode that the host found at the path; None if any is allowed.

    Raises:
        OSError: `ESTALE`: the path leads to another file.
    """
    try:
        fd = os.open(path, PATH_FLAGS)
    except OSError as error:
        raise OSError(init.ESTALE, path) from error
    try:
        state = os.fstat(fd)
        if identity is not None and (state.st_dev, state.st_ino) != tuple(identity):
            raise OSError(init.ESTALE, path)
        return clone_tree(fd)
    finally:
        os.close(fd)


def enter_user_namespace():
    """Enter a new user namespace with the same uid and gid, in which this process may create mounts."""
    uid, gid = os.geteuid(), os.getegid()
    # A forked supervisor is not dumpable, so its files in `/proc` belong to root and cannot be written.
    init.call("prctl", init.PR_SET_DUMPABLE, 1, 0, 0, 0)
    init.call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as target:
            target.write(text)


def probe_mounts():
    """Return whether this process can create mounts, by trying it in a child."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    try:
        if os.geteuid() == 0:
            init.call("unshare", CLONE_NEWNS)
        else:
            enter_user_namespace()
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        proc = clone_checked("/proc", None)
        set_read_only("/")
        attach_tree(proc, "/proc")
        mount("tmpfs", MOUNT_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=755")
    except OSError:
        os._exit(1)
    os._exit(0)


def probe(sandlock, python, folder, code):
    """Run `code` in a confined interpreter, with the first process's files as arguments, and write its output.

    Before the output it writes `mounts`, or `names` if this process cannot create mounts. If the code fails, it writes
    the error to stderr and exits with 1.
    """
    inside_folder = os.path.dirname(os.path.abspath(__file__))
    readable = ["/usr", "/bin", "/lib", "/lib64", "/proc", inside_folder, *([folder] if folder else [])]
    sandbox = sandlock.Sandbox(fs_readable=[path for path in readable if os.path.exists(path)], chroot="/")
    result = sandbox.run(
        [python, "-I", "-S", "-c", code, inside_folder + "/program.py", inside_folder + "/init.py"], timeout=10
    )
    if not result.success:
        sys.stderr.buffer.write(result.stderr)
        print(result.error or "a confined python exited with an error", file=sys.stderr)
        sys.exit(1)
    sys.stdout.buffer.write(b"mounts " if probe_mounts() else b"names ")
    sys.stdout.buffer.write(result.stdout)
    sys.stdout.buffer.flush()


def give_up_rights(conf):
    """Change to the run's user if the caller is root, and give up all capabilities."""
    if os.geteuid() == 0:
        init.drop_bounding_set()
    if conf["uid"] is not None:
        init.drop_privileges(conf["uid"], conf["gid"])
    init.drop_capabilities()
    init.call("prctl", init.PR_SET_DUMPABLE, 1, 0, 0, 0)  # sandlock cannot start otherwise


def confine_supervisor(sandlock, boundary):
    """Let this process write only to the run's folders. Needed if the host's folders cannot be covered by mounts.

    sandlock handles calls of the program in this process. Attributes that Landlock does not cover, such as modes, can
    still be changed in the host's folders with the same paths.
    """
    writable = [*(boundary["shown"][target] for target in boundary["shown"]), "/dev", "/proc"]
    sandlock.confine(sandlock.Sandbox(fs_readable=["/"], fs_writable=writable))


def supervise(sandlock, conf, status_fd):
    """Run `init.py` in a sandbox, where it runs the program and reports its end. Then kill all remaining processes."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    keeper.adopt_orphans()
    write_run_files(conf)
    if conf["may_mount"]:
        try:
            conf["boundary"] = mount_for_user(conf["boundary"])
        except OSError as error:
            os.write(status_fd, b"e %d\n" % (error.errno or 0))
            os._exit(127)
    give_up_rights(conf)
    if not conf["may_mount"]:
        confine_supervisor(sandlock, conf["boundary"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (conf["file_size_bytes"],) * 2)
    os.dup2(status_fd, 0)
    process = make_sandbox(sandlock, conf).popen(conf["init"])
    # sandlock opens files in `/proc` for the program, which must not read those of this process.
    init.call("prctl", init.PR_SET_DUMPABLE, 0, 0, 0, 0)
    if keeper.wait_for_end(process.pid, status_fd):
        process.wait()
    keeper.kill_descendants()
    if conf["uid"] is not None:
        remove_shared_memory()


def remove_shared_memory():
    """Remove the shared memory and semaphores of the run's user: the kernel allows only a few thousand in total."""
    for kind, arguments in (("shm", (IPC_RMID, 0)), ("sem", (0, IPC_RMID))):
        with open("/proc/sysvipc/" + kind) as source:
            columns, *rows = [line.split() for line in source]
        for row in rows:
            if int(row[columns.index("uid")]) == os.geteuid():
                init.call(kind + "ctl", int(row[1]), *arguments)


def write_run_files(conf):
    """Write configuration, input and the code of `init.py` to files, because the sandbox inherits no descriptors."""
    with open_for_run(conf, "stdin") as target:
        shutil.copyfileobj(sys.stdin.buffer, target)
    with open_for_run(conf, "configuration") as target:
        marshal.dump(conf["program"], target, 4)
    with open_for_run(conf, "code") as target:
        target.write(conf["code"])


def open_for_run(conf, name):
    """Create a file in the exchange folder that only the run's user can read, and return it opened for writing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(conf["exchange"] + "/" + name, flags, 0o600)
    if conf["uid"] is not None:
        os.fchown(fd, conf["uid"], conf["gid"])
    return open(fd, "wb")


def serve(sandlock, control):
    """Fork a supervisor for every message on `control`, until the host has exited. Returns only in a supervisor.

    A message `g` carries the descriptors of configuration, stdin, stdout, stderr and status socket, and of a socket for
    this run. On that socket, the supervisor sends its pid and a pidfd, and starts when the host has answered. When the
    supervisor has exited, this process sends `x WAIT_STATUS USER_MICROSECONDS SYSTEM_MICROSECONDS PEAK_KIB` on it.
    """
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    init.call("prctl", init.PR_SET_DUMPABLE, 0, 0, 0, 0)  # programs of the same user run in the sandboxes
    wakeup_fd = init.wake_on_child()
    control.send(b"r")
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wakeup_fd, select.POLLIN)
    gc.freeze()  # as in `init.run`
    runs = {}
    while True:
        ready = [fd for fd, _ in poller.poll()]
        if wakeup_fd in ready:
            os.read(wakeup_fd, 4096)
            report_exited(runs)
        if control.fileno() not in ready:
            continue
        fds = receive(control)
        if fds is None:
            os._exit(0)  # each running supervisor notices the host's exit itself
        connection = socket.socket(fileno=fds.pop())
        pid = os.fork()
        if not pid:
            for host_socket in (control, *runs.values()):
                host_socket.close()  # otherwise the host could not detect that the forking process has exited
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return become_supervisor(sandlock, fds, connection)
        runs[pid] = connection
        for fd in fds:
            os.close(fd)


def receive(control):
    """Return the six descriptors of the next run; None if the host has exited."""
    data, ancillary, _, _ = control.recvmsg(16, socket.CMSG_SPACE(6 * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content)
    return list(fds) if data and len(fds) == 6 else None


def report_exited(runs):
    """Reap every supervisor that has exited, and send its resource usage to the host."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        with runs.pop(pid) as connection:
            times = (int(usage.ru_utime * 1e6), int(usage.ru_stime * 1e6))
            try:
                connection.send(b"x %d %d %d %d" % (status, *times, usage.ru_maxrss))
            except OSError:  # the host has closed the socket
                pass


def become_supervisor(sandlock, fds, connection):
    """Send this process's pid to the host, wait for its answer, and become the supervisor of one run."""
    os.setsid()
    pidfd = os.pidfd_open(os.getpid())
    with connection:
        socket.send_fds(connection, [b"p %d" % os.getpid()], [pidfd])
        if not connection.recv(1):  # the host has given up, and may have started the run without this process
            os._exit(0)
    os.close(pidfd)
    conf_fd, stdin, stdout, stderr, status_fd = fds
    for number, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, number)
        os.close(fd)
    conf = init.read_configuration(str(conf_fd))
    supervise(sandlock, conf, status_fd)


def main():
    """Run the command that the arguments name; the top of this file lists the commands."""
    package_folder, command = sys.argv[1:3]
    sandlock = import_sandlock(package_folder)
    if command == "probe":
        probe(sandlock, *sys.argv[3:6])
    elif command == "serve":
        serve(sandlock, socket.socket(fileno=int(sys.argv[3])))
    else:
        supervise(sandlock, init.read_configuration(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    main()
    os._exit(0)
