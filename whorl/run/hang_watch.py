"""Ends training whose environment, stepped by this process, does not return from a call (`env_timeout`).

The error is raised in the thread that steps, where Python runs or waits for the operating system, and is saved and
reported like any other of the environment. Native code that neither returns nor waits can't be interrupted: that is
said, and the command line ends the process. Native code that holds Python's lock is only noticed in workers.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, MethodType
from typing import Any

from whorl.core.errors import EnvError
from whorl.core.process import raise_in
from whorl.distributed.hang_timer import HangTimer
from whorl.envs.stepping import EnvStepper

CALLS = ("reset", "step", "bound_step")
"""methods of environments that step, or make a function that does"""
DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy")
"""modules in which a step may wait for a person"""
CAN_NOT_END = 1
"""exit status of a command whose environment can't be interrupted"""


class HangWatch:
    """Watches the calls of environments in one thread, at first that which makes it.

    Args:
        timeout: seconds that a call may take; 0: any.
        envs: a weak reference to a method: the environments that are stepped now, in training or evaluation. A trainer
            that was forgotten and not closed must not live on in this thread, which ends with it.
        left: a weak reference, too: what there is to continue from.
        ends_process: whether a call that can't be interrupted ends the process.
    """

    def __init__(
        self,
        timeout: float,
        envs: Callable[[], Callable[[], Iterable[Any]] | None],
        left: Callable[[], Callable[[], str] | None],
        ends_process: bool = False,
    ) -> None:
        self._envs, self._left, self._ends_process = envs, left, ends_process
        self.thread = threading.get_ident()
        """that which steps"""
        self._reports = 0
        self._timer = HangTimer(timeout, self._under_way, self._where, self._report)

    def close(self) -> None:
        self._timer.close()

    def _under_way(self) -> Any:
        """The call of an environment and its step, which change with every step; None: no call is under way.

        Frames are compared themselves: the next one may lie at the address of the last.
        """
        frame = self._call(sys._current_frames().get(self.thread))
        if frame is None:
            self._reports = 0
            return None
        return frame, [stepper.under_way() for stepper in self._steppers()]

    def _call(self, frame: FrameType | None) -> FrameType | None:
        """The call of an environment in which a frame is; None: it is in none, or a debugger is in it.

        Other trainers may step in the same thread, so it has to be one of these environments.
        """
        envs = (*self._environments(), *self._steppers())
        calls = [getattr(one, name, None) for one in envs for name in CALLS]
        own = [call for call in calls if isinstance(call, MethodType)]
        codes = {code for call in own for code in _codes(call)}
        while frame is not None:
            if frame.f_code in codes:
                stepped = frame.f_locals.get("self")
                if stepped is None or any(stepped is call.__self__ for call in own):
                    return frame
            if frame.f_globals.get("__name__", "").partition(".")[0] in DEBUGGERS:
                return None
            frame = frame.f_back
        return None

    def _environments(self) -> Iterable[Any]:
        envs = self._envs()
        if envs is None:
            self.close()
            return ()
        return envs()

    def _steppers(self) -> list[EnvStepper]:
        return [env.stepper for env in self._environments() if hasattr(env, "stepper")]

    def _where(self) -> str:
        for stepper in self._steppers():
            if stepper.under_way() is not None:
                return stepper.where()
        return "a call of the environment"

    def _report(self, error: EnvError) -> None:
        self._reports += 1
        if self._reports == 1:
            # The stepper that the error passes names the environment and the step itself.
            what = error.message[len(self._where().rpartition(": ")[0]) :].removeprefix(": ")
            raise_in(self.thread, EnvError(what), lambda frame: self._call(frame) is not None)
        elif self._reports == 2:
            frame = sys._current_frames().get(self.thread)
            stack, left = "".join(traceback.format_stack(frame)), self._left()
            message = f"whorl: {error.message}, and can't be interrupted; {left() if left else ''}"
            sys.stderr.write(f"{stack.rstrip()}\n{message}\n")
            sys.stderr.flush()
            if self._ends_process:
                os._exit(CAN_NOT_END)


def _codes(call: MethodType) -> Iterable[CodeType]:
    """That of a call of an environment, and those of functions that are made in it."""
    code = getattr(call, "__code__", None)
    if code is not None:
        yield code
        yield from (inner for inner in code.co_consts if isinstance(inner, CodeType))
