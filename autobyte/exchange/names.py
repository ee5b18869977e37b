"""Names of models, under which their ranks meet."""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

#: Numbers of wrapped models, by default group and ranks that share them, in the order of construction: the same on
#: all these ranks. A rank that has just come, and one that has made another default group, begin to count alike.
_names: WeakKeyDictionary[Any, dict[tuple[int, ...], Iterator[int]]] = WeakKeyDictionary()


def name_for(ranks: Sequence[int]) -> str:
    """A name unlike any other for the next wrapped model of these ranks, the same on each of them."""
    key = tuple(ranks)
    numbers = _names.setdefault(dist.group.WORLD, defaultdict(itertools.count))
    return f"ranks{hashlib.sha256(repr(key).encode()).hexdigest()[:8]}/model{next(numbers[key])}"
