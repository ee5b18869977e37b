"""What the pages say is so: messages are those of the code, tables those of the data that they are made from."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = "\n".join(file.read_text() for file in (ROOT / "autobyte").rglob("*.py"))
SPELLED = re.sub(r'"\s*\n\s*f?"', "", SOURCE)  # strings that go on in the next line
THEIRS = ("Connection closed by peer",)  # gloo's


def quoted() -> list[str]:
    """The first column of the table of messages."""
    table = (ROOT / "docs" / "from-ddp.md").read_text().split("## What an error says")[1]
    return re.findall(r"^\| (?:log: )?`([^`]+)` \|", table, flags=re.MULTILINE)


def test_there_are_messages() -> None:
    assert len(quoted()) >= 20


@pytest.mark.parametrize("message", quoted())
def test_the_code_says_so(message: str) -> None:
    """Names and numbers stand for others; what is between them is literal."""
    for fragment in re.split(r"…|'\[?\d+\]?'|\[\d+\]|\b\d+\b|a model|workers|; no word", message):
        words = fragment.strip(" ;:,'s")
        if len(words) > 8 and not any(theirs in words for theirs in THEIRS):
            assert words in SPELLED, words


def test_tables_of_what_was_measured_are_those_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    from judge_tables import tables  # noqa: PLC0415, scripts of no package
    from shaped_tables import tables_by_page  # noqa: PLC0415

    pages = tables_by_page() | {ROOT / "docs" / "tuners.md": tables(ROOT / "docs" / "data")}
    for page, made in pages.items():
        for name, table in made.items():
            assert f"<!-- table {name} -->\n\n{table}\n<!-- end -->" in page.read_text(), f"{page.name}: {name}"
