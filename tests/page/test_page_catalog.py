"""Runs are found, summed up and looked at again; nothing outside the folder is read, no secret is kept."""

import os
from pathlib import Path

import pytest
import yaml
from page_runs import CONFIG, make_run, own, row, write_rows

from whorl.core.errors import WhorlError
from whorl.page.catalog import Catalog, read_settings
from whorl.page.details import details, log_tail, map_names, map_picture, media
from whorl.settings.secrets import HIDDEN


def catalog_of(root: Path) -> Catalog:
    found = Catalog(root)
    found.refresh()
    return found


def test_runs_of_sweeps_and_populations_are_found(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "sweep" / "trial_1" / "seed_1")
    (tmp_path / "sweep" / "study.db").write_bytes(b"SQLite format 3\0")
    population = tmp_path / "evolve"
    make_run(population / "learner_0")
    (population / "population.yaml").write_text(
        "population: {rule: pbt}\nlearners: {algorithm: sac, env: Ant-v5}\n"
    )
    (population / "lineage.jsonl").write_text("{}\n")
    make_run(tmp_path / "a" / "checkpoint_1")  # a checkpoint holds config.yaml too
    (tmp_path / "notes").mkdir()
    entries = catalog_of(tmp_path).entries
    assert set(entries) == {"a", "sweep/trial_1/seed_1", "evolve", "evolve/learner_0"}
    assert entries["evolve"].population
    assert (entries["evolve"].algorithm, entries["evolve"].env) == ("sac", "Ant-v5")
    assert entries["evolve/learner_0"].parent == "evolve"
    assert set(catalog_of(tmp_path / "a").entries) == {"a"}  # the folder of one run


def test_a_row_says_how_far_a_run_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", rows=50, evaluation__return=7.0)
    found = catalog_of(tmp_path).entries["a"].row
    assert (found["state"], found["steps"], found["share"], found["left"]) == ("stopped", 500, 0.5, None)
    assert (found["return"], found["evaluated"], found["seed"]) == (7.0, True, 1)
    own(run, os.getpid())
    running = catalog_of(tmp_path).entries["a"].row
    assert running["state"] == "running"
    assert running["left"] == pytest.approx(500 / 100)  # 100 steps a second
    (run / "run.lock").unlink()
    write_rows(run, [row(1000)])
    assert catalog_of(tmp_path).entries["a"].row["state"] == "finished"


def test_limits_that_were_raised_are_those_of_the_newest_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", rows=100)
    catalog = catalog_of(tmp_path)
    assert catalog.entries["a"].row["state"] == "finished"
    own(run, os.getpid())
    write_rows(run, [row(1010)])
    catalog.refresh()
    assert catalog.entries["a"].row["left"] is None
    for number, limit in ((9, 500), (10, 2000)):
        make_run(run / f"checkpoint_{number}", rows=0, config={"total_timesteps": limit, "actor_lr": 5.0})
    catalog.refresh()
    found = catalog.entries["a"]
    assert found.row["share"] == 1010 / 2000
    assert found.row["left"] == pytest.approx(9.9)
    assert found.config["actor_lr"] == 0.001


def test_several_behaviours_give_one_return(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", rows=0)
    write_rows(run, [{"steps": 5, "hunter/episode/return": 2.0, "prey/episode/return": -4.0}])
    assert catalog_of(tmp_path).entries["a"].row["return"] == -1.0


def test_changes_are_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    catalog = catalog_of(tmp_path)
    version = catalog.version
    catalog.refresh()
    assert catalog.version == version
    write_rows(run, [row(600)])
    catalog.refresh()
    changed = [entry.name for entry in catalog.entries.values() if entry.version > version]
    assert changed == ["a"]
    assert catalog.names_version <= version
    (tmp_path / "b" / "config.yaml").unlink()
    (tmp_path / "b" / "metrics.jsonl").unlink()
    catalog.refresh()
    assert set(catalog.entries) == {"a"}
    assert catalog.names_version == catalog.version


def test_an_owner_that_died_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "a")
    own(run, os.getpid())
    catalog = catalog_of(tmp_path)
    assert catalog.entries["a"].row["state"] == "running"
    monkeypatch.setattr("whorl.state.runlock._start_of", lambda pid: "")
    catalog.refresh()
    assert catalog.entries["a"].row["state"] == "stopped"


def test_broken_files_break_only_their_run(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    broken = make_run(tmp_path / "b")
    (broken / "config.yaml").write_bytes(b"a: [1\n\xff")
    (broken / "metrics.jsonl").write_bytes(b'\0\0\0\n{"steps": 1')
    (broken / "map.npz").write_bytes(b"no archive")
    make_run(tmp_path / "c", config={"total_timesteps": "many", "env": None})
    catalog = catalog_of(tmp_path)
    assert set(catalog.entries) == {"a", "b", "c"}
    assert details(catalog.entries["b"])["settings"] == {}
    assert map_names(catalog.entries["b"]) == []


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "runs", make_run(tmp_path / "outside")
    (outside / "secret.gif").write_bytes(b"GIF89a")
    (outside / "log.txt").write_text("outside\n")
    run = make_run(root / "a")
    (root / "linked").symlink_to(outside)
    (run / "videos").symlink_to(outside)
    (run / "b.gif").symlink_to(outside / "secret.gif")
    (run / "log.txt").symlink_to(outside / "log.txt")
    (run / "map.npz").symlink_to(outside / "map.npz")
    make_run(root / "c", rows=0)
    (root / "c" / "metrics.jsonl").unlink()
    (root / "c" / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    entries = catalog_of(root).entries
    assert set(entries) == {"a", "c"}
    assert media(entries["a"]) == []
    assert log_tail(entries["a"])[0] == "metrics.jsonl"
    assert entries["c"].row["steps"] is None


def test_settings_are_read_as_yaml_reads_them() -> None:
    text = yaml.safe_dump(
        {**CONFIG, "text": "a: b\n- c\n", "long": "word " * 60, "none": None, "empty": {}}, sort_keys=False
    )
    assert read_settings(text) == yaml.safe_load(text)
    shared = [1, 2]
    anchored = yaml.safe_dump({"a": shared, "b": shared})
    assert "&id001" in anchored
    assert read_settings(anchored) == {"a": [1, 2], "b": [1, 2]}


def test_secrets_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "k-1234567890")
    run = make_run(tmp_path / "a", config={"env_options": {"api_key": "hunter2hunter2", "size": 3}})
    (run / "log.txt").write_text(
        "token=hunter3 given\nwith k-1234567890\nprogress 1%\rprogress 2%\n\x1b[1mbold\x1b[0m\n"
    )
    entry = catalog_of(tmp_path).entries["a"]
    found = details(entry)
    assert found["settings"]["env_options.api_key"] == HIDDEN
    assert found["settings"]["env_options.size"] == "3"
    text = str(found)
    assert not any(word in text for word in ("hunter2", "hunter3", "k-1234567890"))
    assert found["log"]["lines"][-2:] == ["progress 2%", "bold"]


def test_maps_are_pictures(tmp_path: Path) -> None:
    from page_runs import add_pictures

    add_pictures(make_run(tmp_path / "a"))
    entry = catalog_of(tmp_path).entries["a"]
    assert map_names(entry) == ["visits", "rnd"]
    assert map_picture(entry, "visits").startswith(b"\x89PNG")
    assert [item["path"] for item in media(entry)] == ["videos/newest_seed1.gif"]
    with pytest.raises(WhorlError, match="no map 'nothing'"):
        map_picture(entry, "nothing")


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(WhorlError, match=r"there is no folder .*nowhere; name the folder"):
        Catalog(tmp_path / "nowhere")
