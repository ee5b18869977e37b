"""Backends that stay until the process ends, and so does what is under way there.

Their destructor would wait, until gloo's timeout, for something that may never end: for peers that are gone, say.
"""

from typing import Any

abandoned: list[Any] = []
