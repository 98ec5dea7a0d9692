# SPDX-License-Identifier: Apache-2.0
"""The pages of the site: those of the navigation, and all files of the repository they link to.

A page has the path of its file, so relative links work on the site as they do in the repository.
Files that are neither pages nor pictures, such as scripts, become pages that show them.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PICTURES = {".png", ".jpg", ".svg", ".webp"}
LANGUAGES = {".py": "python", ".cff": "yaml", ".json": "json"}
LINK = re.compile(r"(\]\()([^)#\s]+)")


def in_nav(entry: Any) -> Iterator[str]:
    """The paths in a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from in_nav(part)


def linked(path: Path) -> Iterator[Path]:
    """Files of the repository that a Markdown file links to."""
    for _, target in LINK.findall(path.read_text()):
        found = (path.parent / unquote(target)).resolve()
        if found.is_file() and found.is_relative_to(ROOT):
            yield found


def is_shown(path: Path) -> bool:
    """Whether a file becomes a page that shows its text."""
    return path.suffix not in {".md", *PICTURES}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the navigation, and whatever they lead to."""
    wanted = [ROOT / path for path in in_nav(config.nav or [])]
    found: set[Path] = set()
    while wanted:
        path = wanted.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        name = path.relative_to(ROOT).as_posix()
        if is_shown(path):
            code = f"````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}````\n"
            files.append(File.generated(config, f"{name}.md", content=f"# {name}\n\n{code}"))
        else:
            files.append(File.generated(config, name, abs_src_path=str(path)))
        if path.suffix == ".md":
            wanted += linked(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to shown files to their pages."""
    folder = (ROOT / page.file.src_uri).parent

    def to_page(link: re.Match[str]) -> str:
        path = folder / unquote(link[2])
        return f"{link[0]}.md" if path.is_file() and is_shown(path) else link[0]

    return LINK.sub(to_page, markdown)
