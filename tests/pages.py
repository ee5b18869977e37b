"""The code blocks of the documentation: where they stand, what they say of themselves, and how each is run."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autobyte.cli import run
from autobyte.scenario import Scenario
from autobyte.testing import EngineContract, PolicyContract, TunerContract

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<fence>```+)(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE
)
MARK = re.compile(r"<!-- (not run|run by): ([^>]+?) -->\s*$")  # stands right above a block
#: What is added to commands so that they take seconds; the last of two equal options counts.
CONTRACTS = (TunerContract, PolicyContract, EngineContract)
QUICK = {
    "compare": ["--budget", "2", "--seeds", "1"],
    "profile": ["--input", "1,3,64,64", "--warmup", "1", "--repeats", "1"],
    "collect": ["--environments", "1", "--judged", "0"],
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it begins in, and its mark with the reason or file in it."""

    language: str
    text: str
    line: int
    mark: str = ""
    because: str = ""


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        mark = MARK.search(text[: found.start()])
        named = (mark[1], mark[2]) if mark else ("", "")
        yield Block(found["language"].strip(), found["text"], text[: found.start()].count("\n") + 1, *named)


def run_block(block: Block, names: dict[str, Any]) -> None:
    """Run a block in the current folder.

    Args:
        block: python, diff (its new side is run), sh (commands of autobyte) or toml (a scenario).
        names: the variables that it sees, and leaves.

    Raises:
        ValueError: nobody knows how to run such a block; it needs a mark.
    """
    match block.language:
        case "python":
            exec(compile(block.text, f"line {block.line}", "exec"), names)
            _run_contracts(names)
        case "diff":
            new = "\n".join(line[2:] for line in block.text.splitlines() if not line.startswith("-"))
            exec(compile(new, f"line {block.line}", "exec"), names)
        case "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                _run_command(shlex.split(line, comments=True))
        case "toml":
            path = Path("scenario.toml")
            path.write_text(block.text)
            Scenario.load(path)
        case other:
            raise ValueError(
                f"no way to run a block of '{other}': mark it with <!-- not run: reason --> or <!-- run by: file -->"
            )


def _run_command(words: list[str]) -> None:
    if not words:
        return
    if words[0] != "autobyte":
        raise ValueError(f"only commands of autobyte are run here, not '{words[0]}': mark the block")
    status = run([*words[1:], *QUICK.get(words[1], [])])
    assert status == 0 or (words[1], status) == ("doctor", 3), f"{shlex.join(words)} ended with {status}"


def _run_contracts(names: dict[str, Any]) -> None:
    """Run, once each, the contract tests that a page shows."""
    for cls in [value for value in names.values() if isinstance(value, type)]:
        if issubclass(cls, TunerContract | PolicyContract | EngineContract) and cls not in CONTRACTS:
            if issubclass(cls, EngineContract):
                cls.ranks, cls.steps = (2,), 5
            contract = cls()
            for name in dir(contract):
                if name.startswith("test_"):
                    getattr(contract, name)()
            del names[cls.__name__]
