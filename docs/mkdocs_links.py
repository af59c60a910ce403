"""Hook of mkdocs: links from pages to files of the repository that lie outside `docs/`.

On a git server such a link shows the file. On the site the file is copied into `repository/`, so
that the link works there as well. CONTRIBUTING.md and CHANGELOG.md become pages of the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository's root that are pages of the site: page's name by file's name."""
COPIES = "repository"
"""Folder of the site with copies of files that pages link to."""
LINK = re.compile(r"(\]\()([^)\s#:]+)([)#])")
"""A Markdown link without a scheme; the second group is its path."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root's pages, and every file outside `docs/` that a page links to."""
    for name, page in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_rewritten(text, name, page)))
    for file in list(files.documentation_pages()):
        if file.src_uri in ROOT_PAGES.values():
            folder, text = "", (ROOT / file.src_uri.upper().replace(".MD", ".md")).read_text()
        else:
            folder, text = posixpath.dirname(f"docs/{file.src_uri}"), file.content_string
        for _, path, _ in LINK.findall(text):
            target = posixpath.normpath(posixpath.join(folder, path))
            copy = f"{COPIES}/{target}"
            if _is_copied(target) and files.get_file_from_path(copy) is None:
                files.append(File.generated(config, copy, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave `docs/` to their copies or pages."""
    del config, files
    if page.file.src_uri in ROOT_PAGES.values():
        return markdown  # rewritten when it was added
    return _rewritten(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def _is_copied(target: str) -> bool:
    """Whether a path from the repository's root names a file outside `docs/` to copy."""
    outside = not target.startswith(("docs/", "../")) and target not in ROOT_PAGES
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
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if target in ROOT_PAGES:
            place = ROOT_PAGES[target]
        elif _is_copied(target):
            place = f"{COPIES}/{target}"
        elif target.startswith("docs/"):
            place = target.removeprefix("docs/")
        else:
            return match[0]
        start = posixpath.dirname(page) or "."
        return f"{before}{posixpath.relpath(place, start)}{after}"

    return LINK.sub(relink, text)
