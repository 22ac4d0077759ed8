"""Who holds a lease or a temporary folder: one process of one machine, told from all others."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from uuid import uuid4

_FORM = "2"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def owner() -> str:
    """Return a name that no other holder has: `2/<boot id>/<pid namespace>/<pid>/<nonce>/<host>`.

    The host is a digest of its name, by which machines can be told apart: logs hold these names, and whoever may read a
    log need not know what the operator's machines are called. Containers often have the same one.
    """
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    return f"{_FORM}/{boot_id()}/{_pid_namespace()}/{os.getpid()}/{uuid4().hex[:8]}/{host}"


def is_gone(owner: str) -> bool:
    """Whether the owner's process certainly no longer exists.

    Only a process of this start of this machine and of this pid namespace is looked for, and only "no such process"
    counts. A process one may not signal, a zombie, a reused pid, an owner in another form: alive. Being wrong that way
    costs at most the rest of its lease.
    """
    form, _, rest = owner.partition("/")
    boot, _, rest = rest.partition("/")
    namespace, _, rest = rest.partition("/")
    pid = rest.partition("/")[0]
    is_here = form == _FORM and boot != "" and boot == boot_id() and namespace != "" and namespace == _pid_namespace()
    if not is_here or not pid.isascii() or not pid.isdigit() or int(pid) <= 0:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def boot_id() -> str:
    """Return what names this start of the machine, an empty text where there is no such thing."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(_PID_NAMESPACE.stat().st_ino)
    except OSError:
        return ""
