"""The product's launcher, whose next shim dies before a named step; for tests only, started instead of the real one.

A file `fault` beside the node's folder names the step for the next shim that is forked, with `always ` before it for
every one, or is `record`: then the shim writes the names of its steps into `steps` there. Steps are system calls
that change files or tell the session, by what they touch: `link receipt`, `fsync log`, `tell ready`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CALLS = (
    "mkdir", "open", "write", "pwrite", "posix_fallocate", "ftruncate", "fsync", "link", "rename", "unlink", "rmdir",
    "fchmod", "chmod", "posix_spawn",
)  # fmt: skip
ID_LENGTH = 36
ALWAYS = "always "
PLACES = (("receipts", "receipt"), ("attempts", "folder"), ("logs", "log"))
FILES = ".files"
SPARE = ".spare-"


def load() -> Any:
    path = os.path.join(ROOT, "apps", "dispatch", "launcher", "__main__.py")
    spec = importlib.util.spec_from_file_location("launcher_main", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["launcher_main"] = module
    spec.loader.exec_module(module)
    return module


class Steps:
    """Counts the steps of one shim and ends it before the one that is named."""

    def __init__(self, home: str, fault: str) -> None:
        self._home = home
        self._fault = fault
        self._seen: dict[str, int] = {}
        self._real = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            setattr(os, name, self._wrapped(name))

    def take(self, name: str) -> None:
        number = self._seen[name] = self._seen.get(name, 0) + 1
        numbered = name if number == 1 else f"{name} {number}"
        if self._fault == "record":
            steps = self._real["open"](f"{self._home}/steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._real["write"](steps, f"{numbered}\n".encode())
            os.close(steps)
        elif numbered == self._fault:
            os.kill(os.getpid(), signal.SIGKILL)

    def _wrapped(self, name: str) -> Any:
        real = self._real[name]

        def call(*args: Any, **options: Any) -> Any:
            step = self._name(name, args, options)
            if step is not None:
                self.take(step)
            return real(*args, **options)

        return call

    def _name(self, call: str, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        target = args[0]
        if call == "posix_spawn":
            return "start the script"
        if call == "open" and not args[1] & os.O_CREAT:
            return None
        if isinstance(target, int):
            try:
                path = os.readlink(f"/proc/self/fd/{target}")
            except OSError:
                return None
        else:
            path = os.fsdecode(target)
            folder = options.get("dst_dir_fd", options.get("dir_fd"))
            if folder is not None:
                path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
        if FILES in path:
            return f"{call} files"
        if SPARE in path:
            return None  # what a shim keeps from run to run goes when nobody waits for it
        if call in ("mkdir", "chmod") and len(os.path.basename(path)) != ID_LENGTH:
            return None  # a folder of many attempts is made by whichever comes first
        if call == "write" and path.startswith("socket:"):
            return "tell " + args[1].decode().split()[0]
        for folder, place in PLACES:
            if f"/{folder}/" in path or path.endswith(f"/{folder}"):
                return f"{call} {place}"
        return None


def main(arguments: list[str]) -> None:
    launcher = load()
    home = os.path.dirname(os.path.abspath(arguments[1]))
    serve = launcher.shim.serve

    def armed(*args: Any, **options: Any) -> None:
        try:
            descriptor = os.open(f"{home}/fault", os.O_RDONLY)
        except FileNotFoundError:
            return serve(*args, **options)
        fault = os.read(descriptor, 100).decode()
        os.close(descriptor)
        if not fault.startswith(ALWAYS):
            os.unlink(f"{home}/fault")
        Steps(home, fault.removeprefix(ALWAYS))
        return serve(*args, **options)

    launcher.shim.serve = armed
    launcher.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
