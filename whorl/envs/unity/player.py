"""One Unity player, or the editor: starts it and exchanges messages with it.

Python is the gRPC server and the player its client. Each call of the player carries what happened, and the answer what
it is to do next. So a call stays open while the policy thinks, and `exchange` answers one call and waits for the next.
"""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Literal

from whorl.core.errors import EnvError
from whorl.envs.unity.messages import CLOSE, METHOD, OK, RESET, SERVICE, VERSION, grpc, messages
from whorl.envs.unity.options import EDITOR_PORT, UnityOptions, executable

LARGEST = 1 << 28
"""bytes of a message; gRPC's own limit of 4 MiB is less than a few cameras need"""
LOOK = 0.2
"""seconds between two looks whether the player still runs"""
PORTS = 1000
"""ports that are tried from the one that was asked for"""
ENDING = 5.0
"""seconds that a player has to end by itself"""


class PlayerLost(EnvError):
    """A player that ended, hangs or closed the connection: another one can be started."""


class Player:
    """A connection with one player. `connect` has to follow; between them others can be started.

    Args:
        path: of the player; None: the editor.
        number: of the player, for messages.
        seed: of the player's random numbers.
    """

    def __init__(self, path: str | None, options: UnityOptions, number: int, seed: int) -> None:
        self.options, self.number, self.seed = options, number, seed
        self.name = "the Unity editor" if path is None else f"Unity player {number} ({path})"
        command = None if path is None else executable(path)
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._open = False
        """whether a call waits for its answer"""
        self._closed = threading.Event()
        self._server, self.port = self._listen()
        self._process: subprocess.Popen[bytes] | None = None
        self._output: Any = None
        if command is not None:
            self._start(command)

    def connect(self) -> Any:
        """Wait for the player, reset it, and return its first message; behaviours are announced in it."""
        first = self.receive("start_timeout")
        told = first.unity_output.rl_initialization_output
        self._check_version(told.communication_version)
        reply = messages().UnityMessageProto()
        start = reply.unity_input.rl_initialization_input
        start.seed, start.communication_version, start.package_version = self.seed, VERSION, "1.1.0"
        start.num_areas = self.options.areas
        for name in start.capabilities.DESCRIPTOR.fields_by_name:
            # Training analytics are about Unity's own trainers.
            setattr(start.capabilities, name, name != "trainingAnalytics")
        self._answer(reply)
        self.receive()  # announces that the player is ready for a command
        return self.reset(self.options.settings(self.seed))

    def reset(self, side_channel: bytes = b"") -> Any:
        """Begin new episodes in the whole scene."""
        reply = messages().UnityMessageProto()
        reply.unity_input.rl_input.command = RESET
        reply.unity_input.rl_input.side_channel = side_channel
        return self.exchange(reply)

    def exchange(self, message: Any) -> Any:
        """Answer the open call with this message and wait for the next one."""
        self.send(message)
        return self.receive()

    def send(self, message: Any) -> None:
        """Answer the open call; the player goes on while others are answered."""
        if not self._open:  # an interrupt came before its last message was read
            self.receive()
        self._answer(message)

    def close(self) -> None:
        """End the player; one that does not end by itself is killed. Safe to call twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._open:
            self._answers.put(_close_message())
        self._server.stop(0.5).wait(ENDING)
        if self._process is not None:
            try:
                self._process.wait(ENDING)
            except subprocess.TimeoutExpired:
                self._kill_session(self._process)
                self._process.wait()
        if self._output is not None:
            self._output.close()

    def kill(self) -> None:
        """End a player that does not answer."""
        if self._process is not None:
            self._kill_session(self._process)
        self._open = False
        self.close()

    def _answer(self, message: Any) -> None:
        message.header.status = OK
        self._open = False
        self._answers.put(message)

    def receive(self, limit: Literal["timeout", "start_timeout"] = "timeout") -> Any:
        """The next message of the player, awaited for as long as an option says."""
        seconds = getattr(self.options, limit)
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(queue.Empty):
                call = self._calls.get(timeout=LOOK)
                if call.header.status != OK:
                    self._answers.put(_close_message())
                    raise PlayerLost(f"{self.name} closed the connection")
                self._open = True
                return call
            status = None if self._process is None else self._process.poll()
            if status is not None:
                raise PlayerLost(f"{self.name} ended with status {status}{self._last_output_line()}")
            if time.monotonic() > until:
                what = f"did not answer within {seconds:g} seconds, the option {limit}"
                raise PlayerLost(f"{self.name} {what if limit == 'timeout' else self._absence(what)}")

    def _absence(self, what: str) -> str:
        if self._process is None:
            return f"{what}, on port {self.port}; press Play in the editor"
        return f"{what}, on port {self.port}; it must be built with ML-Agents and an agent of behaviour type Default"

    def _last_output_line(self) -> str:
        """The last line that the player wrote."""
        if self._output is None:
            return ""
        self._output.seek(0)
        lines = self._output.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _check_version(self, theirs: str) -> None:
        if theirs.partition(".")[0] != VERSION.partition(".")[0]:
            raise EnvError(
                f"{self.name} has version {theirs or 'none'} of ML-Agents' communication, and {VERSION} is needed; "
                "build it with ML-Agents release 12 or newer"
            )

    def _listen(self) -> tuple[Any, int]:
        """A server on loopback."""
        rpc, kinds = grpc(), messages()
        size = [(f"grpc.max_{way}_message_length", LARGEST) for way in ("send", "receive")]
        handler = rpc.unary_unary_rpc_method_handler(
            self._exchange,
            request_deserializer=kinds.UnityMessageProto.FromString,
            response_serializer=kinds.UnityMessageProto.SerializeToString,
        )
        first = self.options.port or (EDITOR_PORT if self.options.editor else 0)
        # The editor knows its port; for players the next free one is taken.
        ports = [first] if self.options.editor or not first else range(first, min(first + PORTS, 65_536))
        for port in ports:
            if port and not _is_free(port):
                continue
            server = rpc.server(_DaemonThreads(), options=[("grpc.so_reuseport", 0), *size])
            server.add_generic_rpc_handlers(
                (rpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
            )
            try:
                found = server.add_insecure_port(f"127.0.0.1:{port}")
            except RuntimeError:  # another process was faster
                continue
            if found:
                server.start()
                return server, found
        raise EnvError(
            f"port {first} is in use, so {self.name} can't connect; choose another with --port (env_options port)"
        )

    def _start(self, command: list[str]) -> None:
        graphics = ["-nographics", "-batchmode"] if self.options.no_graphics else []
        words = [*command, *graphics, "--mlagents-port", str(self.port), *self.options.arguments]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the player
        try:
            # A session of its own: an interrupt in the terminal ends the run, which then ends its players.
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self.close()
            raise EnvError(
                f"{self.name} can't be started: {error.strerror}; is it built for this system, and executable?"
            ) from None

    def _kill_session(self, process: subprocess.Popen[bytes]) -> None:
        """End the process and all that it started: the path may be that of a script that starts the player."""
        if sys.platform != "win32":
            # macOS denies it for a group whose processes have ended and were not waited for.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # nothing, if it has ended

    def _exchange(self, request: Any, context: Any) -> Any:
        """A call of the player, in a thread of the server."""
        self._calls.put(request)
        while True:
            with contextlib.suppress(queue.Empty):
                return self._answers.get(timeout=LOOK)
            if self._closed.is_set() or not context.is_active():
                return _close_message()


class _DaemonThreads(Executor):
    """A thread per call. Python does not wait for it at its exit, as it would for those of a `ThreadPoolExecutor`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="unity", daemon=True).start()
        return future


def _is_free(port: int) -> bool:
    """Whether nobody listens on a port."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _close_message() -> Any:
    message = messages().UnityMessageProto()
    message.header.status = CLOSE
    return message
