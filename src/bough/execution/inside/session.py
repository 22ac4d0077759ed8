"""A persistent Python interpreter: it runs one piece of code after another in the same namespace.

It is started by `init.py`, with a socket as its stdin. Each message `c` on it is a call, and carries five descriptors:
configuration, stdin, stdout, stderr, and a socket for the answer, `s WAIT_STATUS CPU_MICROSECONDS MAX_RSS_KIB TOKEN`.
The token is in a second message, which is read when the code has ended. The host ignores an answer without the token.

Python code runs in this process, any other program in a child. The code has full control of this process, but all that
it can achieve is a wrong exit code of its own.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: BLE001, S102, SIM115 - any exception of the code is shown to its sender
import array
import os
import resource
import socket
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import init
import program


def move_to_highest(fd):
    """Move a descriptor to the highest free number, which programs do not use; return the new number."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for number in range(limit - 1, 2, -1):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(fd, number, inheritable=False)
            os.close(fd)
            return number
    return fd


def receive(control):
    """Return the descriptors of the next call; None if the host has exited."""
    data, ancillary, _, _ = control.recvmsg(16, socket.CMSG_SPACE(5 * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content)
    return list(fds) if data and len(fds) == 5 else None


def open_streams(stdin, stdout, stderr):
    """Connect descriptors 0, 1 and 2, and Python's standard streams, to those of a call."""
    for number, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def close_streams():
    """Flush the standard streams, and connect descriptors 0, 1 and 2 to `/dev/null`."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def read_exit_code(exit_error):
    """Return the exit code that an interpreter has after a `SystemExit`; print its message, if any, to stderr."""
    if exit_error.code is None:
        return 0
    if isinstance(exit_error.code, int):
        return exit_error.code & 0xFF
    print(exit_error.code, file=sys.stderr)
    return 1


def show_error():
    """Print the traceback of the current exception as an interpreter does, without the frames of this file."""
    kind, error, trace = sys.exc_info()
    while trace is not None and trace.tb_frame.f_globals is not sys.modules["__main__"].__dict__:
        trace = trace.tb_next
    traceback.print_exception(kind, error.with_traceback(trace), trace)


def run_in_namespace(conf, namespace):
    """Execute the code of a call in the persistent namespace; return its wait status."""
    sys.argv = list(conf["argv"])
    added_folders = program.add_python_path(conf["env"].get("PYTHONPATH", ""))
    try:
        with open(conf["python"], "rb") as source:
            code = compile(source.read(), conf["python"], "exec", dont_inherit=True)
        exec(code, namespace)
    except SystemExit as error:
        return read_exit_code(error) << 8
    except BaseException:
        show_error()
        return 1 << 8
    finally:
        sys.path[:] = [path for path in sys.path if path not in added_folders]  # the next call has its own PYTHONPATH
    return 0


def run_child(conf, answer_fd):
    """Run the program of a call as a child, and return its wait status."""
    pid = os.fork()
    if not pid:
        os.set_inheritable(answer_fd, False)
        program.execute(conf, answer_fd)
    return os.waitpid(pid, 0)[1]


def reap():
    """Reap the children that were killed after the previous call."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def handle_call(fds, namespace, control):
    """Run the code or program of one call, and send the answer."""
    interpreter_pid = os.getpid()
    reap()
    conf_fd, stdin, stdout, stderr, answer_fd = fds
    conf = init.read_configuration(str(conf_fd))
    answer_fd = move_to_highest(answer_fd)
    open_streams(stdin, stdout, stderr)
    os.write(answer_fd, b"r\n")
    usage_before = resource.getrusage(resource.RUSAGE_SELF)
    try:
        os.chdir(conf["cwd"])
        os.environ.clear()
        os.environ.update(conf["env"])
        status = run_in_namespace(conf, namespace) if conf["in_session"] else run_child(conf, answer_fd)
    except OSError as error:
        os.write(answer_fd, b"e %d\n" % (error.errno or 5))
        status = 127 << 8
    close_streams()
    if os.getpid() != interpreter_pid:
        os._exit(status >> 8)  # this is a fork that the code has made; only the interpreter answers
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = usage.ru_utime + usage.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    try:
        # Received only after the code has ended, which could otherwise find the token in the memory of this process.
        # `recv` waits, because short code may end before the host has sent the token.
        token = control.recv(32)
        os.write(answer_fd, b"s %d %d %d %s\n" % (status, int(cpu_seconds * 1e6), usage.ru_maxrss, token))
        os.close(answer_fd)
    except OSError:
        os._exit(status >> 8)  # the code has closed a socket or read the token; the first process reports the exit


def main():
    """Handle calls until the host has exited."""
    program.add_site(None)
    program.hide_own_modules()
    control = socket.socket(fileno=move_to_highest(os.dup(0)))
    close_streams()
    module = type(sys)("__main__")
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module
    sys.path.insert(0, "")
    while True:
        fds = receive(control)
        if fds is None:
            return
        handle_call(fds, module.__dict__, control)


main()
os._exit(0)
