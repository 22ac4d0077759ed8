"""Turn a forked process into the program: another executable, or a Python file in this interpreter.

Run as `python3 -I -S program.py FILE PATH0 [ARG…]`, it executes a Python file, and is not a first process.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: S606, S102 - as little as possible is imported, for old Pythons too

import _signal as signal  # `signal` imports enum, which takes longer than all other imports together
import _thread
import _weakref
import atexit
import builtins
import gc
import posix as os  # importing `os` takes another millisecond
import sys

HARMLESS = (
    *("_bisect", "_contextvars", "_csv", "_datetime", "_decimal", "_hashlib", "_heapq", "_json", "_opcode", "_random"),
    *("_posixsubprocess", "_socket", "_statistics", "_struct", "_typing", "array", "binascii", "grp", "math"),
    *("resource", "select", "unicodedata", "zlib"),
)
"""Extension modules of the standard library whose objects only free memory at the end of an interpreter."""

OWN_MODULES = ("contained", "init", "keeper", "mounts", "program")
"""Modules of this folder that first processes import."""


def call(name, *arguments):
    """Call a function of the C library by its name. Does not import ctypes, which takes three milliseconds.

    Raises:
        OSError: The function did not return 0.
    """
    import _ctypes

    if _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 0), name), arguments):
        raise OSError(name)


def execute(conf, status_fd):
    """Replace this process by the program `conf["argv"]`, which is looked up in the PATH of `conf["env"]`."""
    # Python ignores some of these signals, and a signal that is ignored stays ignored after `execve`.
    for name in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    from os import execvpe

    try:
        execvpe(conf["argv"][0], conf["argv"], conf["env"])
    except OSError as error:
        os.write(status_fd, b"e %d\n" % (error.errno or 0))
        os._exit(127)


def set_environment(env):
    """Replace the whole environment by `env`, for C code and for the module `os`, which may not be imported yet."""
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
    """Make installed packages importable, as in an interpreter without `-S`, but without `sitecustomize`.

    Args:
        paths: The folders of packages; None to find them, which takes one or two milliseconds.
    """
    if hasattr(builtins, "exit"):
        return
    if paths is None:
        add_packages()
    else:
        sys.path += paths
        sys.meta_path.append(PackageStartup)
    import _sitebuiltins

    eof_hint = "Ctrl-D (i.e. EOF)"
    builtins.quit = _sitebuiltins.Quitter("quit", eof_hint)
    builtins.exit = _sitebuiltins.Quitter("exit", eof_hint)
    builtins.help = _sitebuiltins._Helper()


def add_packages():
    """Add the folders of packages to `sys.path`, and run the start-up code of packages."""
    import site

    site.addsitepackages(site.removeduppaths())


class PackageStartup:
    """An import hook that runs the start-up code of packages (`.pth` files) when a module is not found."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Remove this hook, run the start-up code, and search for the module again."""
        sys.meta_path.remove(cls)
        add_packages()
        return sys.modules["_frozen_importlib"]._find_spec(name, path, target)


def add_python_path(value):
    """Insert the folders of PYTHONPATH after the program's own folder, as without `-I`; return those that were new."""
    added_folders = [path for path in value.split(":") if path and path not in sys.path]
    # At 1, after the program's own folder, so that no package shadows a module in that folder.
    sys.path[1:1] = added_folders
    return added_folders


def become_main(conf):
    """Make this interpreter look as if it was started with the file `conf["python"]`; return (code, namespace)."""
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
    """Remove the modules of this folder from `sys.modules`, so that the program can have modules of these names."""
    for name in OWN_MODULES:
        sys.modules.pop(name, None)
    folder = globals().get("__file__", "").rpartition("/")[0]
    sys.path[:] = [path for path in sys.path if path != folder]


def hide_own_frames():
    """Install an exception hook that omits the frames of this file from a traceback."""

    def show(kind, error, trace):
        while trace is not None and trace.tb_frame.f_globals is not sys.modules["__main__"].__dict__:
            trace = trace.tb_next
        sys.__excepthook__(kind, error.with_traceback(trace), trace)

    sys.excepthook = show


def execute_main(code, namespace):
    """Execute the program's code in this process, and exit if no teardown of the interpreter is needed."""
    loaded_modules, frozen_count = set(sys.modules), gc.get_freeze_count()
    exec(code, namespace)
    exit_early(loaded_modules, frozen_count)


def exit_early(loaded_modules, frozen_count):
    """Exit without the interpreter's teardown, after the same steps as the interpreter; return if a teardown is needed.

    The teardown destroys modules one by one and so writes to every page of memory. In a forked process, the kernel must
    copy all these pages, which takes longer than a short program runs. The teardown is needed if a remaining object has
    a finalizer.

    Args:
        loaded_modules: The names of the modules that were loaded before the program.
        frozen_count: The number of objects that garbage collection ignored before the program.
    """
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        if _thread._count() or gc.get_freeze_count() > frozen_count:
            return
        if any(map(is_extension_module, set(sys.modules) - loaded_modules)) or any(
            map(has_finalizer, gc.get_objects())
        ):
            return
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            stream.flush()
    except BaseException:  # noqa: BLE001 - the interpreter's own exit meets the same error and reports it
        return
    call("exit", 0)  # the function of the C library, which flushes the buffers of C code


def is_extension_module(name):
    """Whether a module is an extension module that may do something at the end of the interpreter."""
    return name not in HARMLESS and str(getattr(sys.modules[name], "__file__", None)).endswith(".so")


def has_finalizer(value):
    """Whether destroying an object may run code: a finalizer, a weak reference's callback, or a generator's end."""
    kind = type(value)
    if isinstance(value, _weakref.ref):
        return getattr(value.__callback__, "__module__", None) not in (None, "weakref", "_weakrefset")
    return hasattr(kind, "__del__") or kind.__name__ in ("generator", "coroutine", "async_generator")


def run_file():
    """Return the code and namespace of the file named by the arguments."""
    _, path, path0, *arguments = sys.argv
    return become_main({"python": path, "path0": path0, "argv": [path, *arguments], "env": None})


if __name__ == "__main__":
    execute_main(*run_file())
