"""Import every module of Covey as on Windows: without the modules and functions that only Unix has. Prints failures.

The other packages that Covey loads are imported before anything is taken away; a first process names them.
"""

import importlib
import os
import signal
import subprocess
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

UNIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "_posixsubprocess")
UNIX_FUNCTIONS = ("fork", "getuid", "geteuid", "getpgid", "killpg", "setsid", "sysconf", "sched_getaffinity", "pwrite")
UNIX_SIGNALS = ("SIGKILL", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGUSR1")
UNIX_PACKAGES = ("covey.fleet", "covey.serve")
"""Packages of Covey that need Unix."""


def modules() -> list[str]:
    """Return the names of Covey's modules but those of packages that need Unix, and programs."""
    import covey

    root = Path(covey.__file__).parent
    paths = (path.relative_to(root.parent).with_suffix("").parts for path in sorted(root.rglob("*.py")))
    found = [".".join(parts).removesuffix(".__init__") for parts in paths]
    return [one for one in found if not one.startswith(UNIX_PACKAGES) and not one.endswith("__main__")]


def as_on_windows() -> None:
    """Take away what Windows lacks; `msvcrt` is an empty module, as nothing is locked here."""
    for name in UNIX_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in UNIX_FUNCTIONS:
        delattr(os, name)
    for name in UNIX_SIGNALS:
        delattr(signal, name)
    sys.modules["msvcrt"] = types.ModuleType("msvcrt")
    sys.platform = "win32"


def load_other_packages(names: Sequence[str]) -> None:
    """Import what those modules of Covey load from elsewhere; a process of its own finds out what that is."""
    script = "import sys; [__import__(one) for one in sys.argv[1:]]; print(*sys.modules, sep=chr(10))"
    done = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=True)
    for name in done.stdout.split():
        if name.split(".")[0] not in ("covey", "__main__") and name not in sys.modules:
            # Some modules exist under a name by which they cannot be imported.
            with suppress(Exception):
                importlib.import_module(name)


def main() -> None:
    """Import all, and end with 1 if that fails anywhere."""
    names = modules()
    load_other_packages(names)
    for name in [one for one in sys.modules if one.split(".")[0] == "covey"]:
        del sys.modules[name]
    as_on_windows()
    failed = 0
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, AttributeError) as fault:
            failed += 1
            print(f"{name}: {type(fault).__name__}: {fault}")
    print(f"{len(names) - failed} of {len(names)} modules", flush=True)
    # The interpreter's own ending may need what was taken away.
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
