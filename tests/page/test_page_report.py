"""A report is one file that needs nothing else and shows no secret."""

import json
import re
from pathlib import Path

import pytest
from page_runs import add_pictures, make_run

from whorl.cli import main
from whorl.core.errors import WhorlError
from whorl.log.groups import STYLE
from whorl.page.report import write_report

pytest.importorskip("plotly")
OWN = re.compile(r"<script>/\*\*.*?plotly\.js.*?</script>", re.DOTALL)


def test_a_report_holds_curves_pictures_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    add_pictures(
        make_run(runs / "a", config={"tag": "</script><b>", "env_options": {"token": "hunter2hunter2"}})
    )
    make_run(runs / "b", config={"seed": 2}, system__load=0.5)
    assert main(["report", "a", "runs/b", "--output", "out/r.html"]) == 0
    assert capsys.readouterr().out.strip() == "out/r.html"
    text = (tmp_path / "out" / "r.html").read_text("utf-8")
    found = re.search(r'<script type="application/json" id="whorl-data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert [row["name"] for row in data["runs"]["rows"]] == ["a", "b"]
    assert data["curves"]["|steps|episode/return"]["panels"][0]["groups"][0]["seeds"] == 2
    assert data["curves"]["|time|episode/return"]["panels"]
    assert data["curves"]["b|steps|system/load"]["panels"]
    assert data["files"]["a|videos/newest_seed1.gif"].startswith("data:image/gif;base64,R0lGOD")
    assert data["files"]["a|map|rnd"].startswith("data:image/png;base64,")
    assert data["details"]["a"]["row"]["tag"] == "</script><b>"
    assert "hunter2" not in text
    rest = OWN.sub("", text)
    assert len(rest) < len(text) - 1_000_000  # the plotting library is in it
    assert "http:" not in rest and "https:" not in rest and "src=" not in rest.replace("img-src", "")
    assert rest.count("</script>") == 2


def test_mistakes_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", rows=0)
    with pytest.raises(WhorlError, match=r"'r\.pdf'; end the name in \.html"):
        write_report([run], tmp_path / "r.pdf", STYLE)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(WhorlError, match="no rows of metrics yet"):
        write_report([run], tmp_path / "r.html", STYLE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(WhorlError, match="there is no run in"):
        write_report([tmp_path / "empty"], tmp_path / "r.html", STYLE)


def test_commands_say_what_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 2
    assert "name at least one run: whorl report RUN" in capsys.readouterr().err
    assert main(["serve", "a", "b"]) == 2
    assert "serve takes one folder of runs, but got 'a' and 'b'" in capsys.readouterr().err
    assert main(["serve", "nowhere"]) == 2
    assert "there is no folder nowhere" in capsys.readouterr().err
    assert main(["serve", "--help"]) == 0
    assert "--port" in capsys.readouterr().out
