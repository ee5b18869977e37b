"""The tables of docs/benchmarks.md about training on shaped links, from what `make shaped` has kept in docs/data.

python tools/shaped_tables.py
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from judge_tables import fill, markdown

from autobyte.bench.bench import label

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "data"
NAMES = {"vgg16": "VGG16", "gpt2": "GPT-2", "densenet121": "DenseNet121", "resnet50": "ResNet50"}
ENGINES = {"allreduce": "all-reduce", "ps": "servers"}
SCHEDULERS = {
    "fifo": "FIFO",
    "ddp-default": "`DistributedDataParallel`, its default",
    "ddp-best": "`DistributedDataParallel`, best of 1, 4, 25, 100 MiB",
    "autobyte-default": "AutoByte, default",
    "autobyte-tuned": "AutoByte, tuned by the twin",
    "autobyte-auto": "AutoByte, `auto`",
}
ENOUGH = 1.005  # of DDP's step; `auto` is never to take longer
COUNTS = 0.05  # the gap between DDP at its best and the bound from which a share of it says something

Row = dict[str, Any]


def kept(folder: str) -> list[dict[str, Any]]:
    """Every cell; models as they are named here, rates falling."""
    outcomes = [json.loads(path.read_text(encoding="utf-8")) for path in (DATA / folder).glob("*.json")]
    order = list(NAMES)
    return sorted(outcomes, key=lambda outcome: (order.index(outcome["cell"]["model"]), -outcome["cell"]["rate"]))


def cells(folder: str) -> Iterator[tuple[str, float, list[Row]]]:
    """Model, rate that links stand for (Gbit/s) and rows of every cell."""
    for outcome in kept(folder):
        yield (
            outcome["cell"]["model"],
            outcome["cell"]["rate"] * 8e-9 * outcome["cell"].get("dilation", 1),
            outcome["rows"],
        )


def _noted(folder: str) -> str:
    """What went wrong in the launches: cores that other work used meanwhile, links that did not hold their rate."""
    warnings = [
        f"{NAMES[outcome['cell']['model']]} at {outcome['cell']['rate'] * 8e-9:g} Gbit/s, "
        + outcome["warning"].removesuffix(": measure again")
        for outcome in kept(folder)
        if outcome["warning"]
    ]
    return f"\nWarnings of the launches: {'; '.join(warnings) or 'none'}."


def schedulers(folder: str) -> str:
    """Every cell of a folder: DDP at its best, and what AutoByte makes of it."""
    body = []
    for model, gbit, rows in cells(folder):
        known = {(row["scheduler"], row["architecture"]): row for row in rows}
        ddp = known["ddp-best", "allreduce"]
        gap = ddp["step_s"] / ddp["bound_s"] - 1
        line = [NAMES[model], f"{gbit:g} Gbit/s", _ms(ddp["bound_s"]), f"{_ms(ddp['step_s'])} (+{100 * gap:.0f} %)"]
        line.append(_ms(known["fifo", "allreduce"]["step_s"]))
        for which in (
            ("autobyte-default", "allreduce"),
            ("autobyte-tuned", "allreduce"),
            ("autobyte-auto", "allreduce"),
            ("autobyte-tuned", "ps"),
        ):
            row = known[which]
            closed = f", {100 * row['gap_closed']:.0f} %" if gap > COUNTS and row["gap_closed"] is not None else ""
            line.append(f"{_ms(row['step_s'])} ({row['speedup_over_ddp']:.2f}x{closed})".replace("-", "−"))
        body.append(line)
    columns = ["default, all-reduce", "tuned by the twin, all-reduce", "`auto`", "tuned by the twin, servers"]
    return markdown(["model", "link", "bound", "DDP at its best", "FIFO", *columns], body) + _noted(folder)


def speed() -> str:
    """What a reader of the first page wants to know: `auto` beside DDP at 1 Gbit/s."""
    body = []
    for model, gbit, rows in cells("bench"):
        if gbit != 1:
            continue
        known = {(row["scheduler"], row["architecture"]): row for row in rows}
        plain, ddp, ours = (known[which, "allreduce"] for which in ("ddp-default", "ddp-best", "autobyte-auto"))
        steps = (_ms(row["step_s"]) for row in (plain, ddp, ours))
        gain = ours["speedup_over_ddp"]
        over_plain = gain / plain["speedup_over_ddp"]
        body.append([NAMES[model], *steps, _ms(ours["bound_s"]), f"{gain:.2f}x", f"{over_plain:.2f}x"])
    heads = ["DDP, default buckets", "DDP, best of 4 bucket sizes", 'AutoByte, `policy="auto"`', "lower bound"]
    return markdown(["one step of", *heads, "gain over best DDP", "gain over default DDP"], body)


def reach() -> str:
    """VGG16 scaled to a tenth, every scheduler of the bench, as it is and compressed."""
    ((_, _, rows),) = cells("reach")
    body = [
        [
            SCHEDULERS[row["scheduler"]],
            ENGINES[row["architecture"]],
            row["wire_dtype"] or "fp32",
            label(row["config"]),
            _ms(row["step_s"]),
            f"{row['over_bound']:.2f}x",
            f"{row['speedup_over_ddp']:.2f}x",
        ]
        for row in rows
    ]
    heads = [
        "scheduler",
        "architecture",
        "bytes on the wire",
        "config",
        "step",
        "step / bound",
        "speed over DDP at its best",
    ]
    return markdown(heads, body) + _noted("reach")


def policies() -> str:
    """Every policy, tuned, on every model: step over bound; the fastest and who is within 1 % of it in bold."""
    models = [(model, {row["scheduler"]: row for row in rows}) for model, _, rows in cells("policies")]
    names = sorted(models[0][1], key=lambda name: sum(rows[name]["over_bound"] for _, rows in models))
    body = []
    for name in names:
        line = [f"`{name}`" if not name.startswith("ddp-") else f"real DDP, {name.removeprefix('ddp-')} bucket"]
        for _, rows in models:
            row, best = rows[name], min(other["step_s"] for other in rows.values())
            text = f"{_ms(row['step_s'])}, {row['over_bound']:.2f}x"
            line.append(f"**{text}**" if row["step_s"] <= 1.01 * best else text)
        body.append(line)
    return markdown(["policy", *(NAMES[model] for model, _ in models)], body) + _noted("policies")


def auto() -> str:
    """`auto` by itself, launched several times: the median of the launches, the fastest and the slowest."""
    body = []
    for model, _, rows in cells("auto"):
        row = next(row for row in rows if row["scheduler"] == "auto")
        bound = row["bound_s"]
        low, high = row["step_low_s"] / bound, row["step_high_s"] / bound
        step = f"{_ms(row['step_s'])} ({_ms(row['step_low_s'])} … {_ms(row['step_high_s'])})"
        over = f"{row['over_bound']:.3f}x ({low:.3f} … {high:.3f})"
        body.append([NAMES[model], _ms(bound), step, over, f"{row['speedup_over_ddp']:.2f}x"])
    return markdown(["model", "bound", "step", "step / bound", "speed over DDP at its best"], body) + _noted("auto")


def never() -> str:
    """`auto` beside DDP at its best bucket, the default beside DDP's default: medians of launches, and ranges."""
    outcomes = kept("never")
    if not outcomes:
        return "Not measured yet."
    body, slower = [], []
    for outcome in outcomes:
        cell, launches = outcome["cell"], outcome["launches"]
        ddp_s, auto_s = ([median(each[key]) for each in launches] for key in ("ddp_s", "steps_s"))
        ratios = [auto / ddp for auto, ddp in zip(auto_s, ddp_s, strict=True)]
        gbit = f"{cell['rate'] * 8e-9 * cell['dilation']:g} Gbit/s{', dilated' if cell['dilation'] != 1 else ''}"
        latest = launches[-1]
        chosen = "DDP's buckets" if latest["reduced"] else _chosen("auto", latest["config"])
        over = _spread(ratios)
        by_default = [
            median(each["default_s"]) / median(each["ddp_default_s"]) for each in launches if "default_s" in each
        ]
        best = f"{latest['bucket_mib']} MiB"
        body.append([NAMES[cell["model"]], gbit, best, _ms(median(ddp_s)), chosen, _ms(median(auto_s)), over])
        body[-1] += [_spread(by_default) if by_default else "not measured", str(len(launches))]
        if median(ratios) > ENOUGH:
            within = ", the fastest launch is not" if min(ratios) <= ENOUGH else ""
            slower.append(f"{NAMES[cell['model']]} at {gbit}{within}")
        if by_default and median(by_default) > ENOUGH:
            slower.append(f"the default on {NAMES[cell['model']]} at {gbit}")
    heads = ["model", "link", "DDP's best bucket", "its step", "`auto` chose", "its step", "`auto` / DDP"]
    heads += ["default / DDP's default", "launches"]
    said = f"\nMore than {100 * (ENOUGH - 1):.1f} % slower than DDP at its best: {'; '.join(slower) or 'none'}."
    return markdown(heads, body) + said + _busy(outcomes)


def _spread(ratios: list[float]) -> str:
    return f"{median(ratios):.4f} ({min(ratios):.4f} … {max(ratios):.4f})"


def _busy(outcomes: list[dict[str, Any]]) -> str:
    """How busy other work kept the machine at most, and how many links did not hold their rate."""
    launches = [launch for outcome in outcomes for launch in outcome["launches"]]
    cores, unsound = (max(launch[key] for launch in launches) for key in ("other_cores", "unsound_links"))
    return f" At most, others used {cores:.1f} cores, and {unsound} of 8 links did not hold their rate."


def configs() -> str:
    """What every policy was tuned to."""
    models = [(model, {row["scheduler"]: row for row in rows}) for model, _, rows in cells("policies")]
    body = [
        [f"`{name}`", *(_chosen(name, rows[name]["config"]) for _, rows in models)]
        for name in models[0][1]
        if not name.startswith("ddp-")
    ]
    return markdown(["policy", *(NAMES[model] for model, _ in models)], body)


def _chosen(name: str, config: dict[str, Any]) -> str:
    """A config; `auto`'s with the policy that it chose."""
    return f"{config.get('policy', 'bytescheduler')} {label(config)}" if name == "auto" else label(config)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"


def tables_by_page() -> dict[Path, dict[str, str]]:
    """Every table by the page that it is on and its name."""
    benchmarks = {
        "cells": schedulers("bench"),
        "dilated": schedulers("dilated"),
        "clipped": schedulers("clip"),
        "clipped-dilated": schedulers("clip-dilated"),
        "policies": policies(),
        "configs": configs(),
        "reach": reach(),
        "auto": auto(),
        "never": never(),
    }
    return {ROOT / "docs" / "benchmarks.md": benchmarks, ROOT / "README.md": {"speed": speed()}}


if __name__ == "__main__":
    for page, tables in tables_by_page().items():
        fill(page, tables)
