"""NumPy has the names that MXNet takes from it, and keeps its own."""

import subprocess
import sys

PROGRAM = """
import numpy as np
own = {name: value for name, value in vars(np).items()}
from autobyte.mxnet.names import ALIASES, FUNCTIONS, restore
restore()
assert all(vars(np)[name] is value for name, value in own.items())
assert all(name in vars(np) for name in (*ALIASES, *FUNCTIONS))
assert np.product([2, 3]) == 6 and np.in1d([1, 5], [5]).tolist() == [False, True]
try:
    np.npv(0.1, [1])
except AttributeError as error:
    print(error)
"""


def test_names_are_there_and_numpys_own_stay() -> None:
    """In a process of its own, since all of it see them then."""
    program = PROGRAM.replace("from autobyte.mxnet.names", "from names")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={"PYTHONPATH": "autobyte/mxnet"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "has no 'npv', and autobyte.mxnet" in done.stdout
