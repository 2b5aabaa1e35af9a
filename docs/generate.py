"""Writes the parts of the documentation that follow from the source: `python docs/generate.py`.

A region of a page stands between `<!-- generated: KIND WORDS -->` and `<!-- end generated -->`:

    algorithms                      every algorithm with the line about it
    code MODULE.CLASS FIRST LAST    the class from method FIRST to the end of method LAST, as it stands
    settings NAME                   the algorithm's own settings and links to those it shares, or the page of another
                                    algorithm whose settings a preset has
    config MODULE.CLASS             the settings that a config class adds to its parents, or changes
    aliases                         the names of settings in other libraries
    presets NAME                    what the name sets everywhere, and the environments that it has settings for
    results NAME                    the measured runs in benchmarks/results/*.json
    compare ENV ...                 the best of all algorithms on some environments
    box                             the trained agents that come with the package
    changeable                      settings that a resumed run may change

It also writes whorl/settings/keywords.py, from which editors know the keywords of `whorl.train`.
"""

import ast
import inspect
import json
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from whorl.box.cards import agents
from whorl.core.errors import nearest
from whorl.core.registry import Part
from whorl.settings.aliases import ALIASES
from whorl.settings.conditions import WHERE
from whorl.settings.merge import config_of, configure
from whorl.settings.presets import algorithm_class, load_preset, preset_names
from whorl.settings.run import MAY_CHANGE, RunConfig
from whorl.settings.schema import bare, fields_of, help_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CONFIGURATION = ROOT / "docs" / "configuration.md"
KEYWORDS = ROOT / "whorl" / "settings" / "keywords.py"
REGION = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end generated -->)", re.S)
COMPARED = 8
"""algorithms in a table that compares them"""


def pages() -> list[Path]:
    """Every page of the documentation."""
    return sorted((ROOT / "docs").rglob("*.md"))


def rendered(page: Path) -> str:
    """The text of a page with its regions as they should be."""

    def region(found: re.Match[str]) -> str:
        kind, *words = found[2].split()
        if kind not in KINDS:
            raise ValueError(f"{page.name} asks for a region {kind!r}; {nearest(kind, KINDS)}")
        return f"{found[1]}{KINDS[kind](page, *words).strip()}\n{found[3]}"

    return REGION.sub(region, page.read_text("utf-8"))


def list_algorithms(page: Path) -> str:
    """Every algorithm, with a link to its page."""
    rows = []
    for name in preset_names():
        preset = load_preset(name)
        own = ROOT / "docs" / "algorithms" / f"{name}.md"
        rows.append((f"[`{name}`]({_link(page, own)})", preset["about"]))
    return table(("name", "what it is"), rows)


def show_code(page: Path, owner: str, first: str, last: str) -> str:
    """A run of methods, verbatim but for the indentation that they share."""
    module, _, class_name = owner.rpartition(".")
    path = ROOT / f"{module.replace('.', '/')}.py"
    text = path.read_text("utf-8")
    cls = next(n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == class_name)
    methods = {n.name: n for n in cls.body if isinstance(n, ast.FunctionDef)}
    for name in (first, last):
        if name not in methods:
            raise ValueError(
                f"{page.name} shows {owner}.{name}, which is not there; {nearest(name, methods)}"
            )
    start = min([methods[first].lineno, *(mark.lineno for mark in methods[first].decorator_list)])
    lines = text.splitlines()[start - 1 : methods[last].end_lineno]
    return f"```python\n{textwrap.dedent(chr(10).join(lines))}\n```"


def list_settings(page: Path, name: str) -> str:
    """The settings that the algorithm's own file declares; those of a preset of another algorithm are on its page."""
    config = config_of(algorithm_class(name)[1])
    owner = next(other for other in _originals() if config_of(algorithm_class(other)[1]) is config)
    if owner != name:
        return f"Those of [`{owner}`]({owner}.md#settings)."
    values, texts = configure(name, "", {}).algo, help_of(config)
    rows = [
        (f"`{field}`", f"`{_value(getattr(values, field))}`", texts[field])
        for field in inspect.get_annotations(config)
        if field in texts
    ]
    return f"{table(('setting', 'default', 'what it is'), rows)}\n\n{shared_settings(page, config)}"


def shared_settings(page: Path, config: type) -> str:
    """Links to the sections of the configuration page with settings that the config inherits."""
    text = CONFIGURATION.read_text("utf-8")
    sections: dict[str, str] = {}  # heading by config class
    heading = ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif found := re.match(r"<!-- generated: config (\S+) -->", line):
            sections[found[1]] = heading
    inherited = (f"{cls.__module__}.{cls.__name__}" for cls in (*config.__mro__[1:], RunConfig))
    headings = dict.fromkeys(sections[name] for name in inherited if name in sections)
    own = _link(page, CONFIGURATION)
    return "Also: " + ", ".join(f"[{name}]({own}#{_anchor(name)})" for name in headings) + "."


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _originals() -> list[str]:
    """All names, those first that are called like the file of their rule."""
    return sorted(preset_names(), key=lambda name: load_preset(name)["rule"].split(".")[-2] != name)


def list_config(page: Path, path: str) -> str:
    """The settings that a config class adds to its parents, or changes."""
    module, _, name = path.rpartition(".")
    config: Any = getattr(import_module(module), name)
    texts, values = help_of(config), config()
    rows = [
        (f"`{field}`", f"`{_value(getattr(values, field))}`", texts[field])
        for field in inspect.get_annotations(config)
        if field in texts
    ]
    return table(("setting", "default", "what it is"), rows)


def list_aliases(page: Path) -> str:
    """Each setting that has aliases, with them."""
    found: dict[str, list[str]] = {}
    for alias, targets in ALIASES.items():
        for target in targets:
            found.setdefault(target, []).append(f"`{alias}`")
    return table(("setting", "also called"), [(f"`{name}`", ", ".join(found[name])) for name in found])


def list_presets(page: Path, name: str) -> str:
    """What the name sets everywhere, and the environments that it has settings for."""
    file = ROOT / "whorl" / "presets" / f"{name}.yaml"
    preset = yaml.safe_load(file.read_text("utf-8"))
    parts, parent = [], preset.get("inherits")
    if parent:
        parts.append(f"Starts from the presets of [`{parent}`]({parent}.md#presets).")
    settings = {key: value for key, value in (preset.get("settings") or {}).items() if key != WHERE}
    if settings:
        parts.append(f"Sets {', '.join(f'`{key}: {_value(value)}`' for key, value in settings.items())}.")
    envs = ", ".join(f"`{env}`" for env in preset.get("environments") or {})
    link = f"[{file.name}]({_link(page, file)})"
    parts.append(f"Tuned in {link} for {envs}." if envs else f"File: {link}.")
    return " ".join(parts)


def list_results(page: Path, name: str) -> str:
    """The recorded runs of an algorithm; files that name no algorithm are other benchmarks."""
    found = [json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    found = [result for result in found if isinstance(result, dict) and result.get("algorithm") == name]
    if not found:
        return "No runs are recorded for this version yet."
    text = _measured("environment", {result["env"]: result for result in found})
    curves = [
        f"![{name} on {result['env']}]({_link(page, ROOT / result['curve'])})"
        for result in found
        if result.get("curve")
    ]
    remarks = [f"{result['env']}: {result['note']}" for result in found if result.get("note")]
    return "\n\n".join([text, *remarks, *curves])


def compare(page: Path, *envs: str) -> str:
    """The best recorded runs of all algorithms, one table per environment."""
    found = [json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    parts = []
    for env in envs:
        runs = [result for result in found if isinstance(result, dict) and result.get("env") == env]
        runs.sort(key=lambda one: -fmean(run["return"] for run in one["seeds"]))
        pages = {name: ROOT / "docs" / "algorithms" / f"{name}.md" for name in preset_names()}
        rows = {f"[`{one['algorithm']}`]({_link(page, pages[one['algorithm']])})": one for one in runs}
        parts.append(_measured(f"`{env}`", dict(list(rows.items())[:COMPARED])))
    return "\n\n".join(parts)


def _measured(title: str, results: dict[str, dict[str, Any]]) -> str:
    """Means over the seeds, and the standard deviation of the return; the header has the usual machine."""
    usual = Counter(result["machine"] for result in results.values()).most_common(1)[0][0]
    rows = []
    for name, result in results.items():
        runs = result["seeds"]
        returns = [float(run["return"]) for run in runs]
        spread = f" ± {stdev(returns):,.1f} ({len(runs)} seeds)" if len(runs) > 1 else " (one seed)"
        elsewhere = "" if result["machine"] == usual else f" ({result['machine']})"
        rows.append(
            (
                name,
                f"{fmean(returns):,.1f}{spread}",
                f"{fmean(run['steps'] for run in runs):,.0f}",
                f"{fmean(run['wall_time'] for run in runs):,.0f} s{elsewhere}",
            )
        )
    return table((title, "return", "steps", f"wall time ({usual})"), rows)


def list_changeable(page: Path) -> str:
    """Settings that a resumed run may change."""
    return textwrap.fill(", ".join(f"`{name}`" for name in MAY_CHANGE) + ".", 120)


def list_agents(page: Path) -> str:
    """The agents in the box."""
    rows = (
        (
            f"`{name}`",
            card.about,
            f"`{card.command}`",
            f"{card.steps:,}",
            f"{card.mean_return:,.1f} ± {card.std:,.1f}",
            str(card.episodes),
        )
        for name, card in agents().items()
    )
    return table(("agent", "what it does", "trained by", "steps", "mean return", "episodes"), rows)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _value(value: Any) -> str:
    """A setting as one would write it in YAML."""
    if isinstance(value, Part):
        value = value.plain() if value.options else value.name
    if isinstance(value, tuple):
        value = list(value)
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).split("\n")[0]


def _link(page: Path, target: Path) -> str:
    return Path(os.path.relpath(target, page.parent)).as_posix()


KINDS: dict[str, Callable[..., str]] = {
    "box": list_agents,
    "changeable": list_changeable,
    "algorithms": list_algorithms,
    "code": show_code,
    "settings": list_settings,
    "config": list_config,
    "aliases": list_aliases,
    "presets": list_presets,
    "results": list_results,
    "compare": compare,
}


def keywords() -> str:
    """The module with the settings of the loop and all algorithms as keywords, which editors complete."""
    configs = [RunConfig, *(config_of(algorithm_class(name)[1]) for name in preset_names())]
    types: dict[str, set[str]] = {}
    texts: dict[str, Counter[str]] = {}
    for config in dict.fromkeys(configs):
        for name, hint in fields_of(config).items():
            if name == "loggers" or name in getattr(
                config, "unused", ()
            ):  # the first is a parameter of its own
                continue
            types.setdefault(name, set()).add(_typed(bare(hint)))
            texts.setdefault(name, Counter())[help_of(config)[name]] += 1
    lines = [
        '"""Settings as keywords of `whorl.load` and `whorl.train`, for editors; written by docs/generate.py."""',
        "",
        "from collections.abc import Sequence",
        "from typing import Any, Literal, TypedDict",
        "",
        "",
        "class Keywords(TypedDict, total=False):",
        '    """Settings of the training loop and of all algorithms; an algorithm has some of them."""',
        "",
    ]
    for name, found in types.items():
        lines.append(f"    {name}: {found.pop() if len(found) == 1 else 'Any'}")
        text = "; in other algorithms: ".join(said for said, _ in texts[name].most_common())
        lines += textwrap.wrap(f'"""{text}"""', 112, initial_indent=" " * 4, subsequent_indent=" " * 4)
    return "\n".join(lines) + "\n"


def _typed(hint: Any) -> str:
    """The type of a setting as one writes it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"Literal[{', '.join(json.dumps(word) for word in inner)}]"
    if origin is tuple:
        return f"Sequence[{_typed(inner[0])}]"
    if origin in (Union, UnionType):
        return " | ".join(_typed(part) for part in inner)
    return hint.__name__ if hint in (bool, int, float, str) else "Any"


def main() -> None:
    KEYWORDS.write_text(keywords(), "utf-8")
    for page in pages():
        text = rendered(page)
        if text != page.read_text("utf-8"):
            page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
