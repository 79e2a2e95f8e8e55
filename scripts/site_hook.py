"""What the site of `make docs` needs besides the pages of docs/: mkdocs calls this.

The pages are written for whoever reads the repository. So the README becomes the home page and the
other pages beside it join it, none of them copied; links among all of them become links of the
site, and links to anything else, such as an example, lead to the repository.
"""

from __future__ import annotations

import posixpath
import sys
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import api_pages, doc_links, site_names  # noqa: E402 - mkdocs loads this file by its path

_PLACES = {page: path for path, page in doc_links.ROOT_PAGES.items()}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the repository from the project's metadata, and make anchors as GitHub does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = config.extra["repository"] = project["urls"]["Repository"]
    # Not ``repo_url``: with it the theme asks that server for figures whenever a page is shown.
    config.copyright = f'<a href="{repository}">The repository</a>'
    config.mdx_configs["toc"] = {"slugify": doc_links.slug, "toc_depth": 3}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for path, page in doc_links.ROOT_PAGES.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for module in api_pages.MODULES:
        page, text = api_pages.page_of(module), api_pages.text_of(module)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links of a page."""
    source = page.file.src_uri
    place = _PLACES.get(source, f"docs/{source}")

    def change(link: str) -> str:
        if not doc_links.is_relative(link) or link.startswith("#"):
            return link
        path, anchor = doc_links.resolved(place, link)
        inside = path.removeprefix("docs/") if path.startswith("docs/") else None
        target = doc_links.ROOT_PAGES.get(path, inside)
        if target is None or files.get_file_from_path(target) is None:
            return doc_links.absolute(config.extra["repository"], path, anchor)
        near = posixpath.relpath(target, posixpath.dirname(source) or ".")
        return f"{near}#{anchor}" if anchor else near

    lines = doc_links.rewritten(markdown, change).split("\n")
    rows = (doc_links.without_escapes(line) if line.startswith("|") else line for line in lines)
    return "\n".join(rows)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Say where long names may be broken; the search has read the page by now."""
    return site_names.breakable(output)
