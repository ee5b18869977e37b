"""The claims table is what `claims.py` makes of the committed numbers, and every line of it says something."""

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

PAPER = Path(__file__).parents[2] / "paper"


def written(out: Path) -> str:
    """The README that the script writes beside a folder of numbers."""
    command = [sys.executable, "-W", "error", PAPER / "claims.py", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return (out / "README.md").read_text(encoding="utf-8")


def test_the_committed_claims_are_those_of_the_committed_numbers(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(PAPER / "data")
    assert written(tmp_path) == (PAPER / "README.md").read_text(encoding="utf-8"), "run: make claims"


def test_another_number_makes_another_claim(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for path in (PAPER / "data").glob("*.csv"):
        (tmp_path / "data" / path.name).symlink_to(path)
    changed = tmp_path / "data" / "fig02_credit.csv"
    text = changed.read_text(encoding="utf-8")
    changed.unlink()
    changed.write_text(
        re.sub(r"^simulated,2,.*$", "simulated,2,99,1.2345", text, flags=re.MULTILINE), encoding="utf-8"
    )
    assert "| 2X | 1.52x | 1.23x | 0.81 |" in written(tmp_path)


def test_every_figure_and_table_has_claims_with_a_number_or_a_reason() -> None:
    text = (PAPER / "README.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    titles = [section.splitlines()[0].split(":")[0] for section in sections]
    figures = [f"Figure {n}" for n in (1, 2, 3, 5, 6, 7, 8, 9, 10)]
    figures.insert(6, "Where tuning at run time matters")
    assert titles == [*figures, "Table I", "Table II", "US-Byte", "MOCC"]
    for section in sections:
        rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
        assert len(rows) >= 3
        assert "\n- " in section, "no sentence on the differences"
        for image in re.findall(r"\]\((figures/.*?)\)", section):
            assert (PAPER / image).exists()
        header = rows[0]
        for row in rows[1:]:
            if len(row) != len(header):
                continue  # of another table in the same section
            assert all(cell.strip() for cell in row), row
            assert not re.search(r"\bnan\b|\binf\b", "|".join(row)), row


def test_every_claim_names_a_file_and_fills_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(PAPER), *sys.path])
    with matplotlib.rc_context():  # which the figures' style would change
        from claim import Numbers, Table  # noqa: PLC0415, scripts of no package
        from claims import SECTIONS  # noqa: PLC0415
    numbers = Numbers(PAPER)
    tables = [part for section in SECTIONS for part in section.parts if isinstance(part, Table)]
    claims = [(claim, len(list(table.columns(numbers)))) for table in tables for claim in table.claims]
    assert len(claims) > 90
    for claim, columns in claims:
        assert (PAPER / "data" / f"{claim.file}.csv").exists(), claim.text
        cells = claim.judge(numbers[claim.file], numbers)
        assert cells is not None, claim.text
        assert 1 + (claim.paper is not None) + len(cells) == columns, claim.text


def test_numbers_that_are_not_there_leave_out_what_is_emulated(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for path in (PAPER / "data").glob("*.csv"):
        if ".testbed." not in path.name:
            (tmp_path / "data" / path.name).symlink_to(path)
    page = written(tmp_path)
    assert "not recorded: `make paper-testbed`" in page
    assert "on shaped links](" not in page
    assert "Emulated, from" not in page
