"""The example of figures 1 and 2: three layers, a timeline of one step, and how it is drawn."""

from typing import Any

import pandas as pd
import style
from matplotlib.axes import Axes

from autobyte.config import Config
from autobyte.job import Cluster, Job, Model
from autobyte.scheduler.policies import make_plan
from autobyte.simulator.simulate import simulate

# The paper gives neither sizes nor times of its example. These are round numbers, chosen before anything was run:
# three equal layers, the last one large as in a CNN, 90 ms of compute and 90 ms on the wire.
FORWARD_S, BACKWARD_S = 10e-3, 20e-3
MB = (20, 20, 50)
BYTES_PER_S = 1e9  # two workers: on a ring every byte crosses the link once
OVERHEAD_S = 0.5e-3  # per block
COLOURS = (style.BLUE, style.ORANGE, style.TEAL)  # of the layers


def job(*, latency_s: float) -> Job:
    """Two workers that train three layers."""
    rows = [(f"layer {i}", [(f"weight {i}", mb * 250_000)], FORWARD_S, BACKWARD_S) for i, mb in enumerate(MB)]
    cluster = Cluster.uniform(2, BYTES_PER_S, latency_s=latency_s, overhead_s=(OVERHEAD_S, 0.0))
    return Job(Model.build("contrived", rows, batch_size=1), cluster)


def step_s(of: Job, config: Config) -> float:
    """Time of a step (s)."""
    return simulate(make_plan(of, config)).mean_s


def spans(of: Job, config: Config, name: str) -> list[dict[str, Any]]:
    """One step as rows: what the first worker computes, and when each block is on the wire (ms)."""
    trace = simulate(make_plan(of, config), trace=True).trace
    assert trace is not None
    rows = [
        (span.phase, span.layer, span.start_s, span.stop_s)
        for span in trace.spans
        if span.rank == 0 and (span.phase, span.step) in (("backward", 0), ("forward", 1))
    ]
    latency_s = 2 * of.cluster.latency_s  # a block has left the link this long before it arrives
    through_s = 0.0
    for block in sorted(trace.blocks, key=lambda block: block.done_s):
        rows.append(("wire", block.layers[0], max(block.start_s, through_s), block.done_s - latency_s))
        through_s = block.done_s - latency_s
    return [
        {"shown": name, "lane": lane, "layer": layer, "start_ms": 1e3 * start, "stop_ms": 1e3 * stop}
        for lane, layer, start, stop in rows
    ]


def draw_step(axes: Axes, spans: pd.DataFrame, title: str) -> None:
    """Draw one step: compute above, the network below."""
    for row in spans.to_dict("records"):
        wire = row["lane"] == "wire"
        width = row["stop_ms"] - row["start_ms"]
        axes.broken_barh(
            [(row["start_ms"], width)],
            (0.0, 0.9) if wire else (1.0, 0.9),
            facecolor=COLOURS[row["layer"]],
            alpha=0.55 if row["lane"] == "backward" else 1.0,
            edgecolor="white",
            linewidth=0.4,
        )
        if width >= 9:
            text = f"{'P' if wire else row['lane'][0].upper()}{row['layer']}"
            middle = (row["start_ms"] + row["stop_ms"]) / 2
            ink = style.INK if row["lane"] == "backward" else "white"
            axes.text(middle, 0.43 if wire else 1.43, text, ha="center", va="center", color=ink, fontsize=6)
    axes.set_title(title, pad=2)
    axes.set_yticks([0.45, 1.45], ["network", "compute"])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.axvline(spans["stop_ms"].max(), color=style.INK, linewidth=0.7)
