"""How the processes of one run start: plainly, or confined where it has a user of its own or limits."""

from __future__ import annotations

import os
import signal

from apps.dispatch.launcher import confine, programs
from apps.dispatch.launcher.cgroups import Group
from apps.dispatch.launcher.confine import Confinement
from apps.dispatch.launcher.files import SHELL_BODY, needs_file
from apps.dispatch.launcher.output import LogSink
from apps.dispatch.launcher.programs import CannotStart, Environment
from apps.dispatch.launcher.spec import CommandBody, LaunchSpec, ShellBody, to_bytes

_XCPU = 128 + signal.SIGXCPU
_KILLED = 128 + signal.SIGKILL


class Starter:
    """Of one run; `output` is the end of the pipe that its processes write to."""

    def __init__(self, spec: LaunchSpec, sink: LogSink, output: int) -> None:
        self._spec = spec
        self._sink = sink
        self._output = output
        self._confinement: Confinement | None = None
        self._group: Group | None = None
        self._cpu_s = 0.0

    def get_ready(self) -> None:
        """Once, before anything is started. CannotStart for a working folder that cannot be used, OSError."""
        if self._spec.run_as is not None or self._spec.limits is not None:
            self._confine()
            return
        try:
            os.chdir(to_bytes(self._spec.cwd))
        except OSError as error:
            said = os.strerror(error.errno or 0)
            raise CannotStart(f"the working folder cannot be used: {said}", programs.NOT_EXECUTABLE) from None

    def _confine(self) -> None:
        spec = self._spec
        if spec.limits is not None:
            self._cpu_s = _children_s()
            self._group = Group.make(spec.attempt_id, spec.limits)
            held = self._group.held if self._group else frozenset[str]()
            for line in confine.weaker(spec.limits, held, spec.run_as is not None):
                self._sink.say(line)
        if spec.run_as is not None:
            # A script may open its output by name, as /dev/stdout.
            os.fchown(self._output, spec.run_as.uid, spec.run_as.gid)
        self._confinement = Confinement(spec.run_as, spec.limits, self._group, to_bytes(spec.cwd))

    def hook(self, argv: list[bytes], env: Environment, extra: tuple[int, int] | None) -> int:
        """Starts a shell; its pid. CannotStart."""
        if self._confinement is not None:
            return self._confinement.start(lambda: (programs.SHELL, argv), env, self._output, extra)
        return programs.start(programs.SHELL, argv, env, self._output, extra)

    def body(self, env: Environment) -> int:
        """Starts what the run is for; its pid. CannotStart."""
        if self._confinement is not None:
            return self._confinement.start(lambda: self._program(env), env, self._output)
        path, argv = self._program(env)
        return programs.start(path, argv, env, self._output)

    def _program(self, env: Environment) -> tuple[bytes, list[bytes]]:
        body = self._spec.body
        if isinstance(body, CommandBody):
            argv = [to_bytes(argument) for argument in body.argv]
            return programs.find(argv[0], env), argv
        if isinstance(body, ShellBody):
            return programs.SHELL, self._shell(body)
        candidates = [[to_bytes(part) for part in candidate] for candidate in body.interpreter]
        argv = programs.find_first(candidates, env)
        path = argv[0]
        argv.append(to_bytes(f"{self._spec.attempt_dir}/{body.filename}"))
        argv.extend(to_bytes(argument) for argument in body.args)
        return path, argv

    def _shell(self, body: ShellBody) -> list[bytes]:
        args = [to_bytes(argument) for argument in body.args]
        if needs_file(self._spec):
            return [programs.SHELL, to_bytes(f"{self._spec.attempt_dir}/{SHELL_BODY}"), *args]
        return [programs.SHELL, b"-c", to_bytes(body.text), b"sh", *args]

    def kill(self) -> None:
        """KILL to all in its control group, where it has one."""
        if self._group is not None:
            self._group.kill()

    def met(self, code: int | None) -> str | None:
        """The limit that a run met which ended with this code, where that can be known."""
        limits = self._spec.limits
        if limits is None or code == 0:
            return None
        met = self._group.reached() if self._group is not None else None
        if met is not None or limits.cpu_seconds is None:
            return met
        # By KILL only a few seconds above the limit: one that comes earlier is somebody else's.
        spent = code == _KILLED and _children_s() - self._cpu_s >= limits.cpu_seconds
        return "cpu_seconds" if code == _XCPU or spent else None

    def close(self) -> None:
        """Once nothing of the run is left."""
        if self._group is not None:
            self._group.remove()


def _children_s() -> float:
    """Processor seconds of everything this shim has collected, and of what that had collected."""
    spent = os.times()
    return spent.children_user + spent.children_system
