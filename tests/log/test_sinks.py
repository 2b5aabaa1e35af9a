"""Rows of metrics sent elsewhere: all arrive while a server answers, and nothing waits when it does not."""

import json
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import whorl
from whorl.cli.seeds import Job, train_seeds
from whorl.core.errors import ConfigError
from whorl.log import sinks
from whorl.log.sinks import HTTP, MLflow, Sender
from whorl.log.writers import Row
from whorl.run import reporting
from whorl.settings.merge import Settings, configure

SMALL = {"num_envs": 2, "num_steps": 16, "batch_size": 32, "max_iterations": 2, "log_freq": 1, "eval": False}


class Receiver:
    """A server on loopback that keeps what is posted; `statuses` are its next answers, then 200."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self.arrived = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = outer.statuses.pop(0) if outer.statuses else 200
                outer.headers.append(dict(self.headers))
                if status == 200:
                    outer.bodies.append(body)
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"http://{self.headers['Host']}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
                outer.arrived.set()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/rows"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for body in self.bodies for row in body["rows"]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "PAUSE", 0.001)
    monkeypatch.setattr(sinks, "LONGEST_PAUSE", 0.002)


def settings(**values: Any) -> Settings:
    return configure("ppo", "CartPole-v1", values)


def test_a_run_posts_all_of_its_rows_and_once_its_settings_without_secrets(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sinks.HTTP_TOKEN, "word-of-mine")
    result = whorl.train(
        "CartPole-v1", "ppo", SMALL, loggers=["http"], http_url=receiver.url, runs=str(tmp_path), quiet=True
    )
    written = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert receiver.rows == written
    assert receiver.bodies[0]["run"] == result.run_dir.name
    assert receiver.bodies[0]["settings"]["num_envs"] == 2
    assert [body for body in receiver.bodies[1:] if "settings" in body] == []
    assert {found["Authorization"] for found in receiver.headers} == {"Bearer word-of-mine"}
    assert "word-of-mine" not in json.dumps(receiver.bodies) + (result.run_dir / "config.yaml").read_text()


def test_secrets_among_settings_are_not_posted(receiver: Receiver, tmp_path: Path) -> None:
    chosen = settings(http_url=receiver.url, env_options={"api_key": "hush-hush"})
    logger = HTTP(tmp_path, chosen)
    logger.write({"steps": 1, "loss/actor": float("nan")})
    logger.close()
    assert receiver.bodies[0]["settings"]["env_options"] == {"api_key": "<not saved>"}
    assert receiver.rows == [{"steps": 1, "loss/actor": "nan"}]


def test_a_batch_that_failed_is_sent_again_in_order_with_one_warning(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.statuses = [500, 302]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        logger = HTTP(tmp_path, settings(http_url=receiver.url))
        logger.write({"steps": 0})
        assert receiver.arrived.wait(600)
        for steps in range(1, 500):
            logger.write({"steps": steps})
        logger.close()
    assert [row["steps"] for row in receiver.rows] == list(range(500))
    assert len(receiver.bodies) >= 3  # batches of limited size
    assert len(caught) == 1 and "training continues" in str(caught[0].message)


def test_a_server_that_is_not_there_neither_stops_nor_fails_training(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = whorl.train(
            *("CartPole-v1", "ppo", SMALL),
            loggers=["http"],
            http_url="http://127.0.0.1:9",
            runs=str(tmp_path),
            quiet=True,
        )
    assert result.iterations == 2
    told = [str(one.message) for one in caught if "127.0.0.1:9" in str(one.message)]
    assert len(told) == 2 and "did not take" in told[0] and "did not reach" in told[1]


def test_writing_does_not_wait_for_a_server_that_hangs_and_the_queue_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sinks, "WAITING", 5)
    monkeypatch.setattr(sinks, "LAST_SECONDS", 0.01)
    entered, released = threading.Event(), threading.Event()

    def hang(rows: Sequence[Row]) -> None:
        entered.set()
        released.wait()

    sender = Sender(hang, "nowhere")
    for steps in range(50):
        sender.add({"steps": steps})
    assert entered.wait(600)
    assert len(sender._rows) == 5
    with pytest.warns(RuntimeWarning, match="50 rows of metrics did not reach nowhere"):
        sender.close()
    released.set()


@pytest.mark.parametrize("url", ["", "ftp://a/b", "127.0.0.1:80"])
def test_the_http_logger_needs_an_address(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="http_url"):
        HTTP(tmp_path, settings(http_url=url))


@pytest.mark.parametrize(("logger", "name"), [(HTTP, "http_url"), (MLflow, "mlflow_uri")])
def test_a_password_in_an_address_is_refused(logger: Any, name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="environment variable"):
        logger(tmp_path, settings(**{name: "http://me:secret@127.0.0.1/"}))


@pytest.mark.full
def test_mlflow_gets_parameters_and_metrics_and_a_resumed_run_continues_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    uri = (tmp_path / "tracking").as_uri()
    chosen = {"mlflow_uri": uri, "mlflow_experiment": "carts", "env_options": {"api_key": "hush-hush"}}
    folder = tmp_path / "PPO_1"
    for steps, total in ((100, 1000), (200, 2000)):
        logger = MLflow(folder, settings(total_timesteps=total, **chosen))
        logger.write({"steps": steps, "episode/return": steps / 2, "note": "text"})
        logger.close()
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("carts")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 1 and runs[0].info.run_name == "PPO_1" and runs[0].info.status == "FINISHED"
    history = client.get_metric_history(runs[0].info.run_id, "episode/return")
    assert [(metric.step, metric.value) for metric in history] == [(100, 50.0), (200, 100.0)]
    params = runs[0].data.params
    assert params["algorithm"] == "ppo" and params["env_options.api_key"] == "<not saved>"
    assert params["total_timesteps"] == "1000" and runs[0].data.tags["resumed/total_timesteps"] == "2000"


def test_wandb_gets_group_tags_and_job_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = told_to_wandb(monkeypatch)
    chosen = settings(use_wandb=True, wandb_group="carts", wandb_tags=["a", "b"], wandb_job_type="tune")
    reporting.Reporting(tmp_path, chosen).log.close()
    assert seen == [("carts", ("a", "b"), "tune")]


def test_the_seeds_of_a_command_share_a_group_unless_the_user_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = told_to_wandb(monkeypatch)
    own = tmp_path / "own.yaml"
    own.write_text("wandb_group: mine\n")
    common = {**SMALL, "max_iterations": 1, "use_wandb": True, "runs": str(tmp_path), "quiet": True}
    assert train_seeds(Job("ppo", "CartPole-v1", common), [1, 2], 1) == 0
    assert train_seeds(Job("ppo", "CartPole-v1", common, [str(own)]), [1, 2], 1) == 0
    groups = [group for group, *_ in seen]
    assert groups[0] == groups[1] and groups[0].startswith("ppo_CartPole-v1_")
    assert groups[2:] == ["mine", "mine"]


def told_to_wandb(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the W&B logger is made with, without W&B."""
    seen: list[tuple[Any, ...]] = []

    class Fake(whorl.Logger):
        def __init__(self, *given: Any) -> None:
            seen.append(given[6:])

        def artifact(self, path: Path, name: str) -> None:
            assert path.is_file()

    monkeypatch.setattr(reporting, "WandB", Fake)
    return seen
