"""Whether this machine lets tests make network namespaces, and if not, why; and which processes still run."""

from functools import cache
from pathlib import Path

import pytest

from autobyte.errors import AutoByteError
from autobyte.testbed import Testbed

GBIT = 1.25e8  # bytes/s


@cache
def why_not() -> str | None:
    """What stands in the way of a testbed, or None."""
    try:
        with Testbed(2, rate=GBIT):
            return None
    except AutoByteError as error:
        return str(error)


needs_namespaces = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
needs_tun = pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="this machine has no TUN device")


def alive(process: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
