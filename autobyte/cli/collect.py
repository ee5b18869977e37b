"""`autobyte collect`: the data set that the meta-network learns from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autobyte.cli.options import JsonOption, ModelOption
from autobyte.cli.workers import DaskOption, JobsOption, workers

if TYPE_CHECKING:
    from autobyte.job import Model
    from autobyte.nets.collection import Folder, Part
    from autobyte.nets.dataset import Groups

SEEN, UNSEEN = ("resnet50", "vgg16", "alexnet"), ("densenet121", "bert-base", "bert-large", "gpt2")


def collect(
    *,
    out: Annotated[Path, typer.Option("--out", help="folder of the data set; an unfinished one is continued")],
    environments: Annotated[
        int, typer.Option("--environments", help="simulated jobs to learn from, 600 iterations each")
    ] = 600,
    judged: Annotated[
        int,
        typer.Option("--judged", help="jobs to judge the network by: this many of seen models, and of unseen ones"),
    ] = 60,
    seed: Annotated[int, typer.Option("--seed", help="random seed")] = 0,
    protocol: Annotated[
        str,
        typer.Option("--protocol", help="published (the paper's: 8 workers), or wider (hidden effects, 2 to 64)"),
    ] = "wider",
    jobs: JobsOption = 0,
    dask: DaskOption = "",
    add: Annotated[
        list[Path] | None,
        typer.Option(
            "--add",
            help="add windows from a folder that training (`record=`) or `compare --out` wrote; may be repeated",
        ),
    ] = None,
    model: ModelOption = "",
    json: JsonOption = False,
) -> None:
    """Collect the data set that `autobyte fit` learns from.

    Simulates ResNet50, VGG16 and AlexNet with random configs while bandwidth changes: 360,000 iterations by default.

    Example: autobyte collect --out out/dataset
    """
    import time

    from autobyte import models
    from autobyte.cli.console import print_json, print_line, progress
    from autobyte.nets.collection import Folder, Order
    from autobyte.nets.dataset import digest
    from autobyte.results import versions

    seen, unseen = ({name: models.load(name) for name in names} for names in (SEEN, UNSEEN))
    order = Order(environments, judged, seed, digest(seen), digest(unseen), protocol)
    folder, began = Folder(out), time.perf_counter()
    folder.begin(order)
    missing = folder.missing(order)
    with progress("collecting") as step, workers(jobs, dask) as (submit, completed):
        step(len(order.parts) - len(missing), len(order.parts))
        work = {submit(make, part): part for part in missing}
        for done, future in enumerate(completed(list(work))):
            folder.keep(work[future].name, future.result())
            step(len(order.parts) - len(missing) + done + 1, len(order.parts))
    for path in add or []:
        _add(folder, path, model)
    about = folder.about
    if missing:
        about |= {"versions": versions(), "seconds": about.get("seconds", 0) + time.perf_counter() - began}
    about["models"] = {"seen": SEEN, "unseen": UNSEEN}
    folder.describe(about)
    groups = folder.load("train", "measured")
    summary = {"folder": str(out), "states": len(groups), "environments": environments, **about}
    if json:
        print_json(summary)
    else:
        print_line(f"{out}: {len(groups):,} states of {environments} environments; next: autobyte fit {out}")


def make(part: "Part") -> "Groups":
    """Make a part, in whatever process this runs."""
    from autobyte import models
    from autobyte.simulator.observe import truth_s, window

    names = UNSEEN if part.kind == "judged-unseen" else SEEN
    return part.make({name: models.load(name) for name in names}, window, truth_s)


def _add(folder: "Folder", path: Path, model: str) -> None:
    """Add the windows of a folder that training or `compare` wrote; training wrote its model beside them.

    Raises:
        InputError: its windows have no statistics, or no model is known for them.
        FileError: it holds no windows.
    """
    from dataclasses import replace

    from autobyte.errors import InputError
    from autobyte.nets.dataset import Groups, measured
    from autobyte.results import DATABASE, MODEL, Results

    with Results.read(path / DATABASE if path.is_dir() else path) as results:
        beside = path / MODEL
        recorded = str(beside) if beside.exists() else results.run.get("job", {}).get("model", "")
        known = _known_model(model or recorded, path)
        runs = dict[tuple[str, int], list[Any]]()
        for trial in results.trials():
            window = results.find(tuner=trial.tuner, seed=trial.seed, number=trial.number)
            if window is not None and window.stats is not None:
                runs.setdefault((trial.tuner, trial.seed), []).append(window)
    if not runs:
        raise InputError(f"{path} has no windows with runtime statistics")
    groups = [measured(known, windows, number=index) for index, windows in enumerate(runs.values())]
    name = Groups.join(groups).digest  # the same windows are added once
    first = 1_000_000 + int(name[:8], 16)  # environments of other numbers than all simulated ones
    numbered = [replace(one, environment=one.environment + first) for one in groups]
    folder.keep(f"measured-{name}.npz", Groups.join(numbered))


def _known_model(name: str, path: Path) -> "Model":
    from autobyte.errors import InputError
    from autobyte.models import find

    if not name:
        raise InputError(f"{path} does not say which model it trained; name it with --model")
    return find(name)
