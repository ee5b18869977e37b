"""`autobyte models`: which models come with the package."""

from dataclasses import asdict

from autobyte.cli.options import JsonOption


def models(*, json: JsonOption = False) -> None:
    """List the built-in models.

    Shows their sizes, their compute times, and where the times come from.
    """
    from autobyte.cli.console import print_json, print_note, print_table
    from autobyte.models import describe, names
    from autobyte.units import format_bytes, format_seconds

    rows = [describe(name) for name in names()]
    if json:
        print_json({"models": [asdict(row) for row in rows]})
        return
    print_table(
        ("model", "parameters", "fp32 bytes", "tensors", "layers", "batch", "forward", "backward"),
        [
            (
                row.name,
                f"{row.parameters:,}",
                format_bytes(4 * row.parameters),
                str(row.tensors),
                str(row.layers),
                " × ".join(map(str, (row.batch_size, *row.sample))),
                format_seconds(row.forward_s),
                format_seconds(row.backward_s),
            )
            for row in rows
        ],
        spare=("fp32 bytes", "tensors", "layers"),
    )
    times = rows[0].provenance.split(",")[0]
    print_note(f"Sizes are exact. Times: {times}; see docs/models.md for the error.")
