"""`autobyte report`: a comparison as one page."""

from pathlib import Path
from typing import Annotated

import typer

from autobyte.cli.options import JsonOption


def report(
    *,
    folder: Annotated[Path, typer.Argument(help="what `autobyte compare --out` wrote, or a folder of several")],
    json: JsonOption = False,
) -> None:
    """Make one HTML page of a comparison, or of several.

    It is FOLDER/report.html, and needs nothing from outside. Of a folder that holds comparisons it is a table of
    tuners by scenarios, beside the page of each.
    """
    from autobyte.cli.console import print_json, print_line
    from autobyte.comparison.overview import comparisons, write_overview
    from autobyte.comparison.page import write_page

    several = not (folder / "compare.json").exists() and comparisons(folder)
    page = write_overview(folder) if several else write_page(folder)
    if json:
        print_json({"page": str(page)})
    else:
        print_line(f"written to {page}")
