"""What training needs of AutoByte, whatever framework computes the gradients: arrays by index, and no `torch.nn`.

A front end says which tensors travel, hands in each gradient when it is computed, says when there are no more in a
step, and waits for averages by index:

    averaging = Averaging("model", tensors)
    averaging.ready(1, gradient)               # in any order, from any thread
    averaging.ready(0, gradient)
    averaging.end()
    averaging.wait(0)                          # an array of its own, with the average

Blocks, plans, engines, the session, tuning and its file are those of `autobyte.torch`. What is here is thin:

    averaging.py   Averaging: what a front end calls
    arrays.py      Arrays: the gradients of a step, and what ranks say of it
    connection.py  ArrayConnection: settings that ranks agree on, engine, session, the plan in force
    times.py       ArrayTimes: layer times from the moments at which gradients are complete
    spec.py        ArraySpec: name, layer, shape and dtype of a gradient
"""

from autobyte.exchange.averaging import Averaging
from autobyte.exchange.spec import ArraySpec

__all__ = ["ArraySpec", "Averaging"]
