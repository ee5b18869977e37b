"""Figure 2: the credit on a contrived example; 1X leaves the network idle, too much defeats priority.

    python paper/fig02_credit.py        # 5 seconds

Simulated. Writes data/fig02_credit.csv, data/fig02_credit.spans.csv and figures/fig02_credit.{pdf,png}.
"""

import contrived
import sheet
import style

from autobyte.config import Config

NAME = "fig02_credit"
PARTITION_BYTES = 5_000_000  # S_p
LATENCY_S = 1e-3  # per hop, two hops: at 1X every block leaves the link idle for 2 of 7.5 ms
RATIOS = tuple(range(1, 17))  # S_c / S_p
SHOWN = (1, 2, 5)  # as in figure 2(a), (b) and (c)

options = sheet.options(__doc__).parse_args()
if not options.redraw:
    job = contrived.job(latency_s=LATENCY_S)
    baseline_s = contrived.step_s(job, Config(1, 1, "fifo"))
    configs = {ratio: Config(PARTITION_BYTES, ratio * PARTITION_BYTES) for ratio in RATIOS}
    rows = [
        {"credit_ratio": ratio, "step_ms": 1e3 * seconds, "speedup": baseline_s / seconds}
        for ratio, seconds in ((ratio, contrived.step_s(job, config)) for ratio, config in configs.items())
    ]
    sheet.write(rows, NAME, options.out)
    shown = [row for ratio in SHOWN for row in contrived.spans(job, configs[ratio], f"{ratio}X")]
    sheet.write(shown, f"{NAME}.spans", options.out)

rows, spans = sheet.read(NAME, options.out), sheet.read(f"{NAME}.spans", options.out)
speedup = dict(zip(rows["credit_ratio"], rows["speedup"], strict=True))
figure, axes = style.new(3.5, rows=4, height_ratios=(1, 1, 1, 1.7))
for panel, letter, ratio in zip(axes[:3], "abc", SHOWN, strict=True):
    title = f"({letter}) credit {ratio}X: {speedup[ratio]:.2f}x"
    contrived.draw_step(panel, sheet.where(spans, shown=f"{ratio}X"), title)
    panel.set_xlim(0, spans["stop_ms"].max() * 1.01)
axes[0].tick_params(labelbottom=False)
axes[1].tick_params(labelbottom=False)
axes[2].set_xlabel("ms")
axes[3].plot(list(speedup), list(speedup.values()), color=style.BLUE, marker="o")
axes[3].set_title("(d) every credit")
axes[3].set_xlabel("credit (multiples of the partition)")
axes[3].set_ylabel("speed / baseline")
axes[3].set_xticks([1, 2, 4, 6, 8, 10, 12, 14, 16])
axes[3].grid(axis="y")
style.save(figure, NAME, options.out / "figures")
