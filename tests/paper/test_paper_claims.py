"""The claims table is what `claims.py` makes of the committed numbers, and every line of it says something."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAPER = Path(__file__).parents[2] / "paper"


def made(out: Path) -> str:
    """The README that the script writes beside a folder of numbers."""
    command = [sys.executable, "-W", "error", PAPER / "claims.py", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return (out / "README.md").read_text(encoding="utf-8")


def test_the_committed_claims_are_those_of_the_committed_numbers(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(PAPER / "data")
    assert made(tmp_path) == (PAPER / "README.md").read_text(encoding="utf-8"), "run: make claims"


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
    assert "| 2X | 1.52x | 1.23x | 0.81 |" in made(tmp_path)


def test_every_figure_and_table_has_claims_with_a_number_or_a_reason() -> None:
    text = (PAPER / "README.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    titles = [section.split(":")[0] for section in sections]
    assert titles == [*(f"Figure {n}" for n in (1, 2, 3, 5, 6, 7, 8, 9, 10)), "Table I", "Table II", "US-Byte"]
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
