"""The first process of a container: fetches its descriptors from the host, then does what `init.py` does.

It is started as `python3 -I -S contained.py SOCKET_PATH`. On that socket the host sends one message `g` with five
descriptors: configuration, input, output, errors, and a status socket. Its end is the end of the container.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
import array
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _signal as signal

import init


def fetch(path):
    """Return the descriptors that the host sends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        _, ancillary, _, _ = connection.recvmsg(16, socket.CMSG_SPACE(5 * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content)
    if len(fds) != 5:
        sys.exit(1)
    return list(fds)


def main():
    """Take over the host's descriptors and run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    conf_fd, stdin, stdout, stderr, status_fd = fetch(sys.argv[1])
    for number, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, number)
    conf = init.read_configuration(str(conf_fd))
    init.drop_capabilities()
    os.write(status_fd, b"r\n")
    return init.run(conf, status_fd)


if __name__ == "__main__":
    init.execute_main(*main())
