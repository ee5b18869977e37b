"""`autobyte report`: comparisons, or what a bench measured, as one page."""

from pathlib import Path
from typing import Annotated

import typer

from autobyte.cli.options import JsonOption


def report(
    *,
    folder: Annotated[
        Path,
        typer.Argument(
            help="folder from `autobyte compare --out` or `autobyte bench --out`, or a folder of several comparisons"
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Make an HTML page from comparisons or from a bench.

    Writes FOLDER/report.html, which loads nothing from elsewhere. For a folder of several comparisons it has a table
    of tuners by scenarios, and each comparison gets its own page. For a bench it has a picture and a table for every
    model and rate. What `autobyte compare --policies --out` wrote has no page: its table is printed.
    """
    from autobyte.bench.page import cells, write_bench_page
    from autobyte.cli.console import print_json, print_line
    from autobyte.cli.policies import kept, show
    from autobyte.comparison.overview import comparisons, write_overview
    from autobyte.comparison.page import write_page
    from autobyte.errors import FileError
    from autobyte.results import DATABASE

    which = "name one that `autobyte compare --out` or `autobyte bench --out` wrote"
    if not folder.is_dir():
        raise FileError(f"'{folder}' {'is not a folder' if folder.exists() else 'does not exist'}; {which}")
    policies = kept(folder)
    if policies and not (folder / "compare.json").exists() and not comparisons(folder):
        if json:
            print_json(policies if len(policies) > 1 else next(iter(policies.values())))
            return
        for name, outcome in policies.items():
            print_line(f"{name}: a comparison of policies")
            show(outcome)
        return
    if (folder / "compare.json").exists():
        page = write_page(folder)
    elif comparisons(folder):
        page = write_overview(folder)
    elif cells(folder):
        page = write_bench_page(folder)
    elif (folder / DATABASE).exists():
        raise FileError(f"the comparison in '{folder}' has not ended; run the same `autobyte compare` again")
    else:
        raise FileError(f"'{folder}' holds no results; {which}")
    if json:
        print_json({"page": str(page)})
    else:
        print_line(f"written to {page}")
