"""What belongs to the whole process: options that make training faster, and signals."""

import ctypes
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from whorl.core.errors import WhorlError

SWITCH_INTERVAL = 5e-5
"""seconds a Python thread keeps the interpreter lock while others wait, where optimizers step in threads; the default
of 5 ms is longer than many a step, so that the threads would take turns"""

CTRL_C = "Ctrl-C"
WAKE: Any = getattr(signal, "SIGURG", None)
"""ends what the main thread waits for in the operating system; ignored by default, and unknown to Windows"""


class configure_process:
    """Set process-wide options; used as a context manager, it restores the previous ones on exit.

    Building or stepping a trainer changes none of these, so several trainers can share a process. `train()` wraps its
    loop in this; if you call `step()` yourself, call `configure_process()` once before for the same speed. How memory
    is allocated can't be restored; it never changes results.

    Args:
        threads: threads of each torch operation on a CPU.
        tf32: allow TF32 matrix multiplications on CUDA.
        learner_threads: Python threads that step optimizers at the same time.
    """

    def __init__(self, threads: int = 1, tf32: bool = True, learner_threads: int = 1) -> None:
        self._before = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32, sys.getswitchinterval()
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = tf32
        if learner_threads > 1:
            sys.setswitchinterval(SWITCH_INTERVAL)
        keep_freed_memory()

    def __enter__(self) -> "configure_process":
        return self

    def __exit__(self, *error: object) -> None:
        threads, tf32, interval = self._before
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = tf32
        sys.setswitchinterval(interval)


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for later tensors: updates on a CPU are a tenth faster or more.

    By default glibc returns large blocks to the system at once, and each page of the next tensor costs a page fault.
    Other C libraries do not have these options.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library, trim_threshold, mmap_threshold = ctypes.CDLL(None), -1, -3
    for option in (trim_threshold, mmap_threshold):
        if not library.mallopt(option, 1 << 30):
            library.mallopt(option, 1 << 25)  # the largest value that some versions accept


@contextmanager
def first_interrupt(handle: Callable[[str], None]) -> Iterator[None]:
    """Within, the first Ctrl-C (or SIGTERM) calls `handle` with its name; the next one goes to the previous handler.

    A process in the background of a script ignores Ctrl-C by default; there the next one raises KeyboardInterrupt, too.
    Signals can be handled in the main thread only; in another one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def receive(number: int, frame: FrameType | None) -> None:
        restore()
        if before[signal.SIGINT] == signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        handle(CTRL_C if number == signal.SIGINT else signal.Signals(number).name)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()


@contextmanager
def interruptible_waits() -> Iterator[None]:
    """Within, `raise_in` also reaches the main thread while it waits in the operating system."""
    main = threading.current_thread() is threading.main_thread()
    if WAKE is None or not main or signal.getsignal(WAKE) != signal.SIG_DFL:
        yield
        return
    signal.signal(WAKE, _raise_sent)
    try:
        yield
    finally:
        signal.signal(WAKE, signal.SIG_DFL)


def raise_in(thread: int, error: WhorlError, inside: Callable[[FrameType | None], bool]) -> None:
    """Raise an error in another thread, at its next instruction in Python.

    Args:
        thread: its identity.
        inside: whether a frame is still in the call that the error is about; if not, nothing is raised.
    """
    if thread == threading.main_thread().ident and WAKE and signal.getsignal(WAKE) is _raise_sent:
        _sent.append((error, inside))
        signal.pthread_kill(thread, WAKE)
    elif inside(sys._current_frames().get(thread)):
        # Python makes the error from its class, without arguments.
        kind = type(
            type(error).__name__,
            (type(error),),
            {"__init__": lambda self: WhorlError.__init__(self, error.message)},
        )
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


_sent: list[tuple[WhorlError, Callable[[FrameType | None], bool]]] = []
"""errors for the main thread"""


def _raise_sent(number: int, frame: FrameType | None) -> None:
    while _sent:
        error, inside = _sent.pop()
        if inside(frame):
            raise error
