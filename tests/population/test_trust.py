"""What the folder of a population names is imported only if it is trusted."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import whorl
from whorl.core.errors import ConfigError
from whorl.population.evolver import CONFIG, LEARNERS, LINEAGE
from whorl.population.load import load_population

LOGGER = """
from whorl.log.writers import Logger
class Foo(Logger):
    def __init__(self, run_dir, settings): (run_dir / "logged").touch()
"""


@pytest.mark.parametrize("where", ["loggers", "encoder", "random_params", "lineage"])
def test_a_tampered_population_imports_nothing_until_it_is_trusted(
    where: str, small: dict[str, Any], inline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"evil_{where}"
    (tmp_path / f"{module}.py").write_text(LOGGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    evolver = load_population({**small, "population": 2, "generations": 1})
    evolver._save_config()
    config = evolver.folder / CONFIG
    found = yaml.safe_load(config.read_text())
    part = {"class": f"{module}.Foo"}
    if where == "loggers":
        found[LEARNERS]["loggers"] = [f"{module}.Foo"]
    elif where == "encoder":
        found[LEARNERS]["encoder"] = part
    elif where == "random_params":
        found["random_params"] = {"encoder": [part, part]}
    else:
        row = {"generation": 1, "slot": 0, "learner": 0, "age": 1, "score": 1.0, "params": {"encoder": part}}
        row |= {"origin": "new", "parents": [], "steps": 64, "selected": True, "note": ""}
        (evolver.folder / LINEAGE).write_text(json.dumps(row))
    config.write_text(yaml.safe_dump(found))
    with pytest.raises(ConfigError, match=rf"trust=\['{module}\.Foo'\]"):
        whorl.resume(evolver.folder)
    assert module not in sys.modules
    if where == "loggers":
        whorl.resume(evolver.folder, trust=[module])
        assert (evolver.folder / "learner_0" / "logged").exists()
