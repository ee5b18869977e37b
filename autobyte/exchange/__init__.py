"""What training needs of AutoByte, whatever framework computes the gradients; every front end stands on it.

`autobyte.torch` has an exchange of its own, for parameters with `.grad`. Others use `Averaging`, for arrays by index.
Such a front end says which tensors travel, hands in each gradient when it is computed, says when there are no more
in a step, and waits for averages by index:

    averaging = Averaging("model", tensors)
    averaging.ready(1, gradient)               # in any order, from any thread
    averaging.ready(0, gradient)
    averaging.end()
    averaging.wait(0)                          # an array of its own, with the average

For all front ends:

    session.py     Session: blocks of one model under way, what has arrived, and what to say when it does not
    control.py     Control: what ranks tell each other beside gradients, and agree on
    engines.py     connects an engine by its name; connect.py and clusters.py reach servers
    planning.py    from a model to a plan, with one order of blocks for all ranks
    tuning/        chooses the config while training runs, keeps what it found, and reports it
    rollcall.py    RollCall: who is still there, when a wait fails; diagnostics.py writes what a rank knows to a file

For arrays:

    averaging.py   Averaging: what a front end calls
    arrays.py      Arrays: the gradients of a step, and what ranks say of it
    connection.py  ArrayConnection: settings that ranks agree on, engine, session, the plan in force
    times.py       ArrayTimes: layer times from the moments at which gradients are complete
    spec.py        ArraySpec: name, layer, shape and dtype of a gradient
"""

from autobyte.exchange.averaging import Averaging
from autobyte.exchange.spec import ArraySpec

__all__ = ["ArraySpec", "Averaging"]
