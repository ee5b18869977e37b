"""Fits the repository to the documentation site: functions that MkDocs calls while it builds (`hooks` in mkdocs.yml).

Links in `docs/` are written for the repository. On the site, pages from outside `docs/` have a place of their own,
and a link to a file that is not on the site becomes plain text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
ELSEWHERE = {  # in the repository: on the site
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "paper/README.md": "paper/README.md",
    **{f"paper/figures/{path.name}": f"paper/figures/{path.name}" for path in (ROOT / "paper/figures").glob("*.png")},
}
SOURCES = {place: name for name, place in ELSEWHERE.items()}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs/`."""
    for name, place in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's own pages; those that lead to no page become text."""
    place = page.file.src_uri
    source = SOURCES.get(place, f"docs/{place}")
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda link: _on_site(link, source, place, files), part) for part in parts[::2]]
    return "".join(parts)


def _on_site(link: re.Match[str], source: str, place: str, files: Files) -> str:
    mark, text, target = link.groups()
    path, hash_, anchor = target.partition("#")
    if not path or ":" in path:
        return link[0]
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    page = "index.md" if wanted == "README.md" else ELSEWHERE.get(wanted, wanted.removeprefix("docs/"))
    if (ROOT / wanted).is_dir():
        page += "/README.md"
    if files.get_file_from_path(page) is None:
        inside = wanted.startswith("docs/") or not (ROOT / wanted).exists()
        return link[0] if inside else text  # a link to nowhere is left for MkDocs to complain about
    return f"{mark}[{text}]({posixpath.relpath(page, posixpath.dirname(place) or '.')}{hash_}{anchor})"
