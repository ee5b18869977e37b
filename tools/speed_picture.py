"""The picture of the README: a training step under DDP and under AutoByte, beside the least that it can take.

python tools/speed_picture.py

Reads `docs/data/bench` (1 Gbit/s), which `make shaped` measures, and writes `docs/speed.png`.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from shaped_tables import NAMES, cells

OUT = Path(__file__).parent.parent / "docs" / "speed.png"
INK, GREY, ORANGE, BLUE = "#1a1a1b", "#8a8b8d", "#ee7733", "#0077bb"
BARS = {
    "ddp-default": "DDP, default buckets",
    "ddp-best": "DDP, best of 4 bucket sizes",
    "autobyte-auto": "AutoByte (in white: gain over the best DDP)",
}
COLOURS = {"ddp-default": "#c4c5c8", "ddp-best": GREY, "autobyte-auto": BLUE}
WIDTH = 0.28


def draw() -> None:
    """Draw three bars for every model, the bound as a line across them, and AutoByte's gain over the best DDP."""
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 11, "axes.edgecolor": INK, "text.color": INK})
    figure, axes = plt.subplots(figsize=(8.4, 3.7), layout="constrained")
    models = {model: rows for model, gbit, rows in cells("bench") if gbit == 1}
    for place, rows in enumerate(models.values()):
        known = {row["scheduler"]: row for row in rows if row["architecture"] == "allreduce"}
        steps = {name: 1e3 * known[name]["step_s"] for name in BARS}
        for index, (name, step) in enumerate(steps.items()):
            at = place + (index - 1) * WIDTH
            axes.bar(at, step, 0.92 * WIDTH, color=COLOURS[name], label=BARS[name] if not place else None)
            weight = "bold" if name == "autobyte-auto" else "normal"
            axes.text(at, step + 8, f"{step:.0f}", ha="center", fontsize=9.5, weight=weight)
        bound = 1e3 * known["autobyte-auto"]["bound_s"]
        label = "bound: no schedule can be faster" if not place else None
        axes.plot([place - 0.43, place + 0.43], [bound, bound], color=ORANGE, lw=2, label=label)
        style = {"ha": "center", "color": "white", "weight": "bold", "fontsize": 10}
        gain = steps["ddp-best"] / steps["autobyte-auto"]
        axes.text(place + WIDTH, 0.88 * bound, f"{gain:.2f}×", **style)
    axes.set_xticks(np.arange(len(models)), [NAMES[model] for model in models], fontsize=12)
    axes.set_ylabel("ms per training step")
    axes.set_ylim(0, 1150)
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=2, frameon=False, loc="upper right", fontsize=10)
    axes.set_title(
        "A training step on 4 emulated hosts with links of 1 Gbit/s: lower is better", loc="left", fontsize=12
    )
    figure.savefig(OUT, dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    draw()
