"""Training with PyTorch: `import autobyte.torch as ab`, and two changed lines.

This front end stands on `autobyte/exchange/`, as those of other frameworks do. The path of a gradient from autograd's
hook to the update of its layer, through files of this package (./) and others:

    loss.backward()                                  the user's script
        │ a gradient is complete
        ▼
    ./exchange/exchange.py   Exchange ──tells──▶ ./listening.py  Listeners ──▶ ./model/updates.py  (applies due ones)
        │                        │                                  ├──▶ ./model/times.py    (when it was complete)
        │                        │                                  └──▶ ./exchange/verify.py (keeps a copy at first)
        │                        └──lays it in──▶ scheduler/engines/buffers.py  Buffers, where engines find it;
        │                                         from a GPU, a copy in host memory: ./exchange/mirrors.py
        ▼
    exchange/session.py      Session
        │
        ▼
    scheduler/runner.py      Runner ◀──decides── scheduler/core.py  Core
        │ a block starts
        ▼
    scheduler/engines/       all-reduce or parameter server: the network
        │ a block is done, and the runner sees that it was the gradient's last
        ▼
    exchange/session.py      Session: the average has arrived; it lies in `.grad`, or in the copy of a GPU's gradient
        │ the layer's forward pass is about to begin, or something reads a parameter (./model/pending.py)
        ▼
    ./model/updates.py       Updates: waits through Exchange, which brings a GPU's average back, and runs the
                             optimizer's step for this layer

`optimizer.py` is on top of this. It hands every call on to `on.py`, or to `off.py` where AutoByte is off. `On.step()`
closes the step of the exchange and says that every layer's update is due. In the first step, and where an optimizer
cannot be stepped layer by layer, it waits for all averages and updates everything at once. Then it tells
`autobyte/exchange/tuning/online.py` that a step was taken.

Where `policy="auto"` keeps DDP's buckets, gradients do not come this way: `handover.py` takes the hooks off the
layers, and PyTorch's own reducer sends the buckets (exchange/reduction.py), until another config is used.

Averages need not have arrived when gradients are clipped by their norm, or unscaled: `clips.py` keeps what is to
happen to them when they are used.

While a trace is on, `tracing/` stands between `optimizer.py` and `on.py` or `off.py`: it passes calls on, and notes
in hooks of its own what happens (model/timeline.py).

Where a training step is (open, closed, averaged, over, and whether its update was taken) is known to one object,
`Progress` in autobyte/exchange/progress.py. `Exchange` and `On` tell it what happens, and everybody asks it. What
concerns one gradient, layer or block stays with those who act on it: Exchange counts backward passes, Session knows
which averages have arrived, Updates which layers are due, and Runner and Core which blocks are under way.
"""

from autobyte.config import Config, Space
from autobyte.exchange.control import CommunicationError
from autobyte.exchange.tuning.callback import WindowReport
from autobyte.exchange.tuning.report import Report
from autobyte.torch.exchange.serving import serve
from autobyte.torch.optimizer import DistributedOptimizer, report
from autobyte.torch.profiling.emulate import emulate

__all__ = [
    "CommunicationError",
    "Config",
    "DistributedOptimizer",
    "Report",
    "Space",
    "WindowReport",
    "emulate",
    "report",
    "serve",
]
