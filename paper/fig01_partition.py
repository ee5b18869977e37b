"""Figure 1: tensor partitioning on a contrived example; too large a partition gains less, too small a one as well.

    python paper/fig01_partition.py        # 5 seconds

Simulated. Writes data/fig01_partition.csv, data/fig01_partition.spans.csv and figures/fig01_partition.{pdf,png}.
"""

import contrived
import sheet
import style

from autobyte.config import Config

NAME = "fig01_partition"
SIZES_MB = (0.125, 0.25, 0.5, 1, 2, 3, 4, 5, 7, 10, 15, 20, 25, 35, 50)  # S_p

options = sheet.options(__doc__).parse_args()
if not options.redraw:
    # No latency: a window of one partition leaves no gap, so that S_p alone makes the difference.
    job = contrived.job(latency_s=0.0)
    baseline = Config(1, 1, "fifo")
    baseline_s = contrived.step_s(job, baseline)
    configs = {mb: Config(round(mb * 1e6), round(mb * 1e6)) for mb in SIZES_MB}
    rows = [
        {"partition_mb": mb, "step_ms": 1e3 * seconds, "speedup": baseline_s / seconds}
        for mb, seconds in ((mb, contrived.step_s(job, config)) for mb, config in configs.items())
    ]
    best = SIZES_MB.index(max(rows, key=lambda row: row["speedup"])["partition_mb"])
    spans = contrived.spans(job, baseline, "baseline")
    for mb in SIZES_MB[best : best + 2]:  # the "appropriate" one, as in figure 1(b), and a larger one, as in 1(c)
        spans += contrived.spans(job, configs[mb], f"{mb} MB")
    sheet.write(rows, NAME, options.out)
    sheet.write(spans, f"{NAME}.spans", options.out)

rows, spans = sheet.read(NAME, options.out), sheet.read(f"{NAME}.spans", options.out)
speedup = dict(zip(rows["partition_mb"], rows["speedup"], strict=True))
figure, axes = style.new(3.5, rows=4, height_ratios=(1, 1, 1, 1.7))
for panel, letter, shown in zip(axes[:3], "abc", spans["shown"].unique(), strict=True):
    gain = "" if shown == "baseline" else f": {speedup[float(shown.split()[0])]:.2f}x"
    title = "no partition, no priority" if shown == "baseline" else f"partitions of {shown}{gain}"
    contrived.draw_step(panel, sheet.where(spans, shown=shown), f"({letter}) {title}")
    panel.set_xlim(0, spans["stop_ms"].max() * 1.01)
axes[0].tick_params(labelbottom=False)
axes[1].tick_params(labelbottom=False)
axes[2].set_xlabel("ms")
axes[3].semilogx(list(speedup), list(speedup.values()), color=style.BLUE, marker="o")
axes[3].set_title("(d) every partition size")
axes[3].set_xlabel("partition size (MB)")
axes[3].set_ylabel("speed / baseline")
axes[3].set_xticks([0.125, 0.5, 2, 5, 10, 25, 50], ["⅛", "½", "2", "5", "10", "25", "50"], minor=False)
axes[3].minorticks_off()
axes[3].grid(axis="y")
style.save(figure, NAME, options.out / "figures")
