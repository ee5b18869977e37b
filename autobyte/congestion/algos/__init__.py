"""Congestion controls on the same link, one file each; those that learn were trained by us, with the same code."""

from collections.abc import Callable

from autobyte.congestion.algos.allegro import Allegro
from autobyte.congestion.algos.aurora import INPUT
from autobyte.congestion.algos.bbr import Bbr
from autobyte.congestion.algos.copa import Copa
from autobyte.congestion.algos.cubic import Cubic
from autobyte.congestion.algos.learned import Mocc
from autobyte.congestion.algos.orca import OrcaStyle
from autobyte.congestion.algos.vegas import Vegas
from autobyte.congestion.algos.vivace import Vivace
from autobyte.congestion.link import Congestion
from autobyte.congestion.objectives import Objective
from autobyte.congestion.service import Service
from autobyte.congestion.stored import shipped
from autobyte.errors import unknown

ALGORITHMS = ("cubic", "vegas", "bbr", "copa", "allegro", "vivace", "aurora", "orca-style", "mocc")


def make_control(name: str, objective: Objective, *, seed: int = 0) -> Congestion:
    """A congestion control by its name.

    Args:
        name: one of `ALGORITHMS`.
        objective: what MOCC is to serve; the others serve their own.
        seed: of the order of trials, where there are any.

    Raises:
        InputError: no such name.
    """
    plain: dict[str, Callable[[], Congestion]] = {"cubic": Cubic, "vegas": Vegas, "bbr": Bbr, "copa": Copa}
    if name in plain:
        return plain[name]()
    match name:
        case "allegro":
            return Allegro(seed=seed)
        case "vivace":
            return Vivace(seed=seed)
        case "aurora":
            return Mocc(Service(shipped("aurora")), INPUT)
        case "orca-style":
            return OrcaStyle(shipped("orca-style"))
        case "mocc":
            return Mocc(Service(), objective)
    raise unknown("congestion control", name, ALGORITHMS)
