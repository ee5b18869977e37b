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
VARYING = re.compile(r" \[[\d.]+\]:\d+| \(\d+ blocks under way: \[[^]]*\]\)")
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
    """Markdown: how long each fault takes to end on each engine, the sums, and what a survivor says."""
    times, words = [["fault", *ENGINES.values()]], [["fault", "what a survivor says"]]
    for fault in FAULTS.values():
        of = {
            engine: [it for it in lines if (it["fault"], it["engine"]) == (fault.name, engine)] for engine in ENGINES
        }
        times.append([fault.text, *(_cell(each) for each in of.values())])
        said = next((it["words"] for each in of.values() for it in survivors(each) if it["words"]), "")
        words.append([fault.text, "training goes on" if fault.goes_on else _cut(said)])
    return f"{_markdown(times)}\n\n{_sums(lines)}\n\n{_markdown(words)}\n"


def _markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body))


def survivors(lines: Iterable[Line]) -> Iterator[Line]:
    """Lines of those that the fault has not struck itself."""
    for line in lines:
        fault = FAULTS[line["fault"]]
        if fault.goes_on or int(line["rank"]) != fault.victim:
            yield line


def _cell(lines: list[Line]) -> str:
    """Seconds of the last survivor, way by way; whether training went on; and what is not as it should be."""
    alive, seconds = list(survivors(lines)), []
    for way in WAYS:
        took = [float(line["seconds"]) for line in alive if line["way"] == way]
        seconds.append(f"{max(took):.1f}" if took else "–")
    wrong = sorted({each for line in lines for each in line["wrong"].split(", ") if each})
    return " · ".join(seconds) + "".join(f" **{each}**" for each in wrong) if alive else ""


def _cut(words: str) -> str:
    """Words without what differs from run to run, or from system to system."""
    words = words.removeprefix("CommunicationError: ").split("; details in ")[0].replace("|", "¦")
    words = VARYING.sub("", words)
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
