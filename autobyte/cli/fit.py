"""`autobyte fit`: the meta-network's weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autobyte.cli.options import JsonOption

if TYPE_CHECKING:
    from autobyte.nets.training import FitProgress


def fit(
    *,
    dataset: Annotated[Path, typer.Argument(help="a folder that `autobyte collect --out FOLDER` wrote")],
    variant: Annotated[str, typer.Option("--variant", help="improved, or paper (as published)")] = "improved",
    out: Annotated[
        Path | None, typer.Option("--out", help="file for the weights; default: VARIANT.npz in the folder")
    ] = None,
    epochs: Annotated[
        int, typer.Option("--epochs", help="most epochs; fitting stops earlier if validation does not improve")
    ] = 60,
    seed: Annotated[int, typer.Option("--seed", help="random seed of split, order and initial weights")] = 0,
    json: JsonOption = False,
) -> None:
    """Train the meta-network, and score its choices.

    Writes weights and scores side by side. Run it again to continue an interrupted fit.

    Example: autobyte fit out/dataset --variant improved
    """
    import time

    from autobyte.errors import InputError

    if out is not None and out.suffix != ".npz":
        raise InputError(f"--out must end in .npz, got '{out}'; scores go into the .json file of the same name")

    from autobyte.cli.console import print_json, print_line, print_note, print_table, progress
    from autobyte.nets import stored
    from autobyte.nets.backend import keras
    from autobyte.nets.collection import Folder
    from autobyte.nets.metanet import VARIANTS
    from autobyte.nets.training import errors, predicted_s, replay_of, scores
    from autobyte.nets.training import fit as fit_net
    from autobyte.results import versions
    from autobyte.units import format_percent

    if variant not in VARIANTS:
        from autobyte.errors import unknown

        raise unknown("variant", variant, VARIANTS)
    if epochs < 1:
        raise InputError(f"epochs must be at least 1, got {epochs}")
    keras()  # before all parts are read: it needs an extra
    folder, began = Folder(dataset), time.perf_counter()
    groups = folder.load("train", "measured")
    path = out or dataset / f"{variant}.npz"
    with progress(f"fitting {variant}") as step:

        def epoch(now: "FitProgress") -> None:
            step(now.epoch + 1, epochs, f"loss {now.loss:.4f}, validation {now.validation:.4f}")

        net, held = fit_net(
            groups,
            variant=variant,
            epochs=epochs,
            seed=seed,
            checkpoint=path.with_suffix(".checkpoint.npz"),
            progress=epoch,
        )
    judged = {"seen models": folder.load("judged"), "unseen models": folder.load("judged-unseen")}
    figures = {name: scores(net, truth) for name, truth in judged.items()}
    about = {
        "what": "simulated",
        "variant": variant,
        "seed": seed,
        "epochs_at_most": epochs,
        "dataset": folder.about | {"digest": groups.digest},
        "versions": versions(),
        "seconds": round(time.perf_counter() - began, 1),
        "validation": errors(predicted_s(net, held), held),
        "scores": figures,
    }
    stored.save(net, replay_of(net, groups), path, about=about)
    if json:
        print_json(about)
        return
    print_line(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    rows = [
        (
            f"{name}: {who}",
            format_percent(score[f"{key}regret"]),
            format_percent(score[f"{key}regret_p90"]),
            format_percent(score["gap_closed"]) if not key and "gap_closed" in score else "",
            format_percent(score["mape"]) if not key else "",
            f"{score['rank_correlation']:.2f}" if not key else "",
        )
        for name, score in figures.items()
        for who, key in (("this network", ""), ("closed form alone", "floor_"), ("best constant", "constant_"))
    ]
    heads = ("regret of what it would choose", "median", "90th percentile", "gap closed", "MAPE", "rank correlation")
    print_table(heads, rows)
    print_note(
        "Simulated; after one window under the default. gap closed: from the best constant to the oracle, in the "
        "median of jobs where that is at least 5 %."
    )
