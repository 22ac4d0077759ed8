"""Turning a forked process into the program: another executable, or a Python file in this interpreter.

`python3 -I -S program.py FILE PATH0 [ARG…]` only runs a Python file, below another first process.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: S606, S102 - as little as possible is imported, for old Pythons too

import _signal as signal  # signal itself imports enum, which costs more than all the rest
import _thread
import _weakref
import atexit
import builtins
import gc
import posix as os  # os itself is a millisecond for those who need it
import sys

HARMLESS = (
    *("_bisect", "_contextvars", "_csv", "_datetime", "_decimal", "_hashlib", "_heapq", "_json", "_opcode", "_random"),
    *("_posixsubprocess", "_socket", "_statistics", "_struct", "_typing", "array", "binascii", "grp", "math"),
    *("resource", "select", "unicodedata", "zlib"),
)
"""Compiled modules of the standard library whose objects do nothing but free memory at the end."""

OWN_MODULES = ("contained", "init", "keeper", "mounts", "program")
"""Modules that the first processes import from one another."""


def call(name, *arguments):
    """Call a function of the C library that Python does not wrap; importing ctypes would take three milliseconds."""
    import _ctypes

    if _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 0), name), arguments):
        raise OSError(name)


def execute(conf, status_fd):
    """Replace this process by `conf["argv"]`, looked up in the PATH of its own environment."""
    for name in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    from os import execvpe

    try:
        execvpe(conf["argv"][0], conf["argv"], conf["env"])
    except OSError as error:
        os.write(status_fd, b"e %d\n" % (error.errno or 0))
        os._exit(127)


def set_environment(env):
    """Replace the whole environment by `env`, for C code and for `os`, imported or not."""
    if "os" in sys.modules:
        sys.modules["os"].environ.clear()
        sys.modules["os"].environ.update(env)
        return
    for name in os.environ:
        os.unsetenv(name)
    os.environ.clear()
    for name, value in env.items():
        os.putenv(name, value)
        os.environ[name.encode("utf-8", "surrogateescape")] = value.encode("utf-8", "surrogateescape")


def add_site(paths):
    """Set up packages as an interpreter without `-S`, except for customisations and the texts of the prompt.

    Args:
        paths: The folders of packages, if known; finding them takes one or two milliseconds.
    """
    if hasattr(builtins, "exit"):
        return
    if paths is None:
        add_packages()
    else:
        sys.path += paths
        sys.meta_path.append(LatePackages)
    import _sitebuiltins as made

    end = "Ctrl-D (i.e. EOF)"
    builtins.quit, builtins.exit = made.Quitter("quit", end), made.Quitter("exit", end)
    builtins.help = made._Helper()


def add_packages():
    """Add the folders of packages to `sys.path`, and run the start-up code of packages."""
    import site

    site.addsitepackages(site.removeduppaths())


class LatePackages:
    """Runs the start-up code of packages at the first import that finds no module."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Search again after the start-up code has run."""
        sys.meta_path.remove(cls)
        add_packages()
        return sys.modules["_frozen_importlib"]._find_spec(name, path, target)


def add_python_path(value):
    """Put the folders of PYTHONPATH behind the program's own, where an interpreter without `-I` has them."""
    # At 1: the program's own folder stays first, so that a package cannot take the place of a module beside it.
    sys.path[1:1] = [path for path in value.split(":") if path and path not in sys.path]


def become_main(conf):
    """Make this interpreter look as if it was started on `conf["python"]`; return its code and namespace."""
    if conf["env"] is not None:
        set_environment(conf["env"])
    add_site(conf.get("site"))
    hide_own_modules()
    sys.argv = conf["argv"]
    sys.path.insert(0, conf["path0"])
    if conf["env"] is None:
        add_python_path(os.environ.get(b"PYTHONPATH", b"").decode("utf-8", "surrogateescape"))
    else:
        add_python_path(conf["env"].get("PYTHONPATH", ""))
    sys.stdout.reconfigure(line_buffering=True)
    main = type(sys)("__main__")
    main.__file__ = conf["python"]
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    with open(conf["python"], "rb") as source:
        text = source.read()
    hide_own_frames()
    return compile(text, conf["python"], "exec", dont_inherit=True), main.__dict__


def hide_own_modules():
    """Free the names of these files for modules of the program."""
    for name in OWN_MODULES:
        sys.modules.pop(name, None)
    folder = globals().get("__file__", "").rpartition("/")[0]
    sys.path[:] = [path for path in sys.path if path != folder]


def hide_own_frames():
    """Let a traceback begin with the program's first line."""

    def show(kind, error, trace):
        while trace is not None and trace.tb_frame.f_globals is not sys.modules["__main__"].__dict__:
            trace = trace.tb_next
        sys.__excepthook__(kind, error.with_traceback(trace), trace)

    sys.excepthook = show


def execute_main(program, namespace):
    """Run a program in this process until it ends."""
    loaded, frozen = set(sys.modules), gc.get_freeze_count()
    exec(program, namespace)
    finish(loaded, frozen)


def finish(loaded, frozen):
    """Exit as the interpreter would after the last line, but without its teardown; return if that is needed.

    An interpreter tears its modules down one by one, which writes to every page of its memory. In a forked process all
    pages must be copied for it, which takes longer than a short program. So the memory is left to the kernel
    unless a remaining object has a finalizer.

    Args:
        loaded: The names of the modules that were loaded before the program.
        frozen: The number of untracked objects before the program.
    """
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        if _thread._count() or gc.get_freeze_count() > frozen:
            return
        if any(map(is_opaque, set(sys.modules) - loaded)) or any(map(has_an_end, gc.get_objects())):
            return
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            stream.flush()
    except BaseException:  # noqa: BLE001 - the interpreter comes across it again, and says so in its own way
        return
    call("exit", 0)  # the C library's own: it writes out what C code left in buffers


def is_opaque(name):
    """Whether a module is machine code, whose actions at its end cannot be seen from here."""
    return name not in HARMLESS and str(getattr(sys.modules[name], "__file__", None)).endswith(".so")


def has_an_end(thing):
    """Whether something happens when `thing` is destroyed."""
    kind = type(thing)
    if isinstance(thing, _weakref.ref):
        return getattr(thing.__callback__, "__module__", None) not in (None, "weakref", "_weakrefset")
    return hasattr(kind, "__del__") or kind.__name__ in ("generator", "coroutine", "async_generator")


def run_file():
    """Run the file named by the arguments in this process."""
    _, path, path0, *arguments = sys.argv
    return become_main({"python": path, "path0": path0, "argv": [path, *arguments], "env": None})


if __name__ == "__main__":
    execute_main(*run_file())
