"""Hooks of the documentation site, which `make docs` builds from mkdocs.yml.

The pages are written for the repository: they link to files outside docs/ and show formulas in ```math blocks. On the
site

- a linked Markdown file of the repository becomes a page, a linked source file or folder a page of its text,
- formulas, also those between dollars, become MathML, which browsers draw without scripts,
- pages without sections have no table of contents, which leaves its room to their tables,
- headings get the anchors that code hosts give them.
"""

import ast
import re
from pathlib import Path
from posixpath import relpath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
INLINE = re.compile(r"(```.*?```|`[^`\n]*`)|(?<![\w$])\$([^$`\n]+)\$(?![\w$])", re.S)
"""code, which stays, or a formula within a line"""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
PICTURES = (".png", ".gif", ".svg", ".json")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs["toc"] = {"permalink": True, "slugify": slugify(case="lower")}
    math = {"name": "math", "class": "math", "format": show_formula}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [math]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for everything outside docs/ that a page links to."""
    seen: set[Path] = set()
    queue = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    while queue:
        page = queue.pop()
        for _, link, _, _ in LINK.findall(page.read_text("utf-8")):
            target = (page.parent / link).resolve()
            if "://" in link or target in seen or not is_outside(target):
                continue
            seen.add(target)
            files.append(file_of(target, config))
            if target.suffix == ".md":
                queue.append(target)
            elif target.is_dir():
                for path in set(target.rglob("*.py")) - seen:
                    seen.add(path)
                    files.append(file_of(path, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to the repository's files into links to their pages."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    own = ROOT / uri.removeprefix("repository/") if uri.startswith("repository/") else DOCS / uri

    def replaced(found: re.Match[str]) -> str:
        link, fragment = found[2], found[3] or ""
        target = (own.parent / link).resolve()
        if "://" in link or not target.exists():
            return found[0]
        return f"{found[1]}{relpath(uri_of(target), Path(uri).parent.as_posix())}{fragment}{found[4]}"

    return INLINE.sub(show_inline, LINK.sub(replaced, markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if not any(heading.children for heading in page.toc):
        page.meta["hide"] = [*page.meta.get("hide", []), "toc"]
    return html


def is_outside(path: Path) -> bool:
    return path.exists() and path.is_relative_to(ROOT) and not path.is_relative_to(DOCS)


def uri_of(path: Path) -> str:
    """Where a file or folder of the repository is on the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"source/{name}/folder.md"
    return f"repository/{name}" if path.suffix in (".md", *PICTURES) else f"source/{name}.md"


def file_of(path: Path, config: MkDocsConfig) -> File:
    """The page of a file or folder of the repository."""
    if path.suffix in (".md", *PICTURES):
        return File.generated(config, uri_of(path), abs_src_path=str(path))
    text = list_folder(path) if path.is_dir() else show_source(path)
    title = path.relative_to(ROOT).as_posix()
    front = f"---\ntitle: {title}\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# {title}\n\n"
    return File.generated(config, uri_of(path), content=front + text)


def show_source(path: Path) -> str:
    fence = "`" * 6
    return f"{fence}{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text('utf-8')}\n{fence}\n"


def list_folder(path: Path) -> str:
    """The modules of a folder with the first line of their docstrings."""
    lines = []
    for file in sorted(path.rglob("*.py")):
        about = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").split("\n")[0]
        link = relpath(uri_of(file), Path(uri_of(path)).parent.as_posix())
        lines.append(f"- [{file.relative_to(path).as_posix()}]({link}): {about}")
    return "\n".join(lines)


def show_formula(source: str, *_: Any, **__: Any) -> str:
    return f'<div class="formula">{convert(source, display="block")}</div>'


def show_inline(found: re.Match[str]) -> str:
    # In a span, because Markdown takes a formula at the beginning of a line for a block.
    return found[1] or f"<span>{convert(found[2])}</span>"
