"""Training with PyTorch: `import autobyte.torch as ab`, and two changed lines.

A gradient's way, from autograd's hook to the update of its layer:

    loss.backward()                                the user's script
        │ a gradient is complete
        ▼
    exchange/exchange.py   Exchange ──tells──▶     listening.py  Listeners ──▶ model/updates.py  (what is still due)
        │ from a GPU: exchange/mirrors.py                                  ├──▶ model/times.py    (layer times)
        ▼                                                                  ├──▶ exchange/verify.py (first steps)
    exchange/session.py    Session                                         └──▶ tuning/online.py  (announcements)
        │
        ▼
    scheduler/runner.py    Runner ◀──decides── scheduler/core.py  Core
        │ a block starts
        ▼
    scheduler/engines/     all-reduce or parameter server: the network
        │ all blocks of the gradient are done
        ▼
    exchange/session.py    Session: the average has arrived, and lies in `.grad`
        │ the layer's forward pass is about to begin
        ▼
    model/updates.py       Updates: the optimizer's step for this layer

`optimizer.py` is on top of this: `step()` closes the step of the exchange and says that every layer's update is due.

Where a training step is (open, closed, averaged, over, and whether its update was taken) is known to one object,
`Progress` in exchange/progress.py. Exchange and optimizer tell it what happens, and everybody asks it. What concerns
one gradient, layer or block stays with those who act on it: Exchange counts backward passes, Session knows which
averages have arrived, Updates which layers are due, and Runner and Core which blocks are under way.
"""

from autobyte.config import Config, Space
from autobyte.torch.exchange.control import CommunicationError
from autobyte.torch.exchange.serving import serve
from autobyte.torch.optimizer import DistributedOptimizer, report
from autobyte.torch.profiling.emulate import emulate
from autobyte.torch.tuning.report import Report

__all__ = ["CommunicationError", "Config", "DistributedOptimizer", "Report", "Space", "emulate", "report", "serve"]
