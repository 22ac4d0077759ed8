"""Mounts through descriptors, so that renaming a path at the same time cannot mount another file."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# ruff: noqa: UP031 - for old Pythons too
import ctypes
import errno
import os

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
LIBC = ctypes.CDLL(None, use_errno=True)


def check(result, operation):
    """Raise the current error of the C library if the result of a call is not 0."""
    if result:
        raise OSError(ctypes.get_errno(), operation)


def mount(source, target, kind, flags, options=None):
    """Create or change one mount."""
    encoded_arguments = [None if argument is None else os.fsencode(argument) for argument in (source, target, kind)]
    data = None if options is None else options.encode()
    check(LIBC.mount(*encoded_arguments, ctypes.c_ulong(flags), data), "mount " + target)


def clone_tree(fd):
    """Return a descriptor of a detached copy of the mounts below `fd`."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE
    tree = LIBC.syscall(OPEN_TREE, ctypes.c_int(fd), b"", ctypes.c_uint(flags))
    check(tree < 0, "open_tree")
    return tree


def attach_tree(tree, target):
    """Mount a tree from `clone_tree` over `target`. Closes the tree's descriptor."""
    try:
        flags = MOVE_MOUNT_F_EMPTY_PATH
        result = LIBC.syscall(
            MOVE_MOUNT, ctypes.c_int(tree), b"", ctypes.c_int(AT_FDCWD), os.fsencode(target), ctypes.c_uint(flags)
        )
        check(result, "move_mount " + target)
    finally:
        os.close(tree)


def set_read_only(folder):
    """Make the mount at `folder` and all mounts below it read-only, only in the namespace of this process."""
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY, 0, 0, 0)  # to set, to clear, propagation, user namespace
    result = LIBC.syscall(
        MOUNT_SETATTR,
        ctypes.c_int(AT_FDCWD),
        os.fsencode(folder),
        ctypes.c_uint(AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    check(result, "mount_setattr " + folder)


def open_beneath(folder, path):
    """Return a descriptor of a relative path, opened one name at a time without following links."""
    # One open per name, because O_NOFOLLOW applies only to the last name of a path.
    fd = os.open(folder, PATH_FLAGS | os.O_DIRECTORY)
    for name in path.split("/"):
        try:
            inner = os.open(name, PATH_FLAGS, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def make_read_only(folder, path, identity):
    """Make `path` in `folder` read-only by a mount over it, if it is still the file that the host checked.

    Raises:
        OSError: `ESTALE`: the path leads to another file, or was replaced during the call.
    """
    try:
        bind_read_only(folder, path, identity)
    except OSError as error:
        raise OSError(errno.ESTALE, path) from error


def bind_read_only(folder, path, identity):
    """Bind `path` over itself and make the new mount read-only.

    The second `open_beneath` returns a descriptor of the new mount. If the path was replaced in between, it is not a
    mount point, and the kernel refuses the remount.
    """
    fd = open_beneath(folder, path)
    try:
        state = os.fstat(fd)
        if (state.st_dev, state.st_ino) != tuple(identity):
            raise OSError(errno.ESTALE, path)
        mount("/proc/self/fd/%d" % fd, "/proc/self/fd/%d" % fd, None, MS_BIND | MS_REC)
    finally:
        os.close(fd)
    fd = open_beneath(folder, path)
    try:
        noexec = os.fstatvfs(fd).f_flag & MS_NOEXEC  # a user namespace may not remove this flag
        flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | noexec
        mount(None, "/proc/self/fd/%d" % fd, None, flags)
    finally:
        os.close(fd)
