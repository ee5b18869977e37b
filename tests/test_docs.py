"""What the pages say is so: code runs, messages are those of the code, tables those of the data."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pages import PAGES, ROOT, Block, blocks, run_block
from ranks import free_port
from torch import nn

import autobyte.torch as ab
from autobyte.scheduler.policies import POLICIES
from autobyte.tuners import TUNERS

SOURCE = "\n".join(file.read_text() for file in (ROOT / "autobyte").rglob("*.py"))
SPELLED = re.sub(r'"\s*\n\s*f?"', "", SOURCE)  # strings that go on in the next line
THEIRS = ("Connection closed by peer",)  # gloo's


def make_model() -> nn.Module:
    """The model in the pages' examples."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a checkout, with a model of the reader's own; what pages register is forgotten afterwards."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copy(ROOT / "examples" / "small_vgg.py", tmp_path / "my_model.py")
    monkeypatch.chdir(tmp_path)
    for registry in (TUNERS, POLICIES):
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    for name, value in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", free_port())):
        monkeypatch.setenv(name, str(value))
    return tmp_path


def training(*, wrapped: bool) -> dict[str, Any]:
    """What a script has before it comes to a page's lines: one rank, on which AutoByte is off."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(4, 8)).square().mean()
    names = {"torch": torch, "ab": ab, "make_model": make_model, "model": model, "loss": loss}
    return names | {"optimizer": ab.DistributedOptimizer(optimizer, model) if wrapped else optimizer}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_code_block_runs_or_says_that_it_does_not(page: Path, folder: Path) -> None:
    """Blocks of a page follow each other, as a reader would type them; each begins with an optimizer of its own."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.mark == "not run":
            assert len(block.because) > 8, f"line {block.line}: say why the block is not run"
        elif block.mark == "run by":
            assert (ROOT / block.because).exists(), f"line {block.line}: no file {block.because}"
        else:
            names |= training(wrapped=block.language != "diff")
            try:
                run_block(block, names)
            except Exception as error:
                raise AssertionError(f"{page.name}, line {block.line}: {error}") from error
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()


def test_a_block_that_cannot_run_and_does_not_say_so_fails(folder: Path) -> None:
    for language, text in (
        ("sh", "torchrun train.py\n"),
        ("text", "any output\n"),
        ("", "x\n"),
        ("python", "1 / 0\n"),
    ):
        with pytest.raises((ValueError, ZeroDivisionError)):
            run_block(Block(language, text, 1), {})
    with pytest.raises(AssertionError, match="ended with 2"):
        run_block(Block("sh", "autobyte simulate --model no-such-model\n", 1), {})


def test_blocks_and_their_marks_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# x\n\n```sh\na\n```\n\n<!-- not run: needs root -->\n\n```python\nb\n```\n")
    assert list(blocks(page)) == [Block("sh", "a\n", 3), Block("python", "b\n", 9, "not run", "needs root")]


def test_the_readme_has_at_most_500_words() -> None:
    """Code blocks and the table count, comments and bare signs such as a table's bars do not."""
    text = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    words = [word for word in text.split() if re.search(r"\w", word)]
    assert 100 < len(words) <= 500


def test_whoever_comes_from_ddp_is_told_what_finds_the_fastest() -> None:
    """By default that is `auto`, but with servers ByteScheduler's default, which no search improves."""
    page = (ROOT / "docs" / "from-ddp.md").read_text()
    wraps = re.findall(r"^\+ optimizer = ab\.DistributedOptimizer\(.*", page, flags=re.MULTILINE)
    assert len(wraps) >= 3
    for wrap in wraps:
        assert ('policy="auto"' in wrap) == ('engine="ps"' in wrap), wrap


def test_what_works_names_its_tests() -> None:
    table = (ROOT / "docs" / "from-ddp.md").read_text().split("## What works with it")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| |")]
    named = [re.search(r"\| `(\w+\.py)::(\w+)` \|$", row) for row in rows]
    assert len(rows) >= 10
    for row, test in zip(rows, named, strict=True):
        assert test is not None, row
        assert f"def {test[2]}(" in (ROOT / "tests" / "torch" / test[1]).read_text(), row


def test_the_changelog_has_at_most_60_lines_before_the_second_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    first = "## ".join(text.split("\n## ")[:2])
    assert len(first.splitlines()) <= 60


def quoted() -> list[str]:
    """The first column of the table of messages."""
    table = (ROOT / "docs" / "troubleshooting.md").read_text().split("## What an error says")[1]
    return re.findall(r"^\| (?:log: )?`([^`]+)` \|", table, flags=re.MULTILINE)


def test_there_are_messages() -> None:
    assert len(quoted()) >= 20


@pytest.mark.parametrize("message", quoted())
def test_the_code_says_so(message: str) -> None:
    """Names and numbers stand for others; what is between them is literal."""
    for fragment in re.split(r"…|'\[?\d+\]?'|\[\d+\]|\bfor \d+ s\b|\b\d+\b|a model|workers|; no word", message):
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
