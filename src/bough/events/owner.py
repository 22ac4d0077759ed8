"""Names of owners of leases and temporary folders, and whether their process still exists."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from uuid import uuid4

_FORMAT = "2"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def owner() -> str:
    """Return a unique name of an owner: `2/<boot id>/<pid namespace>/<pid>/<nonce>/<host>`.

    The host is a digest of the host name. Logs contain these names, and readers of a log must not learn the names of
    the operator's machines. Containers often share a host name.
    """
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    return f"{_FORMAT}/{boot_id()}/{_pid_namespace()}/{os.getpid()}/{uuid4().hex[:8]}/{host}"


def is_gone(owner: str) -> bool:
    """Whether the owner's process no longer exists; False if that is uncertain.

    Only processes of this boot and this pid namespace are checked, and only "no such process" counts. A process that
    may not be signalled, a zombie, a reused pid and a name of another format count as alive, which costs at most the
    rest of the lease.
    """
    name_format, boot, namespace, pid = (*owner.split("/"), "", "", "", "")[:4]
    is_local = (
        name_format == _FORMAT
        and boot != ""
        and boot == boot_id()
        and namespace != ""
        and namespace == _pid_namespace()
    )
    # Checked before `int`, which accepts other digits; and pid 0 or below would address process groups.
    if not is_local or not pid.isascii() or not pid.isdigit() or int(pid) <= 0:
        return False
    try:
        # Signal 0 is not delivered: it only checks that the process exists.
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def boot_id() -> str:
    """Return the id of this boot of the machine; an empty string if there is none."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(_PID_NAMESPACE.stat().st_ino)
    except OSError:
        return ""
