"""Loggers that send rows of metrics over the network: `loggers: [mlflow]`, `loggers: [http]`.

They send in a thread of their own, so that a slow or dead server neither delays nor ends training: rows wait in a queue
of limited length, a batch that fails is sent again, and the first failure is one warning.
"""

import json
import os
import re
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from whorl.core import messages
from whorl.core.errors import ConfigError, WhorlError, missing_extra
from whorl.core.registry import register
from whorl.log.writers import Logger, Row, plain_row
from whorl.settings.merge import Settings

WAITING = 10_000
"""rows that wait to be sent; beyond them the oldest are dropped"""
BATCH = 200
"""rows of one request"""
PAUSE = 1.0
"""seconds between requests, in which rows collect"""
LONGEST_PAUSE = 60.0
"""seconds between attempts while a server does not answer, reached by doubling"""
LAST_SECONDS = 10.0
"""time for rows that are left when training ends"""
LAST_ATTEMPTS = 3
"""failures in a row after which rows that are left then are given up"""
TIMEOUT = 5.0
"""seconds of one request"""
HTTP_TOKEN = "WHORL_HTTP_TOKEN"
"""environment variable with a token that `http` sends as the header `Authorization: Bearer`"""


class Sender:
    """Hands rows to `send` in batches, in a thread.

    Args:
        send: takes a batch and raises where it did not arrive; the same batch comes again then.
        where: whom the rows are for, in the warning.
        finish: called after the last row.
    """

    def __init__(
        self, send: Callable[[Sequence[Row]], None], where: str, finish: Callable[[], object] = lambda: None
    ) -> None:
        self._send, self._where, self._finish = send, where, finish
        self._rows: deque[Row] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._failure: Exception | None = None
        self._warned = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name=f"whorl: rows to {where}", daemon=True)
        self._thread.start()

    def add(self, row: Row) -> None:
        """Queue a row; never waits for the server."""
        with self._changed:
            if len(self._rows) >= WAITING:
                self._rows.popleft()
                self._dropped += 1
            self._rows.append(row)
            self._changed.notify()
        self._warn()

    def close(self) -> None:
        """Send what is left, for a limited time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(LAST_SECONDS)
        self._warn()
        with self._changed:
            lost = self._dropped + len(self._rows)
            self._rows.clear()  # the thread, if it still waits for an answer, ends after it
        if lost:
            messages.warn(
                f"{lost} rows of metrics did not reach {self._where}; metrics.jsonl has all of them",
                RuntimeWarning,
            )

    def _warn(self) -> None:
        if self._failure is not None and not self._warned:
            self._warned = True
            messages.warn(
                f"{self._where} did not take rows of metrics ({_reason(self._failure)}); training continues, and they "
                "are sent again later",
                RuntimeWarning,
            )

    def _run(self) -> None:
        failures = 0
        while batch := self._next():
            try:
                self._send(batch)
            except Exception as error:  # whatever happens in a server or client, training continues
                self._failure = error
                failures += 1
                if self._closing and failures >= LAST_ATTEMPTS:
                    return
            else:
                failures = 0
                self._remove(batch)
            self._wait(min(PAUSE * 2**failures, LONGEST_PAUSE))
        with suppress(Exception):
            self._finish()

    def _next(self) -> list[Row]:
        """The oldest rows; none when there will be no more."""
        with self._changed:
            while not self._rows and not self._closing:
                self._changed.wait()
            return list(self._rows)[:BATCH]

    def _remove(self, batch: Sequence[Row]) -> None:
        with self._changed:
            for row in batch:
                if self._rows and self._rows[0] is row:  # it may have been dropped meanwhile
                    self._rows.popleft()

    def _wait(self, seconds: float) -> None:
        """Let rows collect; not at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)


class HTTP(Logger):
    """POSTs rows of metrics as JSON to `http_url`: run, algorithm, env, seed, rows, and once the settings."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._url = settings.run.http_url
        parts = urlsplit(self._url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"http_url is {self._url!r}; the logger http needs an address that starts with http:// or https://"
            )
        refuse_credentials("http_url", self._url, f"the environment variable {HTTP_TOKEN}")
        self._about = {
            "run": folder.name,
            "algorithm": settings.algorithm,
            "env": settings.env,
            "seed": settings.run.seed,
        }
        self._settings: Mapping[str, Any] | None = settings.saved()
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._sender = Sender(self._post, f"{parts.scheme}://{parts.netloc}")

    def write(self, row: Row) -> None:
        self._sender.add(plain_row(row))

    def close(self) -> None:
        self._sender.close()

    def _post(self, rows: Sequence[Row]) -> None:
        body: dict[str, Any] = {**self._about, "rows": rows}
        if self._settings is not None:
            body["settings"] = self._settings
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get(HTTP_TOKEN):
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self._url, json.dumps(body, default=str).encode(), headers)
        with self._opener.open(request, timeout=TIMEOUT) as answer:
            answer.read()
        self._settings = None


class MLflow(Logger):
    """One MLflow run per run folder, with the settings as parameters; resuming the folder continues that run."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        refuse_credentials(
            "mlflow_uri",
            settings.run.mlflow_uri,
            "the environment variables MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        )
        try:
            import mlflow
            from mlflow import MlflowClient
            from mlflow.entities import Metric
            from mlflow.exceptions import MlflowException
        except ImportError:
            raise missing_extra("mlflow", "mlflow") from None
        uri = settings.run.mlflow_uri or mlflow.get_tracking_uri()
        # MLflow itself would try for minutes; rows are sent again anyway.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(int(TIMEOUT)))
        self._metric = Metric
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "mlflow_id"
        try:
            self._client: Any = MlflowClient(tracking_uri=uri)
            if kept.exists():
                self._id = kept.read_text().strip()
                self._client.update_run(self._id, status="RUNNING")
            else:
                self._id = self._create(folder.name, settings.run.mlflow_experiment)
                kept.write_text(self._id)
            self._log_settings(settings.saved())
        except (MlflowException, ImportError, OSError) as error:
            raise WhorlError(
                f"MLflow did not start ({_reason(error)}); set mlflow_uri to the address of a server, as in "
                "http://127.0.0.1:5000"
            ) from error
        where = f"MLflow at {urlsplit(uri).hostname or uri}"  # a password may be in MLFLOW_TRACKING_URI
        self._sender = Sender(self._send, where, lambda: self._client.set_terminated(self._id, "FINISHED"))

    def write(self, row: Row) -> None:
        self._sender.add({**row, "": time.time()})

    def close(self) -> None:
        self._sender.close()

    def _create(self, name: str, experiment: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        return str(self._client.create_run(number, run_name=name).info.run_id)

    def _log_settings(self, settings: Mapping[str, Any]) -> None:
        """Settings as parameters. MLflow never changes one, so what a resumed run changes becomes a tag."""
        from mlflow.entities import Param

        before = self._client.get_run(self._id).data.params
        params = {name: str(value)[:PARAM] for name, value in _flat(settings)}
        new = [Param(name, value) for name, value in params.items() if name not in before]
        for start in range(0, len(new), 100):  # what MLflow takes at once
            self._client.log_batch(self._id, params=new[start : start + 100])
        for name, value in params.items():
            if before.get(name, value) != value:
                self._client.set_tag(self._id, f"resumed/{name}", value)

    def _send(self, rows: Sequence[Row]) -> None:
        metrics = [
            self._metric(
                re.sub(r"[^\w/.\- ]", "_", key), float(value), int(1000 * float(row[""])), int(row["steps"])
            )
            for row in rows
            for key, value in row.items()
            if key and key != "steps" and not isinstance(value, str)
        ]
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(self._id, metrics=metrics[start : start + 1000])


PARAM = 500
"""characters of a parameter that every MLflow server takes"""


def refuse_credentials(name: str, url: str, instead: str) -> None:
    """Raise for an address with a password in it, which would be saved with the settings."""
    if "@" in urlsplit(url).netloc:
        raise ConfigError(
            f"{name} has a user or password in it, which would be saved with the run; use {instead}"
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is a failure: rows and token go to the address that the user named and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _flat(settings: Mapping[str, Any], start: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        path = f"{start}{name}"
        found += _flat(value, f"{path}.") if isinstance(value, Mapping) and value else [(path, value)]
    return found


def _reason(error: Exception) -> str:
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= 200 else f"{line[:200]} ..."


register("logger", "http", HTTP)
register("logger", "mlflow", MLflow)
