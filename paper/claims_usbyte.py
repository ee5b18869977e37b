"""US-Byte's abstract: its speed-ups over others, and how near to the optimum it is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import sheet
from claim import Cells, Claim, Notes, Numbers, Section, Table
from reading import percent, times
from style import MODELS

SCALE, GAP, PEERS, DRIFT = "usbyte_scale", "usbyte_gap", "usbyte_peers", "usbyte_drift"
POLICIES = Path(__file__).parents[1] / "docs" / "data" / "policies"
ON_LINKS = {"wfbp": "WFBP", "bytescheduler:fusion=1": "ByteScheduler, tuned and fused", "mgwfbp": "MG-WFBP"}
PEER_METHODS = ["bytescheduler", "mg-wfbp", "wfbp"]


def fastest(rows: pd.DataFrame, method: str, other: str) -> float:
    """The largest speed-up over another method, over models and rates."""
    steps = rows.pivot(index=["model", "gbit"], columns="method", values="step_ms")
    return (steps[other] / steps[method]).max()


def faster(text: str, published: float, shipped: str, tuned: str, workers: int, network: str) -> Claim:
    """A speed-up of the abstract, over others as shipped, as advised, and tuned."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        jobs = sheet.where(rows, workers=workers, network=network)
        ours = fastest(jobs, "usbyte published", shipped)
        return (
            times((ours,)),
            times((fastest(jobs, "usbyte published", "bytescheduler advised"),)) if "wfbp" not in tuned else "–",
            times((fastest(jobs, "usbyte published", tuned),)),
            times((fastest(jobs, "usbyte", tuned),)),
            times((fastest(jobs, "usbyte", "bytescheduler fused"),)) if "wfbp" not in tuned else "–",
        )

    return Claim(f"{text}, up to", SCALE, judge, times((published,)))


def recorded(model: str) -> Any:
    """What was measured for docs/benchmarks.md."""
    return json.loads((POLICIES / f"{model}-1000Mbit.json").read_text(encoding="utf-8"))


def measured_policies(model: str) -> dict[str, float]:
    """Step times of tuned policies on shaped links (s), by policy; of what was measured for docs/benchmarks.md."""
    rows = recorded(model)["rows"]
    return {row["scheduler"]: row["step_s"] for row in reversed(rows)}


def on_links(model: str) -> Claim:
    """Ours over others on shaped links, each at its best config."""

    def judge(_: pd.DataFrame, __: Numbers) -> Cells:
        steps = measured_policies(model)
        faster = (times((steps[other] / steps["usbyte"],)) for other in ON_LINKS)
        return [*faster, recorded(model)["warning"] or "–"]

    return Claim(MODELS[model], SCALE, judge)


def above_optimum(fusion: int, method: str, text: str, jobs: int) -> Claim:
    """How far a search is from the optimum."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        ratios = sheet.where(rows, fusion=fusion)[method]
        return percent((ratios.median() - 1,)), percent((ratios.max() - 1,))

    return Claim(f"{text}, {jobs} jobs", GAP, judge)


def over_peers(rows: pd.DataFrame, _: Numbers) -> Cells:
    """How far ours is from the best of the others, tuned."""
    ratios = 1 / rows[PEER_METHODS].min(axis=1)
    return percent((ratios.median() - 1,)), percent((ratios.max() - 1,))


def replanned(change: str) -> Claim:
    """What a plan from before a change loses after it."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        after = sheet.where(rows, change=change)
        lost = after["stale_over_bound"] / after["new_over_bound"] - 1
        model = after.loc[lost.idxmax(), "model"]
        return percent((lost.median(),)), percent((lost.max(),)), MODELS.get(model, model)

    return Claim(change, DRIFT, judge)


HEADS: Sequence[str] = (
    "claim",
    "paper",
    "its algorithm, others as shipped",
    "its algorithm, ByteScheduler as its authors advise",
    "its algorithm, others tuned",
    "ours with fusion, others tuned",
    "and with our fusion in ByteScheduler",
)
US_BYTE = Section(
    "US-Byte: its abstract",
    SCALE,
    (
        Table(
            lambda _: HEADS,
            (
                faster("8 workers, over ByteScheduler", 1.26, "bytescheduler shipped", "bytescheduler", 8, "ring"),
                faster("8 workers, over WFBP", 1.56, "wfbp", "wfbp", 8, "ring"),
                faster("128 workers, ring", 1.69, "bytescheduler shipped", "bytescheduler", 128, "ring"),
                faster("128 workers, 8 a node", 1.69, "bytescheduler shipped", "bytescheduler", 128, "two-level"),
            ),
        ),
        Table(
            lambda _: (
                "ours with fusion, emulated",
                *(f"over {text}" for text in ON_LINKS.values()),
                "warned while it was measured",
            ),
            [on_links(model) for model in ("vgg16", "resnet50", "densenet121", "gpt2")],
            ("", "Emulated: all-reduce, 4 hosts at 1 Gbit/s, one launch each, from `docs/data/policies`.", ""),
        ),
        Table(
            lambda _: ("over exhaustive search, simulated", "median", "worst"),
            (
                above_optimum(0, "usbyte-published", "as published, its unit tuned, without fusion", 500),
                above_optimum(0, "usbyte", "ours, without fusion", 500),
                above_optimum(1, "usbyte", "ours, with fusion", 500),
            ),
            ("", "![optimality gap](figures/usbyte_gap.png)", ""),
        ),
        Table(
            lambda _: (
                "ours with fusion over the best of tuned ByteScheduler, MG-WFBP and WFBP, simulated",
                "median",
                "worst",
            ),
            (Claim("1000 random jobs", PEERS, over_peers),),
            ("", "![beside the others on random jobs](figures/usbyte_peers.png)", ""),
        ),
        Table(
            lambda _: (
                "a step under US-Byte's plan for 10 Gbit/s takes longer than under a new plan by, simulated",
                "median of five models",
                "at most",
                "on",
            ),
            [replanned(f"link of {gbit} Gbit/s") for gbit in (3, 25)] + [replanned("compute 1.5 times as long")],
            ("",),
        ),
        Notes(
            lambda _: (
                "The models, batches and rates of its experiments are not known to us. We take ‘the state of the "
                "art’ of its simulation to be ByteScheduler. Most of the gain over ByteScheduler is a gain over "
                "partitions of 4 MB; once these are tuned, little of it is left. Ours with fusion gains mostly by "
                "fusion: with fusion as a third knob, ByteScheduler is close (last column).",
                "‘Near-optimal’ holds: without fusion, the published search comes close to the best possible order "
                "and cuts.",
            )
        ),
    ),
)
SECTIONS = (US_BYTE,)
