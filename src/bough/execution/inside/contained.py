"""The first process of a run in a container: it receives its descriptors from the host, then works as `init.py` does.

It is started as `python3 -I -S contained.py SOCKET_PATH TOKEN_PATH`. It sends the token to the socket, so that the host
recognises it. The host answers with one message `g` and five descriptors: configuration, stdin, stdout, stderr, and a
status socket. A fresh container ends when this process exits.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
import array
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _signal as signal

import init
import program


def fetch(path, token_path):
    """Send the token to the host, and return the descriptors of its answer."""
    with open(token_path, "rb") as source:
        token = source.read()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        connection.send(token)
        _, ancillary, _, _ = connection.recvmsg(16, socket.CMSG_SPACE(5 * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content)
    if len(fds) != 5:
        sys.exit(1)
    return list(fds)


def main():
    """Install the host's descriptors, and run the program; returns as `init.run` does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    conf_fd, stdin, stdout, stderr, status_fd = fetch(*sys.argv[1:3])
    for number, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, number)
    conf = init.read_configuration(str(conf_fd))
    init.check_mounts(conf, status_fd)
    init.drop_capabilities()
    init.call("prctl", init.PR_SET_DUMPABLE, 0, 0, 0, 0)  # before the program starts, which has the same uid
    os.write(status_fd, b"r\n")
    return init.run(conf, status_fd)


if __name__ == "__main__":
    program.execute_main(*main())
