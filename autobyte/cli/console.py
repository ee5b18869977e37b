"""What commands print: tables for people, one JSON object for machines, progress on a terminal or in plain lines."""

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

WIDE = 160  # characters that lines may have where nobody's terminal cuts them


class Advance(Protocol):
    """Advances a progress bar."""

    def __call__(self, done: int, total: int, what: str = "") -> None:
        """So many are done."""
        ...


def print_json(data: Any) -> None:
    """Print one JSON object."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def warn(text: str) -> None:
    """Say something beside the results."""
    sys.stderr.write(f"autobyte: {text}\n")


def print_line(text: str = "") -> None:
    """Print a line for people."""
    sys.stdout.write(text + "\n")


def print_note(text: str) -> None:
    """Print a paragraph for people; a terminal's window breaks it between words."""
    from rich.console import Console

    console = Console()
    print_line(textwrap.fill(text, console.width) if console.is_terminal else text)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Print a table between two empty lines; the first column is text, the others are numbers.

    `spare` are columns that a narrow terminal does without, the most dispensable first; nothing is cut short.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    room = console.width if console.is_terminal else WIDE
    widths = {name: max(map(len, cells)) for name, *cells in zip(columns, columns, *rows, strict=True)}
    left_out: list[str] = []
    while _width(widths) > room and len(left_out) < len(spare):
        left_out.append(spare[len(left_out)])
        del widths[left_out[-1]]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, column in enumerate(widths):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(cell for column, cell in zip(columns, row, strict=True) if column in widths))
    print_line()
    Console(width=max(room, _width(widths))).print(table)
    print_line()
    if left_out:
        print_note(f"No room for: {', '.join(left_out)}; a wider window or --json shows them.")


def _width(widths: Mapping[str, int]) -> int:
    """Characters that a table needs: three between one column and the next."""
    return sum(widths.values()) + 3 * (len(widths) - 1)


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """Show how far a command is: a bar on a terminal, a line per tenth elsewhere; on stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*shown, console=console, transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total, what="": bar.update(
                task, completed=done, total=total, description=f"{title} {what}".strip()
            )
    else:
        last = -1

        def step(done: int, total: int, what: str = "") -> None:
            nonlocal last
            tenth = 10 * done // max(1, total)
            if tenth > last:
                last = tenth
                sys.stderr.write(f"{title}: {done} of {total} {what}".rstrip() + "\n")

        yield step
