"""The `autobyte` command. One file per subcommand; each imports what it needs when it runs: --help is fast."""

import io
import os
import sys
import time
from typing import Annotated

import typer

from autobyte import __version__
from autobyte.cli import (
    bench,
    calibrate,
    collect,
    compare,
    congestion,
    convert,
    doctor,
    explain,
    fit,
    models,
    probe,
    profile,
    record,
    report,
    simulate,
    testbed,
    validate,
)
from autobyte.errors import AutoByteError


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"autobyte {__version__}\n")
        raise typer.Exit


app = typer.Typer(
    name="autobyte",
    help="Faster data-parallel training on slow networks: predict, simulate, tune and compare.\n\n"
    "Write sizes, rates and times as 4MiB, 160KB, 10Gbit, 2ms. A credit (bytes in flight) of 4x is four partitions. "
    "Every command has --help and --json. Start with: autobyte doctor --profile resnet50 --bandwidth 10Gbit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Options before the command; typer shows the help of `app`."""


app.command("models")(models.models)
app.command("profile")(profile.profile)
app.command("simulate")(simulate.simulate)
app.command("compare")(compare.compare)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.command("probe")(probe.probe)
app.command("calibrate")(calibrate.calibrate)
app.command("record")(record.record)
app.command("validate")(validate.validate)
app.command("report")(report.report)
app.command("explain")(explain.explain)
app.command("collect")(collect.collect)
app.command("fit")(fit.fit)
app.add_typer(convert.app, name="import")
app.add_typer(testbed.app, name="testbed")
app.add_typer(congestion.app, name="congestion")

BAD_INPUT, INTERRUPTED = 2, 130
ALONE_S = 10.0  # how long a rank under torchrun waits before it says what rank 0 has not said


def main() -> None:
    """Run the command line; bad input is one line on stderr and status 2, Ctrl-C is status 130."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a model's name may have what no terminal shows
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and give its exit status."""
    try:
        status: int = app(arguments, standalone_mode=False) or 0
    except AutoByteError as error:
        return _tell(str(error), BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except MemoryError:
        return _tell("this needs more memory than there is; ask for less", BAD_INPUT)
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}  # by name: typer brings its own click
        if "ClickException" not in kinds:
            raise
        message: str = error.format_message()  # type: ignore[attr-defined]
        if "MissingParameter" in kinds and (about := getattr(getattr(error, "param", None), "help", None)):
            message = f"{message.rstrip('.')}: {about}"
        if "NoArgsIsHelpError" not in kinds:
            return _tell(message, BAD_INPUT)
        sys.stderr.write(message + "\n")  # the whole help
        return BAD_INPUT
    return _tell("interrupted; what was finished is kept", status) if status == INTERRUPTED else status


def _tell(message: str, status: int) -> int:
    if status == BAD_INPUT and "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0":
        time.sleep(ALONE_S)  # rank 0 says the same; then torchrun ends this one
    sys.stderr.write(f"autobyte: {' '.join(message.split())}\n")
    return status
