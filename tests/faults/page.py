"""The table of docs/faults.md, from docs/data/faults/matrix.csv."""

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from faults.rows import ENGINES, FAULTS, SIZE, WAYS

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "docs" / "data" / "faults" / "matrix.csv"
PAGE = ROOT / "docs" / "faults.md"
PLACE = re.compile(r"(<!-- table matrix -->\n).*?(<!-- end -->)", re.DOTALL)
LONGEST = 150  # characters of words

Line = dict[str, str]


def fill(page: Path, data: Path) -> None:
    """Put the table into the page."""
    page.write_text(PLACE.sub(lambda match: f"{match[1]}\n{table(read(data))}\n{match[2]}", page.read_text()))


def read(data: Path) -> list[Line]:
    """Lines of the CSV, one for each process."""
    with data.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(lines: list[Line]) -> str:
    """Markdown: a row for each fault and engine, and the sums."""
    heads = ["fault", "engine", *(f"{way}, s" for way in WAYS), "what a survivor says", "parameters", "leftovers"]
    body = [heads, ["---"] * len(heads)]
    for fault in FAULTS.values():
        for engine in fault.engines:
            of = [line for line in lines if (line["fault"], line["engine"]) == (fault.name, engine)]
            if of:
                body.append([fault.text, ENGINES[engine], *_row(fault.name, of)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in body) + f"\n\n{_sums(lines)}\n"


def survivors(lines: Iterable[Line]) -> Iterator[Line]:
    """Lines of those that the fault has not struck itself."""
    for line in lines:
        fault = FAULTS[line["fault"]]
        if fault.goes_on or int(line["rank"]) != fault.victim:
            yield line


def _row(fault: str, lines: list[Line]) -> list[str]:
    alive = list(survivors(lines))
    cells = []
    for way in WAYS:
        seconds = [float(line["seconds"]) for line in alive if line["way"] == way]
        hang = any(not line["status"] for line in alive if line["way"] == way)
        cells.append("hangs" if hang else f"{max(seconds):.1f}" if seconds else "–")
    words = "trains on" if FAULTS[fault].goes_on else _cut(next((it["words"] for it in alive if it["words"]), ""))
    wrong = sorted({f"**{each}**" for line in lines for each in line["wrong"].split(", ") if each})
    parameters = ", ".join(wrong) or ("DDP's" if FAULTS[fault].goes_on else "DDP's after the step that it says")
    left = sorted({line["leftovers"] for line in lines if line["leftovers"]})
    return [*cells, words, parameters, ", ".join(left) or "none"]


def _cut(words: str) -> str:
    words = words.removeprefix("CommunicationError: ").split("; details in ")[0].replace("|", "¦")
    return "`" + (words if len(words) <= LONGEST else words[:LONGEST] + "…") + "`"


def _sums(lines: list[Line]) -> str:
    rows = {(line["fault"], line["engine"], line["way"]) for line in lines}

    def count(what: str) -> int:
        return len({(it["fault"], it["engine"], it["way"]) for it in lines if what in it["wrong"]})

    amiss = sum(bool(line["wrong"]) for line in lines)
    return (
        f"{len(rows)} rows of {SIZE} processes: {count('hangs')} hang, {count('wrong parameters')} have wrong "
        f"parameters, {count('leftovers')} leave something behind. {amiss} of {len(lines)} processes are "
        "not as they should be."
    )
