"""The server: who may ask, what is answered, and that no path leads out of the folder of runs."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from page_runs import add_pictures, make_run, own, row, write_rows

from whorl.cli import main
from whorl.core.errors import ConfigError, WhorlError
from whorl.page import assets, guard
from whorl.page.server import FIRST_RUNS, Desk, listen, make_app

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
TOKEN = "correct-horse"
HERE = "http://127.0.0.1:8765"


def client_of(
    root: Path, everywhere: bool = False, base: str = HERE, trust: tuple[str, ...] = ()
) -> tuple[Any, Desk]:
    from starlette.testclient import TestClient

    app, desk = make_app(root, TOKEN, everywhere=everywhere, trust=trust)
    desk.catalog.refresh()
    return TestClient(app, base, follow_redirects=False), desk


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    root = tmp_path / "runs"
    add_pictures(make_run(root / "a"))
    make_run(root / "b", config={"seed": 2})
    (tmp_path / "outside.png").write_bytes(b"outside")
    (root / "outside.gif").write_bytes(b"not of a run")
    (root / "a" / "config.png.yaml").write_text("x: 1")
    with client_of(root)[0] as found:
        yield found


def signed(client: Any) -> dict[str, str]:
    """Headers of a request that the page itself makes."""
    return {guard.HEADER: TOKEN, "origin": str(client.base_url)}


def post(client: Any, path: str, body: Any, **headers: str) -> Any:
    return client.post(path, json=body, headers={**signed(client), **headers})


def test_the_address_that_was_printed_opens_the_page_and_is_remembered(client: Any) -> None:
    assert client.get("/").status_code == 403
    assert client.get("/?token=wrong").status_code == 403
    page = client.get(f"/?token={TOKEN}")
    assert page.status_code == 200
    cookie = page.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert client.get("/").status_code == 200
    assert client.get("/api/runs").status_code == 200
    client.cookies.clear()
    for path in (
        "/api/runs",
        "/api/run?name=a",
        "/file?run=a&path=videos/newest_seed1.gif",
        "/static/page.js",
    ):
        assert client.get(path).status_code == 403, path


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1.evil.example:8765",
        "192.168.1.7:8765",
        "",
        "localhost.evil",
    ],
)
def test_other_names_for_this_machine_are_refused(client: Any, host: str) -> None:
    assert client.get(f"/?token={TOKEN}", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1", "[::1]:9000", "LOCALHOST:1"])
def test_names_of_the_loopback_interface_are_known(client: Any, host: str) -> None:
    assert client.get(f"/?token={TOKEN}", headers={"host": host}).status_code == 200


def test_a_server_for_other_machines_is_called_by_address(tmp_path: Path) -> None:
    client, _ = client_of(tmp_path, everywhere=True)
    ask = lambda host: client.get(f"/?token={TOKEN}", headers={"host": host}).status_code  # noqa: E731
    assert (ask("192.168.1.7:8765"), ask(socket.gethostname())) == (200, 200)
    assert ask("evil.example") == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:8765", "http://127.0.0.1:9999"]
)
def test_foreign_origins_are_refused(client: Any, origin: str) -> None:
    assert client.get(f"/api/runs?token={TOKEN}", headers={"origin": origin}).status_code == 403
    for path in ("/api/stop", "/api/resume", "/api/curves"):
        answer = post(client, path, {"name": "a"}, origin=origin)
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


def test_cookies_of_other_programs_are_no_obstacle(client: Any) -> None:
    cookie = client.get(f"/?token={TOKEN}").headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    assert client.get("/api/runs", headers={"cookie": 'theme={"a":1}; ' + cookie}).status_code == 200
    assert client.get("/api/runs", headers={"cookie": "x" + cookie}).status_code == 403


def test_a_number_that_is_none_is_no_error(client: Any) -> None:
    assert client.get(f"/api/runs?since=%C2%B2&token={TOKEN}").status_code == 200


def test_what_changes_something_needs_the_token_as_a_header(client: Any) -> None:
    client.get(f"/?token={TOKEN}")  # now there is a cookie
    for path in ("/api/stop", "/api/resume"):
        for headers in ({}, {"origin": HERE}, {guard.HEADER: TOKEN}, {guard.HEADER: "wrong", "origin": HERE}):
            assert client.post(path, json={"name": "a"}, headers=headers).status_code == 403, headers
        assert client.get(path).status_code == 405
    assert client.options("/api/stop", headers={"origin": "http://evil.example"}).status_code == 403


def test_requests_of_other_sites_are_refused(client: Any) -> None:
    client.get(f"/?token={TOKEN}")
    headers = {"sec-fetch-site": "cross-site"}
    assert client.get("/file?run=a&path=videos/newest_seed1.gif", headers=headers).status_code == 403


def test_every_answer_has_a_policy_that_loads_nothing_from_elsewhere(client: Any) -> None:
    for path in (f"/?token={TOKEN}", "/api/runs", "/api/run?name=nothing", "/static/page.js", "/nothing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "http" not in policy and "unsafe-eval" not in policy and "script-src 'self';" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"]


ESCAPES = [
    "../outside.png",
    "../../outside.png",
    "..%2f..%2foutside.png",
    "%2e%2e/%2e%2e/outside.png",
    "..\\..\\outside.png",
    "videos/../../../outside.png",
    "/etc/passwd",
    "//etc/passwd",
    "file:///etc/passwd",
    "videos/newest_seed1.gif\0.png",
    "config.yaml",
    "metrics.jsonl",
    "config.png.yaml",
    "",
    ".",
]


def test_no_path_leads_out_of_a_run(client: Any, tmp_path: Path) -> None:
    client.get(f"/?token={TOKEN}")
    (tmp_path / "runs" / "a" / "link.png").symlink_to(tmp_path / "outside.png")

    def status(path: str) -> int:
        return client.get(path).status_code

    for path in [*ESCAPES, str(tmp_path / "outside.png"), "link.png"]:
        for written in {quote(path, safe="/"), quote(path, safe=""), quote(quote(path, safe=""), safe="")}:
            assert status(f"/file?run=a&path={written}") == 404, written
        assert status(f"/file?run={written}&path=videos/newest_seed1.gif") == 404, written
        assert status(f"/map?run={written}&name=visits") == 404, written
        assert status(f"/static/{written}") == 404, written
        assert status(f"/static/..%2f{written}") == 404, written
    assert status("/api/run?name=../runs/a") == 404
    assert status("/file?run=a&path=videos/newest_seed1.gif") == 200


def test_runs_are_sent_once_and_then_what_changed(client: Any, tmp_path: Path) -> None:
    client, desk = client_of(tmp_path / "runs")
    client.get(f"/?token={TOKEN}")
    first = client.get("/api/runs").json()
    assert {one["name"] for one in first["rows"]} == {"a", "b"}
    assert first["names"] == ["a", "b"]
    assert 0 <= first["machine"]["cpu"] <= 1 and 0 < first["machine"]["memory"] < 1
    known = {"server": first["server"], "since": first["version"]}
    assert client.get("/api/runs", params=known).json()["rows"] == []
    write_rows(tmp_path / "runs" / "b", [row(700)])
    desk._looked = float("-inf")
    changed = client.get("/api/runs", params=known).json()
    assert [(one["name"], one["steps"]) for one in changed["rows"]] == [("b", 700)]
    assert "names" not in changed
    other = client.get("/api/runs", params={**known, "server": "another"}).json()
    assert len(other["rows"]) == 2
    assert client.get("/api/runs?since=x").status_code == 200


def test_folders_are_looked_at_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, looks = Desk(tmp_path), []
    monkeypatch.setattr(desk.catalog, "refresh", lambda: looks.append(1))
    for _ in range(5):
        desk.runs("", -1)
    assert looks == [1]


def test_curves_and_details_are_answered(client: Any) -> None:
    client.get(f"/?token={TOKEN}")
    found = post(
        client, "/api/curves", {"runs": ["a", "b", "../a", 3], "metric": "episode/return", "x": "time"}
    ).json()
    assert found["panels"][0]["groups"][0]["runs"] == ["a", "b"]
    detail = client.get("/api/run?name=a").json()
    assert detail["maps"] == ["visits", "rnd"]
    assert [item["path"] for item in detail["media"]] == ["videos/newest_seed1.gif"]
    assert detail["log"]["name"] == "metrics.jsonl"
    assert client.get("/map?run=a&name=rnd").content.startswith(b"\x89PNG")
    gif = client.get("/file?run=a&path=videos/newest_seed1.gif", headers={"range": "bytes=0-5"})
    assert (gif.status_code, gif.content) == (206, b"GIF89a")


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"[]", 400, "JSON object"),
        (b"{", 400, "JSON object"),
        (b'{"runs": 3}', 409, "list of names"),
        (b'{"runs": [], "band": "wide"}', 409, "band"),
        (b'"' + b"x" * (2 << 20) + b'"', 413, "too large"),
    ],
)
def test_mistakes_are_answered_by_a_sentence(client: Any, body: bytes, status: int, word: str) -> None:
    answer = client.post("/api/curves", content=body, headers=signed(client))
    assert answer.status_code == status
    assert word in answer.json()["error"]


def test_stop_sends_sigterm_to_the_owner(client: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    assert "not running" in post(client, "/api/stop", {"name": "a"}).json()["error"]
    assert "no run '../a'" in post(client, "/api/stop", {"name": "../a"}).json()["error"]
    program = (
        "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(7))\nprint(flush=True)\nsignal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        own(run, process.pid, host="elsewhere", boot="another", machine="another")
        assert "stop it there" in post(client, "/api/stop", {"name": "a"}).json()["error"]
        assert process.poll() is None
        own(run, process.pid)
        assert "is being trained by" in post(client, "/api/resume", {"name": "a"}).json()["error"]
        assert post(client, "/api/stop", {"name": "a"}).json() == {"state": "stopping"}
        assert process.wait(600) == 7


def test_a_learner_is_stopped_with_its_population(tmp_path: Path) -> None:
    make_run(tmp_path / "p" / "learner_0")
    (tmp_path / "p" / "population.yaml").write_text("population: {}\n")
    client, _ = client_of(tmp_path)
    own(tmp_path / "p" / "learner_0", os.getpid())
    assert post(client, "/api/stop", {"name": "p/learner_0"}).json()["error"] == "p is not running"


def wait_for_state(client: Any, desk: Desk, name: str, state: str) -> dict[str, Any]:
    """The row of a run once it is in a state."""
    while True:
        desk._looked = float("-inf")
        rows = {one["name"]: one for one in client.get("/api/runs").json()["rows"]}
        if rows[name]["state"] == state or rows[name].get("error"):
            return rows[name]
        time.sleep(0.02)


def test_resume_starts_a_process_with_its_log_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@"\nread nothing\necho "whorl: the disk is full"\nexit 2\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    run = make_run(tmp_path / "runs" / "a")
    client, desk = client_of(tmp_path / "runs")
    client.get(f"/?token={TOKEN}")
    answer = post(client, "/api/resume", {"name": "a", "total_timesteps": 5000}).json()
    assert os.getsid(answer["pid"]) == answer["pid"] or not os.path.exists(f"/proc/{answer['pid']}")
    found = wait_for_state(client, desk, "a", "nothing")
    assert found["error"] == "whorl: the disk is full"
    words = f"-m whorl resume {run.resolve()} --total-timesteps 5000"
    assert (run / "resume.log").read_text().splitlines()[0] == words
    assert (
        "whole number" in post(client, "/api/resume", {"name": "a", "total_timesteps": "1"}).json()["error"]
    )


def test_a_resumed_run_may_load_what_the_server_was_told_to_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@"\nexit 2\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    run = make_run(tmp_path / "runs" / "a")
    client, desk = client_of(tmp_path / "runs", trust=("my_env.py", "nets.Residual"))
    client.get(f"/?token={TOKEN}")
    post(client, "/api/resume", {"name": "a"})
    wait_for_state(client, desk, "a", "nothing")
    words = f"-m whorl resume {run.resolve()} --trust my_env.py nets.Residual"
    assert (run / "resume.log").read_text() == f"{words}\n"


def test_the_hash_of_one_runs_code_is_not_for_all_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    with pytest.raises(ConfigError, match="'code:0123456789abcdef', the hash of one run's code"):
        client_of(tmp_path / "runs", trust=("my_env.py", "code:0123456789abcdef"))


def test_the_log_of_a_resumed_run_is_not_written_through_a_link(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a")
    (tmp_path / "target").write_text("")
    (run / "resume.log").symlink_to(tmp_path / "target")
    client, _ = client_of(tmp_path / "runs")
    assert "resume.log" in post(client, "/api/resume", {"name": "a"}).json()["error"]


def test_the_next_free_port_is_taken() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with listen("127.0.0.1", port) as second:
            assert port < second.getsockname()[1] <= port + 50
    with pytest.raises(WhorlError, match="not an address of this machine"):
        listen("203.0.113.9", 8765)


@pytest.mark.parametrize(("words", "address"), [([], "127.0.0.1"), (["--host", "0.0.0.0"], "0.0.0.0")])
def test_the_page_listens_on_loopback_alone_unless_asked(
    words: list[str], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvicorn, found = pytest.importorskip("uvicorn"), []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: found.extend(addresses(sockets)))
    assert main(["serve", str(tmp_path), "--port", "0", *words]) == 0
    assert found == [address]


def addresses(sockets: list[socket.socket]) -> list[str]:
    return [
        each.getsockname()[0] for each in sockets if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ]


def test_files_of_the_page_name_no_other_host() -> None:
    for name in ("page.html", "page.css", "page.js"):
        assert "//" not in assets.text_of(name).replace("// ", ""), name


def test_missing_packages_name_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    with pytest.raises(WhorlError, match=r"starlette is not installed; install it with: .*\[serve\]"):
        make_app(tmp_path, TOKEN)
    monkeypatch.setattr(assets, "find_spec", lambda name: None)
    with pytest.raises(WhorlError, match=r"plotly is not installed; .*\[serve\]"):
        assets.plotly_script()


def test_the_newest_runs_are_read_before_a_page_asks(tmp_path: Path) -> None:
    for number in range(FIRST_RUNS + 3):
        path = make_run(tmp_path / f"run_{number}") / "metrics.jsonl"
        os.utime(path, (1000 + number, 1000 + number))
    desk = Desk(tmp_path)
    desk.prepare()
    read = {name for name, _, metric in desk.curves._series if metric == "episode/return"}
    assert read == {f"run_{number}" for number in range(3, FIRST_RUNS + 3)}
