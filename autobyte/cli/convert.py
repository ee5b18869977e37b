"""`autobyte import`: profiles that other tools measured."""

from pathlib import Path
from typing import Annotated

import typer

from autobyte.cli.options import JsonOption

app = typer.Typer(help="Import profiles that other tools measured.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def formats() -> None:
    """Import profiles that other tools measured."""


@app.command("pipedream")
def pipedream(
    *,
    file: Annotated[Path, typer.Argument(help="a graph.txt from PipeDream's profiler")],
    out: Annotated[Path | None, typer.Option("--out", help="file to write; default: NAME.json")] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", help="batch size, if the file does not determine it")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the file if it exists")] = False,
    json: JsonOption = False,
) -> None:
    """Import a profile from PipeDream.

    PipeDream's repository (github.com/msr-fiddle/pipedream) has them as profiler/…/graph.txt.
    """
    from autobyte.cli.console import print_json, print_line
    from autobyte.models.pipedream import read_pipedream
    from autobyte.units import format_seconds

    profile = read_pipedream(file, batch_size=batch)
    target = out or Path(f"{profile.name}.json")
    profile.save(target, replace=force)
    model = profile.model()
    if json:
        print_json(profile.model_dump(by_alias=True))
    else:
        size = f"{len(model.layers)} layers, {model.parameters:,} parameters, batch {model.batch_size}"
        print_line(f"{model.name}: {size}, compute {format_seconds(model.compute_s)}; written to {target}")
