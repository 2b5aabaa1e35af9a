"""The documentation follows from the source: generated regions are fresh, pages exist, links lead somewhere."""

import importlib.util
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import whorl
from whorl.core import registry
from whorl.population.config import EvolveConfig
from whorl.settings.aliases import translated
from whorl.settings.merge import settings_of
from whorl.settings.presets import algorithm_class
from whorl.settings.schema import fields_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *DOCS.rglob("*.md")])
FENCE = re.compile(r"^(```+).*?^\1$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OUTSIDE = ("http://", "https://", "mailto:")


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()


def shipped() -> list[str]:
    """The algorithms of the package, without those that other tests registered."""
    return sorted(set(whorl.algorithms()) - set(registry.registered("algorithm")))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text("utf-8")))


def anchors(page: Path) -> set[str]:
    """The fragments under which a page's headings are found."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_keywords_for_editors_are_fresh() -> None:
    assert generate.KEYWORDS.read_text("utf-8") == generate.keywords(), "run python docs/generate.py"


@pytest.mark.parametrize("page", generate.pages(), ids=name_of)
def test_generated_regions_are_fresh(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.count("<!-- generated: ") == text.count("<!-- end generated -->")
    assert text == generate.rendered(page), "the page is stale; run python docs/generate.py"


@pytest.mark.parametrize("name", shipped())
def test_every_algorithm_has_a_page_with_all_its_parts(name: str) -> None:
    page = DOCS / "algorithms" / f"{name}.md"
    assert page.is_file(), f"write {name_of(page)}"
    text = page.read_text("utf-8")
    preset = algorithm_class(name)[2]
    # A preset of another algorithm shows what it adds, which may be a component or a network.
    own = preset["rule"].split(".")[-2] == name
    shown = f"{preset['rule']} " if own else "whorl."
    for region in (f"code {shown}", f"settings {name} ", f"presets {name} ", f"results {name} "):
        assert f"<!-- generated: {region}" in text, f"{name_of(page)} has no region {region!r}"
    headings = re.findall(r"^## (.+)$", FENCE.sub("", text), re.M)
    parts = ["When to use it", "The code", "Settings", "Differs from the paper", "Presets", "Results"]
    assert [heading for heading in headings if heading in parts] == parts


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith(OUTSIDE):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if fragment and target.suffix == ".md":
            assert fragment in anchors(target), f"{name_of(target)} has no heading {fragment!r}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_table_has_a_header(page: Path) -> None:
    """Rows after an empty line are shown as text."""
    for block in re.split(r"\n\s*\n", FENCE.sub("", page.read_text("utf-8"))):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert not rows or re.fullmatch(r"\|[-| :]+\|", rows[1:2][0] if rows[1:] else ""), rows[0]


def test_the_site_builds_without_warnings_and_needs_no_other_host(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings_handlers", "latex2mathml"):
        pytest.importorskip(package, reason="pip install -e '.[docs]'")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    formulas = (tmp_path / "algorithms" / "ngu.html").read_text("utf-8")
    assert "$\\beta_i$" in (DOCS / "algorithms" / "ngu.md").read_text("utf-8")
    assert "$" not in re.sub(r"<(script|pre|code).*?</\1>", "", formulas, flags=re.S), (
        "a formula is shown as text"
    )
    for page in pages:
        foreign = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?https?:[^>]*>", page.read_text("utf-8")
        )
        assert not foreign, f"{page.name}: {foreign[0]}"


def test_every_page_is_reached_from_the_index() -> None:
    seen: set[Path] = set()
    queue = [DOCS / "index.md"]
    while queue:
        page = queue.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(prose(page)) if not link.startswith(OUTSIDE))
        queue += [(page.parent / link).resolve() for link in links if link]
    assert not {name_of(page) for page in DOCS.rglob("*.md")} - {name_of(page) for page in seen}


SETTINGS = [
    *(
        settings_of(algorithm_class(name)[1])
        for name in (
            "ppo",
            "ppg",
            "impala",
            "a2c",
            "td3",
            "sac",
            "tqc",
            "dqn",
            "c51",
            "qr_dqn",
            "iqn",
            "pqn",
            "agent57",
        )
    ),
    fields_of(EvolveConfig),
]


def rows_of_settings(text: str) -> list[tuple[str, str]]:
    """First and second column of the tables whose second column is `Whorl setting`; `the same` repeats the first."""
    tables = re.findall(r"^\|[^|\n]*\| Whorl setting \|.*\n\|[-| ]+\n((?:\|.*\n)+)", text, re.M)
    rows = [line.split("|")[1:3] for table in tables for line in table.splitlines()]
    return [(first, first if second.strip() == "the same" else second) for first, second in rows]


@pytest.mark.parametrize("page", sorted((DOCS / "coming_from").glob("*.md")), ids=name_of)
def test_every_setting_of_another_library_is_mapped_as_its_page_says(page: Path) -> None:
    for first, second in rows_of_settings(page.read_text("utf-8")):
        theirs, ours = (re.findall(r"`([^`]+)`", cell) for cell in (first, second))
        assert ours or second.strip() == "–", second
        for name in ours:
            if ":" in name:  # to be set under our name
                name = name.partition(":")[0]
                assert name in ("env_options", "components") or any(name in hints for hints in SETTINGS), name
                for alias, hints in itertools.product(filter(str.isidentifier, theirs), SETTINGS):
                    taken = translated(alias, 1, hints).keys() & hints.keys()
                    ours_too = alias in hints or name not in hints
                    assert ours_too or not taken or name in taken, f"{alias} is taken as {taken}"
            else:
                found = [
                    translated(alias, value, hints)
                    for alias in theirs
                    for value in (1, True)
                    for hints in SETTINGS
                    if name in hints
                ]
                assert any(name in settings for settings in found), f"{theirs} is not taken as {name}"


def test_settings_stand_on_one_page_and_presets_are_linked() -> None:
    page = DOCS / "algorithms" / "page.md"
    assert generate.list_settings(page, "droq") == "Those of [`sac`](sac.md#settings)."
    assert "| `clip_range` | `0.2` |" in generate.list_settings(page, "ppo")
    shared = generate.list_settings(page, "pqn").splitlines()[-1]
    headings = ("Exploration", "Q-networks", "Training loop")
    links = (f"[{name}](../configuration.md#{name.lower().replace(' ', '-')})" for name in headings)
    assert shared == f"Also: {', '.join(links)}."
    assert "| `num_envs`" not in generate.list_settings(page, "ppo"), "a setting of the training loop"
    text = generate.list_presets(page, "rainbow")
    assert text.startswith("Starts from the presets of [`c51`](c51.md#presets). Sets `double: true`, ")
    assert "](../../whorl/presets/rainbow.yaml) for `CartPole-v1`, " in text


def test_compared_runs_name_a_machine_that_is_not_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, machine, value in (
        ("ppo", "two cores", 9.0),
        ("dqn", "two cores", 11.0),
        ("sac", "a GPU", 10.0),
    ):
        run = {"seed": 1, "steps": 1000, "wall_time": 5.0, "return": value}
        result = {"algorithm": name, "env": "CartPole-v1", "seeds": [run], "machine": machine}
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    monkeypatch.setattr(generate, "RESULTS", tmp_path)
    lines = generate.compare(DOCS / "page.md", "CartPole-v1").splitlines()
    assert lines[0] == "| `CartPole-v1` | return | steps | wall time (two cores) |"
    assert lines[2:] == [
        "| [`dqn`](algorithms/dqn.md) | 11.0 (one seed) | 1,000 | 5 s |",
        "| [`sac`](algorithms/sac.md) | 10.0 (one seed) | 1,000 | 5 s (a GPU) |",
        "| [`ppo`](algorithms/ppo.md) | 9.0 (one seed) | 1,000 | 5 s |",
    ]


def test_the_pages_for_libraries_have_their_tables() -> None:
    names = (
        "stable_baselines3",
        "cleanrl",
        "rllib",
        "tianshou",
        "co_gym",
        "rlcycle",
        "deep_rl_zoo",
        "advanced_sac",
    )
    for name in names:
        assert len(rows_of_settings((DOCS / "coming_from" / f"{name}.md").read_text("utf-8"))) >= 20, name


def test_a_recorded_run_becomes_a_row_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        {"seed": 1, "steps": 1000, "wall_time": 9.0, "return": 10.0},
        {"seed": 2, "steps": 3000, "wall_time": 11.0, "return": 14.0},
    ]
    result = {"algorithm": "ppo", "env": "CartPole-v1", "seeds": runs, "machine": "two cores"}
    result |= {"commit": "0123456789", "date": "2026-01-31", "curve": "docs/curves/ppo.png"}
    (tmp_path / "ppo.json").write_text(json.dumps(result))
    (tmp_path / "other.json").write_text(json.dumps([1, 2]))
    monkeypatch.setattr(generate, "RESULTS", tmp_path)
    text = generate.list_results(DOCS / "algorithms" / "ppo.md", "ppo")
    # Mean 12, deviation sqrt((4 + 4) / 1)
    assert "| CartPole-v1 | 12.0 ± 2.8 (2 seeds) | 2,000 | 10 s |" in text
    assert "wall time (two cores)" in text
    assert "](../curves/ppo.png)" in text
    assert "No runs are recorded" in generate.list_results(DOCS / "algorithms" / "ppg.md", "ppg")
