"""Hook of mkdocs that makes links work from pages to files outside `docs/`.

On a git server such a link shows the file. On the site the file is copied into `repository/`, so
that the link works there as well. The files of `OUTSIDE` become pages of the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "tutorials/examples.md",
}
"""Files outside `docs/` that are pages of the site: the page's path by the file's path."""

SOURCES = {page: name for name, page in OUTSIDE.items()}
"""The same pages: the file's path by the page's path."""

COPIES = "repository"
"""Folder of the site with copies of files that pages link to."""

LINK = re.compile(r"(\]\()([^)\s#:]+)([)#])")
"""A Markdown link without a scheme; the second group is its path."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs/`, and every file outside `docs/` that a page links to."""
    for name, page in OUTSIDE.items():
        text = _rewritten((ROOT / name).read_text(encoding="utf-8"), name, page)
        files.append(File.generated(config, page, content=text))
    for file in list(files.documentation_pages()):
        source = SOURCES.get(file.src_uri, f"docs/{file.src_uri}")
        for _, path, _ in LINK.findall((ROOT / source).read_text(encoding="utf-8")):
            target = _target(source, path)
            copy = f"{COPIES}/{target}"
            if _is_copied(target) and files.get_file_from_path(copy) is None:
                files.append(File.generated(config, copy, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave `docs/` to their copies or pages."""
    del config, files
    if page.file.src_uri in SOURCES:
        return markdown  # `on_files` has rewritten it already
    return _rewritten(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def _target(source: str, path: str) -> str:
    """Where a link leads: a path from the repository's root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path))


def _is_copied(target: str) -> bool:
    """Whether a path from the repository's root names a file outside `docs/` to copy."""
    outside = not target.startswith(("docs/", "../")) and target not in OUTSIDE
    return outside and (ROOT / target).is_file()


def _rewritten(text: str, source: str, page: str) -> str:
    """The text with its links made relative to the site.

    Args:
        text: Markdown of a page.
        source: path of the page's file from the repository's root.
        page: path of the page from the site's root.
    """

    def relink(match: re.Match[str]) -> str:
        before, path, after = match.groups()
        target = _target(source, path)
        if target in OUTSIDE:
            place = OUTSIDE[target]
        elif _is_copied(target):
            place = f"{COPIES}/{target}"
        elif target.startswith("docs/"):
            place = target.removeprefix("docs/")
        else:
            return match[0]
        start = posixpath.dirname(page) or "."
        return f"{before}{posixpath.relpath(place, start)}{after}"

    return LINK.sub(relink, text)
