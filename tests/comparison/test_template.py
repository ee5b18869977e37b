"""Templates: what a user names is only a name, in every page that there is, and a forgotten value is an error."""

from html.parser import HTMLParser
from pathlib import Path

import pytest
from contests import held, small_contest
from jinja2 import UndefinedError
from markupsafe import Markup

import autobyte
from autobyte.comparison import overview, page
from autobyte.comparison.template import fill

HOSTILE = """<img src=x onerror="alert('{{ 7 * 7 }}')">&amp;"""
TEMPLATES = sorted(Path(autobyte.__file__).parent.rglob("*.html"))


class Text(HTMLParser):
    """The words of a page and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_names_of_users_are_only_names_on_every_page(tmp_path: Path) -> None:
    outcome = held(small_contest(tuners=("default", "p3")), tmp_path)
    outcome["tuners"][0] |= {"name": HOSTILE, "failed_runs": 1}
    outcome["job"] |= {"model": HOSTILE, "scenario": HOSTILE, "wire_dtype": HOSTILE}
    cell = {"name": HOSTILE, "emulated": HOSTILE, "picture": Markup("<svg></svg>"), "rows": [[HOSTILE]]}
    pages = {
        "comparison/page.html": page.render(outcome),
        "comparison/overview.html": overview.render({HOSTILE: outcome}),
        "bench/page.html": fill("bench/page.html", {"title": HOSTILE, "columns": [HOSTILE], "cells": [cell]}),
    }
    names = {f"{path.parent.name}/{path.name}" for path in TEMPLATES} - {"comparison/layout.html"}
    assert pages.keys() == names  # a new page belongs in this test
    for html in pages.values():
        text = Text(html)
        assert "img" not in text.tags
        assert HOSTILE in "".join(text.words)
        assert "alert('49')" not in "".join(text.words)  # nor is it a template


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_template_lets_text_through_unescaped(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert "autoescape" not in source
    assert "safe" not in source


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'cells' is undefined"):
        fill("bench/page.html", {"title": "a", "columns": []})
