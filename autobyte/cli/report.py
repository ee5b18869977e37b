"""`autobyte report`: a comparison as one page."""

from pathlib import Path
from typing import Annotated

import typer

from autobyte.cli.options import JsonOption


def report(
    *,
    folder: Annotated[Path, typer.Argument(help="what `autobyte compare --out` wrote")],
    json: JsonOption = False,
) -> None:
    """Make one HTML page of a comparison.

    It is FOLDER/report.html, and needs nothing from outside.
    """
    from autobyte.cli.console import print_json, print_line
    from autobyte.comparison.page import write_page

    page = write_page(folder)
    if json:
        print_json({"page": str(page)})
    else:
        print_line(f"written to {page}")
