"""The figures on real links: emulated models on hosts in network namespaces, measured cell after cell.

Compute takes as long as the model's, by sleeping: time is not dilated. Sizes and rates shrink together: a tenth of
the gradients, partitions and credits takes as long on links of a tenth of the rate. What a block costs beyond its
bytes does not shrink; it is gloo's and the kernel's. Small tensors are fused, as training does by default. Every cell
is measured in several launches. A launch whose rows are there is not measured again, so a run that was killed, or
that its limit of minutes has ended, goes on. Rows without a date are older ones; a cell that is measured loses them.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import runs
import sheet
import style

from autobyte.bench.bench import BUCKETS_MIB, Cell, measure
from autobyte.bench.grid import read
from autobyte.bench.priority import undisturbed
from autobyte.comparison.carried import TIES
from autobyte.comparison.judge import TOLERANCE
from autobyte.config import BYTESCHEDULER_DEFAULT, Config
from autobyte.models import find
from autobyte.testbed import Testbed
from autobyte.tuning import WINDOW
from autobyte.units import KIB

HOSTS, LINK_GBIT = 4, 1  # what one machine with two cores bears: autobyte testbed check
TUNERS = ("released", "bayesian", "twin", "metanet-published", "metanet")
#: At less a step takes seconds, of VGG16 at 0.5 and 1 seven and more, and no order helps.
GBITS = {"resnet50": (5, 10, 25), "vgg16": (10, 25), "alexnet": (5, 10, 25)}
STEPS = 10  # measured, of what does not search
QUICK_GBIT = 200  # sizes shrink to a 200th

RUN = ("architecture", "start", "seed", "tuner")  # what names a run of figure 5

Place = tuple[Any, ...]


def cell(model: str, gbit: float, options: Namespace) -> Cell:
    """A model on links that stand for links of that rate."""
    gbit = QUICK_GBIT if options.quick else gbit
    rate, hosts = LINK_GBIT * jobs.GBIT, 2 if options.quick else HOSTS
    return Cell(model, hosts, rate, compute_s=find(model).compute_s, size_scale=LINK_GBIT / gbit)


def grid_cell(model: str, compute_s: float, scale: float) -> Cell:
    """A cell as `autobyte record` has them: compute of its own, and sizes that make communication as long."""
    return Cell(model, HOSTS, LINK_GBIT * jobs.GBIT, compute_s=compute_s, size_scale=scale)


def shrunk(pair: Config, of: Cell) -> Config:
    """A pair of the paper's sizes on the shrunk model."""
    partition = max(4, round(pair.partition_bytes * of.size_scale))
    credit = max(4, round(pair.credit_bytes * of.size_scale))
    return Config(partition, credit, knobs={"fusion": 1.0})


def label(shrunk_pair: dict[str, Any], of: Cell) -> str:
    """A pair of the shrunk model in the paper's sizes."""
    config = Config.from_json(shrunk_pair)
    return jobs.label(
        Config(round(config.partition_bytes / of.size_scale), round(config.credit_bytes / of.size_scale))
    )


def scheduler(name: str, engine: str, config: Config, **more: Any) -> dict[str, Any]:
    """A run of AutoByte's optimizer that begins with a config."""
    start = {"policy": config.policy, "config": config.to_json(), "wire_dtype": None}
    return {"name": name, "scheduler": "autobyte", "engine": engine} | start | more


def search(name: str, engine: str, start: Config, of: Cell, windows: int, **more: Any) -> dict[str, Any]:
    """A run of AutoByte's optimizer with a tuner, in the space that it has, shrunk where that is its own."""
    tuner, space = runs.spaced(name)
    if name in runs.SPACED:
        low, high = space.partition_bytes
        least = max(4, round(low * of.size_scale))
        more["space"] = {"partition_bytes": [least, least * (high // low)], "credit_ratio": space.credit_ratio}
    return scheduler(name, engine, start, tuner=tuner, windows=windows, **more)


def collect(
    name: str,
    places: Sequence[Place],
    keys: Sequence[str],
    work: Callable[[Place], list[dict[str, Any]]],
    options: Namespace,
) -> None:
    """Measure the launches that the file does not hold, and write it after each; every place once, then again.

    Begins none after `options.minutes`. The seed of a row is its launch's number.
    """
    path, began = options.out / "data" / f"{name}.csv", time.monotonic()
    rows = sheet.read(name, options.out).drop(columns="what").to_dict("records") if path.exists() else []
    for launch, place in product(range(1 if options.quick else options.launches), places):
        named = dict(zip(keys, place, strict=True)) | {"seed": options.seed + launch}
        there = [row for row in rows if dated(row) and all(row[key] == value for key, value in named.items())]
        if there or (time.monotonic() - began) / 60 > options.minutes:
            continue
        with undisturbed():
            measured = work(place)
        rows = [row for row in rows if dated(row) or any(row[key] != named[key] for key in keys)]
        today = {"date": datetime.now(UTC).date().isoformat()}
        rows += [{key: named[key] for key in keys} | row | named | today for row in measured]
        sheet.write(rows, name, options.out, what="emulated")


def dated(row: Mapping[str, Any]) -> bool:
    """Whether a row says when it was measured."""
    return bool(row.get("date"))


def soundness(row: dict[str, Any]) -> dict[str, Any]:
    """Cores that others used meanwhile, and links that did not hold their rate before."""
    return {"other_cores": row["other_cores"], "unsound_links": row["unsound_links"]}


def windows(row: dict[str, Any], of: Cell, *, every: int = 5) -> list[dict[str, Any]]:
    """Speeds of a watched run: a row for every five steps."""
    samples = of.hosts * find(of.model).batch_size
    return [
        {"iteration": WINDOW * number + k, "pair": label(window["config"], of)}
        | {"samples_per_s": samples * every / sum(window["steps_s"][k : k + every])}
        | soundness(row)
        for number, window in enumerate(row["watched"])
        for k in range(0, WINDOW, every)
    ]


def grids(name: str, options: Namespace) -> None:
    """Figure 3: from the grids that `autobyte record` has recorded, not measured again."""
    rows = [row for row in read(sheet.HERE / "data" / "testbed_grid.csv") if row.policy != "none"]
    steps, best = [], []
    for place in dict.fromkeys((row.model, row.rate, row.engine, row.size_scale) for row in rows):
        model, rate, engine, scale = place
        there = [row for row in rows if (row.model, row.rate, row.engine, row.size_scale) == place]
        pairs = {row.config: row.step_s for row in there if row.policy == "bytescheduler"}
        ddp = [row.step_s for row in there if row.policy == "ddp"]
        cell_of = {"architecture": engine, "model": model, "gbit": rate / jobs.GBIT, "size_scale": scale}
        for config, step_s in pairs.items():
            kib, ratio = config.partition_bytes // KIB, config.credit_bytes // config.partition_bytes
            steps.append(cell_of | {"partition_kib": kib, "credit_ratio": ratio, "step_s": step_s})
        kib, ratio = min((row["step_s"], row["partition_kib"], row["credit_ratio"]) for row in steps[-len(pairs) :])[
            1:
        ]
        best_s = min(pairs.values())
        best.append(
            cell_of
            | {"best": f"⟨{kib} KiB,{ratio}⟩", "spread": max(pairs.values()) / best_s - 1, "step_s": best_s}
            | {"over_ddp": min(ddp) / best_s if ddp else ""}
        )
    sheet.write(steps, name, options.out, what="emulated")
    sheet.write(best, f"{name}.best", options.out, what="emulated")


def draw_grids(name: str, folder: Path) -> None:
    """Draw every recorded cell: step time as a part of the best, the best framed."""
    rows = sheet.read(name, folder)
    cells = rows.groupby(["architecture", "model", "gbit"])
    partitions = sorted(rows["partition_kib"].unique())
    figure, axes = style.new(4.6, rows=4, columns=3, sharex=True, sharey=True)
    for place in axes.flat[len(cells) :]:
        place.set_axis_off()
    for place, ((engine, model, gbit), cell_rows) in zip(axes.flat, cells, strict=False):
        step_s = cell_rows.pivot(index="credit_ratio", columns="partition_kib", values="step_s")
        percent = 100 * step_s.min(axis=None) / step_s.to_numpy()
        place.imshow(percent, cmap="cividis", vmin=50, vmax=100, origin="lower", aspect="auto")
        for y, x in np.ndindex(percent.shape):
            ink = "black" if percent[y, x] > 80 else "white"
            frame = {"boxstyle": "square,pad=0.15", "fc": "none", "ec": style.RED, "lw": 1.2}
            place.text(
                x, y, f"{percent[y, x]:.0f}", ha="center", va="center", fontsize=5, color=ink,
                bbox=frame if percent[y, x] == percent.max() else None,
            )  # fmt: skip
        place.set_title(f"{style.MODELS[model]}, {jobs.ARCHITECTURES[engine].split()[-1]}, {gbit:g} G", fontsize=5.5)
        place.set_xticks(
            range(len(partitions)), [{128: "⅛", 256: "¼", 512: "½"}.get(kib, f"{kib // 1024}") for kib in partitions]
        )
        place.set_yticks(range(len(step_s)), [f"{credit}X" for credit in step_s.index])
        place.tick_params(length=0, labelsize=5.5)
        place.spines[:].set_visible(False)
    figure.supxlabel("partition (MiB), credit; speed in % of the best\n4 hosts, sizes scaled", fontsize=6.5)
    style.save(figure, name, folder / "figures", what="emulated")


def convergence(
    name: str, model: str, gbit: float, starts: Sequence[str], tuners: Sequence[str], count: int, options: Namespace
) -> None:
    """Figure 5: from every start, staying there and every tuner, window by window."""
    trained, count = cell(model, gbit, options), 2 if options.quick else count

    def work(place: Place) -> list[dict[str, Any]]:
        engine, start = place
        first = shrunk(jobs.pair(*(float(number) for number in start.split(","))), trained)
        wanted = [scheduler("still", engine, first, watch=2)]
        wanted += [search(tuner, engine, first, trained, count, watch=count) for tuner in tuners]
        measured = measure(trained, wanted, steps=STEPS)
        return [{"tuner": row["name"]} | line for row in measured for line in windows(row, trained)]

    architectures = list(jobs.ARCHITECTURES)[: 1 if options.quick else None]
    places = [(engine, start) for engine in architectures for start in starts[: 1 if options.quick else None]]
    collect(name, places, ("architecture", "start"), work, options)
    _summarise(name, count, options)


def _summarise(name: str, count: int, options: Namespace) -> None:
    """What the runs of figure 5 came to; the best is the fastest window of all on that architecture."""
    rows = sheet.read(name, options.out)
    rows = rows.assign(window=rows["iteration"] // WINDOW, seconds=1 / rows["samples_per_s"])
    speeds = 1 / rows.groupby([*RUN, "window"], sort=False)["seconds"].mean()
    best = speeds.groupby("architecture").max()
    summaries = []
    for place, of_run in speeds.groupby(list(RUN), sort=False):
        architecture, start, seed, tuner = place
        if tuner == "still":
            continue
        still = speeds[architecture, start, seed, "still"].iloc[-1]
        late = np.flatnonzero(of_run < (1 - TOLERANCE) * best[architecture])
        pairs = sheet.where(rows, **dict(zip(RUN, place, strict=True)))["pair"].tolist()
        summaries.append(
            {"architecture": architecture, "start": start, "tuner": tuner, "seed": seed}
            | {"predictions": int(late[-1]) + 1 if late.size else 0, "start_samples_per_s": still}
            | {"end_samples_per_s": of_run.iloc[-1], "best_samples_per_s": best[architecture]}
            | {"end_pair": pairs[-1], "reconfigurations": sum(a != b for a, b in pairwise(pairs))}
        )
    sheet.write(summaries, f"{name}.summary", options.out, what="emulated")


def changing(
    name: str,
    cells: Mapping[Place, Cell],
    part: Callable[[int], float],
    tuners: Sequence[str],
    count: int,
    options: Namespace,
) -> None:
    """Figure 6: BO tuned once on the links as they begin, then every method while they change.

    Args:
        name: of the CSV.
        cells: by architecture and model, those that say most first.
        part: of the rate that links have at a step.
        tuners: that go on.
        count: windows of each method.
        options: the script's.
    """
    count, budget = (4, 2) if options.quick else (count, runs.BUDGET)

    def work(place: Place) -> list[dict[str, Any]]:
        (engine, _), trained = place, cells[place]
        default = shrunk(BYTESCHEDULER_DEFAULT, trained)
        once = search(
            "bayesian", engine, default, trained, budget, watch=budget + 2
        )  # until what it found is in force
        (searched,) = measure(trained, [once], steps=STEPS)
        still = {"default": default, "bayesian": Config.from_json(searched["config"]), "robust": robust(searched)}
        still["constant"] = shrunk(jobs.constant(engine, few=options.quick), trained)
        wanted = [scheduler(method, engine, pair, watch=count) for method, pair in still.items()]
        wanted += [scheduler(tuner, engine, still["bayesian"], tuner=tuner, watch=count) for tuner in tuners]

        def change(testbed: Testbed, step: int) -> None:
            """Links at that step, as parts of what they begin with."""
            rate = part(step) * trained.rate
            for host in range(trained.hosts):
                if testbed.rates(host)[0] != rate:
                    testbed.shape(host, up=rate, down=rate)

        measured = measure(trained, wanted, steps=STEPS, change=change)
        return [{"method": row["name"]} | line for row in measured for line in windows(row, trained)]

    places = list(cells)[: 1 if options.quick else None]
    collect(name, places, ("architecture", "model"), work, options)


def robust(searched: dict[str, Any]) -> Config:
    """Of the pairs that a search saw within TIES of its fastest window, the one with the fewest bytes in flight."""
    took: dict[Config, float] = {}
    for window in searched["watched"]:
        config, mean_s = Config.from_json(window["config"]), float(np.mean(window["steps_s"]))
        took[config] = min(mean_s, took.get(config, mean_s))
    ties = [config for config, mean_s in took.items() if mean_s <= (1 + TIES) * min(took.values())]
    return min(ties, key=lambda config: (config.credit_bytes, config.partition_bytes))


def environments(name: str, engine: str, models: Sequence[str], tuners: Sequence[str], options: Namespace) -> None:
    """Figures 8 and 9: every method on every model and rate, one after the other in one launch."""

    def work(place: Place) -> list[dict[str, Any]]:
        model, gbit = place
        trained = cell(model, gbit, options)
        shared = {"wire_dtype": None, "engine": engine}
        wanted = [{"name": "fifo", "scheduler": "autobyte", "policy": "fifo", **shared}]
        default = shrunk(BYTESCHEDULER_DEFAULT, trained)
        pairs = {"default": default, "constant": shrunk(jobs.constant(engine, few=options.quick), trained)}
        wanted += [scheduler(method, engine, pair) for method, pair in pairs.items()]
        budget = 2 if options.quick else runs.BUDGET
        wanted += [search(tuner, engine, default, trained, budget) for tuner in tuners]
        buckets = [mib * trained.size_scale for mib in BUCKETS_MIB]
        wanted += [{"name": "ddp", "scheduler": "ddp", "bucket_mib": mib, **shared} for mib in buckets]
        rows = [_speed(row, trained) for row in measure(trained, wanted, steps=STEPS)]
        ddp = max((row for row in rows if row["method"] == "ddp"), key=lambda row: row["samples_per_s"])
        return [*(row for row in rows if row["method"] != "ddp"), ddp]

    places = [(model, gbit) for model in models for gbit in GBITS[model]]
    collect(name, places[:1] if options.quick else places, ("model", "gbit"), work, options)


def _speed(row: dict[str, Any], of: Cell) -> dict[str, Any]:
    samples, steps = of.hosts * find(of.model).batch_size, row["steps_s"]
    pair = label(row["config"], of) if "config" in row else f"{row['bucket_mib'] / of.size_scale:g} MiB"
    return (
        {"method": row["name"], "pair": pair}
        | {"samples_per_s": samples / float(np.median(steps))}
        | {"low": samples / max(steps), "high": samples / min(steps)}
        | soundness(row)
    )


def searches(name: str, models: Sequence[str], gbit: float, tuners: Sequence[str], options: Namespace) -> None:
    """Figure 10: every tuner's search, judged by the fastest window that any of them has seen."""
    count = 3 if options.quick else runs.BUDGET + 1

    def work(place: Place) -> list[dict[str, Any]]:
        engine, model = place
        trained = cell(model, gbit, options)
        default = shrunk(BYTESCHEDULER_DEFAULT, trained)
        wanted = [search(tuner, engine, default, trained, count, watch=count) for tuner in tuners]
        measured = measure(trained, wanted, steps=STEPS)
        means = {row["name"]: [float(np.mean(w["steps_s"])) for w in row["watched"]] for row in measured}
        best_s = min(min(took) for took in means.values())
        searched = []
        for row in measured:
            took = means[row["name"]]
            late = [index for index, seconds in enumerate(took) if seconds * (1 - TOLERANCE) > best_s]
            until = late[-1] + 1 if late else 0
            pairs = [label(window["config"], trained) for window in row["watched"]]
            searched.append(
                {"tuner": row["name"], "found": int(until < len(took))}
                | {"iterations": WINDOW * until, "search_s": WINDOW * sum(took[:until])}
                | {"lost_steps": WINDOW * (sum(took) / best_s - len(took)), "end_regret": 1 - best_s / took[-1]}
                | {"reconfigurations": sum(a != b for a, b in pairwise(pairs))}
                | soundness(row)
            )
        return searched

    places = [(engine, model) for engine in jobs.ARCHITECTURES for model in models]
    collect(name, places[:1] if options.quick else places, ("architecture", "model"), work, options)
