"""The supervisor of a run behind Landlock: confines the program by `sandlock`, waits, leaves nothing behind.

It is started as `python3 -I -S confine.py PACKAGE_FOLDER start CONF_FD STATUS_FD`, or with `probe PYTHON FOLDER` to
find out whether confinement works here. It stays outside of the wall it builds.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false

import marshal
import os
import resource  # imported while its folder can still be entered
import shutil
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import init
import keeper

IPC_RMID = 0
CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
PLACES = "/mnt"


def import_sandlock(folder):
    """Import sandlock from the folder of packages that it is installed in."""
    sys.path.append(folder)
    import sandlock

    return sandlock


def sandbox(sandlock, conf):
    """Return the wall that `conf` describes."""
    wall = conf["wall"]
    return sandlock.Sandbox(
        chroot="/",
        fs_mount=wall["shown"],
        fs_mount_ro=wall["read_only"],
        fs_readable=[*wall["readable"], *wall["read_only"]],
        fs_writable=wall["writable"],
        cwd="/work",
        clean_env=True,
        max_memory=conf["memory_bytes"],
        max_processes=conf["processes"],
        max_open_files=conf["open_files"],
        no_coredump=True,
    )


def show_beside(wall):
    """Mount everything that is shown at a place that every user can pass to; return the wall with those places.

    The run's user may not be allowed to pass the folders above a workspace of root. The mounts are in a namespace of
    this process and its children, and end with them.
    """
    init.call("unshare", CLONE_NEWNS)
    init.call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    held = {}  # opened here, as a descriptor from another namespace cannot be mounted, and before the places hide any
    for kind in ("shown", "read_only"):
        for target, source in wall[kind].items():
            held[kind, target] = os.open(source, os.O_PATH | os.O_NOFOLLOW)
    init.call("mount", b"tmpfs", PLACES.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=64k,mode=755")
    placed = {**wall, "shown": {}, "read_only": {}}
    for number, ((kind, target), fd) in enumerate(held.items()):
        place = f"{PLACES}/{number}"
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL))
        init.call("mount", b"/proc/self/fd/%d" % fd, place.encode(), None, MS_BIND | MS_REC, None)
        os.close(fd)
        placed[kind][target] = place
    placed["writable"] = [*placed["shown"], *(path for path in wall["writable"] if path not in wall["shown"])]
    return placed


def probe(sandlock, python, folder):
    """Run an interpreter that does nothing; end with its exit code."""
    readable = ["/usr", "/bin", "/lib", "/lib64", "/proc", *([folder] if folder else [])]
    wall = sandlock.Sandbox(fs_readable=[path for path in readable if os.path.exists(path)], chroot="/")
    result = wall.run([python, "-I", "-S", "-c", "pass"], timeout=10)
    if not result.success:
        sys.stderr.buffer.write(result.stderr)
        print(result.error or "a confined python did not end with 0", file=sys.stderr)
        sys.exit(1)


def give_up_rights(conf):
    """Where the host is root: become the run's own user, without any capability."""
    if os.geteuid() == 0:
        init.drop_bounding_set()
    if conf["uid"] is not None:
        init.drop_privileges(conf["uid"], conf["gid"])
    init.drop_capabilities()
    init.call("prctl", init.PR_SET_DUMPABLE, 1, 0, 0, 0)  # to start, sandlock needs it


def start(sandlock, conf, status_fd):
    """Run `init.py` behind the wall, which runs the program and reports; leave nothing of them."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    keeper.adopt_orphans()
    hand_over(conf)
    if conf["may_mount"]:
        conf["wall"] = show_beside(conf["wall"])
    give_up_rights(conf)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (conf["file_size_bytes"],) * 2)
    os.dup2(status_fd, 0)
    process = sandbox(sandlock, conf).popen(conf["init"])
    # From here on: sandlock opens files of `/proc` for the program, and would open those of this process.
    init.call("prctl", init.PR_SET_DUMPABLE, 0, 0, 0, 0)
    if keeper.until_ended(process.pid, status_fd):
        process.wait()
    keeper.kill_all()
    if conf["uid"] is not None:
        remove_shared_memory()


def remove_shared_memory():
    """Remove what sandlock leaves behind for each user; a kernel has some thousands of them."""
    for kind, arguments in (("shm", (IPC_RMID, 0)), ("sem", (0, IPC_RMID))):
        with open("/proc/sysvipc/" + kind) as source:
            columns, *rows = [line.split() for line in source]
        for row in rows:
            if int(row[columns.index("uid")]) == os.geteuid():
                init.call(kind + "ctl", int(row[1]), *arguments)


def hand_over(conf):
    """Leave configuration and input where the program's side can read them; no descriptor but 0, 1 and 2 gets there."""
    with open_for_run(conf, "stdin") as target:
        shutil.copyfileobj(sys.stdin.buffer, target)
    with open_for_run(conf, "configuration") as target:
        marshal.dump(conf["program"], target, 4)


def open_for_run(conf, name):
    """Make a file of the letterbox that nobody but the run's user can read, before anything is in it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(conf["letterbox"] + "/" + name, flags, 0o600)
    if conf["uid"] is not None:
        os.fchown(fd, conf["uid"], conf["gid"])
    return open(fd, "wb")


def main():
    """Do what the arguments say."""
    package_folder, what = sys.argv[1:3]
    sandlock = import_sandlock(package_folder)
    if what == "probe":
        probe(sandlock, *sys.argv[3:5])
    else:
        start(sandlock, init.read_configuration(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    main()
    os._exit(0)
