"""A store for `gluon.Trainer` that averages gradients by AutoByte's blocks."""

import os
import queue
import threading
from contextlib import ExitStack
from itertools import chain
from typing import Any

import mxnet as mx
import numpy as np
import torch
import torch.distributed as dist

from autobyte.errors import InputError
from autobyte.exchange import ArraySpec, Averaging
from autobyte.exchange.averaging import AveragingSettings
from autobyte.exchange.control import CommunicationError, Control
from autobyte.exchange.names import name_for
from autobyte.exchange.times import ALONE
from autobyte.integrations.versions import check_version
from autobyte.mxnet.dependencies import Release, hold, memory

TRIED = {"mxnet": ("1.9", "1.9")}

#: Optimizers that are made from now on update one parameter at a time: several at once wait for the last average.
SINGLY = "MXNET_OPTIMIZER_AGGREGATION_SIZE", "1"


class KVStore(mx.kv.KVStoreBase):
    """Averages gradients over all ranks; workers update.

    >>> store = KVStore(engine="kvstore")
    >>> trainer = gluon.Trainer(list(net.collect_params().values()), "adam", kvstore=store)
    >>> trainer.step(batch_size)               # of this rank: gradients are averaged, not added up
    >>> store.close()

    A proxy in MXNet's dependency engine holds each gradient, once the backward pass has computed it, until its
    average is in place. What `Trainer` issues next waits for that: an update for its gradients, and the next forward
    pass for the updates of its layers. So communication crosses the step boundary without changes to the loop. The
    first step is averaged at once, and shows which parameters have gradients. The second shows in which order these
    come: averages come in the opposite one.

    Args:
        settings: of `autobyte.exchange.averaging.AveragingSettings`: policy, config, tuner, engine, timeout, say.

    Raises:
        InputError: a setting cannot be used.
    """

    def __init__(self, **settings: Any) -> None:
        check_version("mxnet", found=mx.__version__, tried=TRIED)
        self._settings = AveragingSettings(**settings)
        self._owns_group = not dist.is_initialized()
        if self._owns_group:
            dist.init_process_group("gloo")
        self._sets_singly = SINGLY[0] not in os.environ
        os.environ.setdefault(*SINGLY)
        ranks = list(range(dist.get_world_size()))
        self._control = Control(
            f"{name_for(ranks)}/mxnet", rank=dist.get_rank(), ranks=ranks, timeout=self._settings.timeout
        )
        self._specs: dict[Any, ArraySpec] = {}  # by the key of a parameter that has gradients
        self._places: dict[Any, int] = {}  # by the same keys, in the order of the forward pass
        self._second: dict[Any, tuple[mx.nd.NDArray, ...]] = {}  # gradients of the second step, each with its witness
        self._computed: list[Any] = []  # keys, in the order in which these were
        self.averaging: Averaging | None = None
        self._asked: set[Any] = set()  # keys of the step that is under way
        self._lock = threading.Lock()
        self._complete = 0  # gradients in this step
        self._held: list[tuple[mx.nd.NDArray, Release] | None] = []
        self._lent: list[mx.nd.NDArray | None] = []  # gradients that lie where blocks travel, as long as these may
        self._steps: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True for each that was ended
        self._apart = ALONE  # steps whose averages all come before the next forward pass, which is timed alone
        self._error: Exception | None = None
        self._waiter = threading.Thread(target=self._wait, name="autobyte-mxnet", daemon=True)

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._control.rank

    @property
    def num_workers(self) -> int:
        """How many processes train."""
        return self._control.size

    @property
    def type(self) -> str:
        """With `dist` in it, from which `Trainer` knows that ranks differ."""
        return "dist_autobyte"

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Servers have no optimizer."""
        return False

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Send rank 0's parameter to all. Collective; `Trainer` calls it once for each.

        Raises:
            CommunicationError: ranks differ in it, or do not hear each other.
        """
        own = _single(value, key)
        self._agree(f"parameter {key} {own.shape} {np.dtype(own.dtype)}")
        travelling = torch.from_numpy(own.asnumpy())
        self._control.broadcast(travelling)
        for each in out if isinstance(out, list) else [out]:
            each[:] = mx.nd.array(travelling.numpy(), dtype=each.dtype)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Let a gradient be averaged in place, when it is computed.

        Raises:
            InputError: the parameters with gradients are not those of the first step.
            CommunicationError: averages of an earlier step could not be made.
        """
        gradient = _single(value, key)
        if self._error is not None:
            raise self._error
        if key not in self._specs:
            if self._places:
                raise InputError(
                    f"parameter {key} has a gradient, and had none in the first step: make another store"
                )
            self._first(key, gradient)
            return
        if not self._places:
            self._places = {each: place for place, each in enumerate(self._specs)}
        if key in self._asked:
            missing = next(each for each in self._specs if each not in self._asked)
            raise InputError(
                f"{self._specs[missing].name} had a gradient in the first step, and has none in this one"
            )
        self._asked.add(key)
        if len(self._asked) == len(self._specs):
            self._asked.clear()
        if self.averaging is not None:
            self._hold(key, gradient, priority)
            return
        self._see(key, gradient)
        if not self._asked:
            self._begin()

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Refuse MXNet's own compression.

        Raises:
            InputError: always.
        """
        raise InputError(f"compression_params={compression_params} is for MXNet's own stores; try wire_dtype='bf16'")

    def close(self) -> None:
        """Wait for what is under way, and let go of threads, sockets and a process group that the store made.

        Raises:
            CommunicationError: averages of the last step could not be made, or it lacks gradients.
        """
        if self._asked:
            self._asked.clear()
            self._fail(CommunicationError("the store is closed within a step: not all gradients are handed in"))
        if self._sets_singly:
            os.environ.pop(SINGLY[0], None)
        with ExitStack() as closing:  # from the last to the first, whatever fails
            if self._owns_group:
                closing.callback(dist.destroy_process_group)
            closing.callback(self._control.close, idle=True)
            if self.averaging is not None:
                closing.callback(self.averaging.close)
                closing.callback(self._waiter.join)
                closing.callback(self._steps.put, False)
            mx.nd.waitall()
        if self._error is not None:
            raise self._error

    def _agree(self, value: str) -> None:
        """Make sure that all ranks are about to do the same; one that is not would leave the others waiting."""
        self._control.agree("a model", value)

    def _first(self, key: Any, gradient: mx.nd.NDArray) -> None:
        """Average a gradient of the first step, at once."""
        self._agree(f"a gradient of parameter {key} {gradient.shape} {np.dtype(gradient.dtype)}")
        values = torch.from_numpy(gradient.asnumpy())
        gradient[:] = mx.nd.array(self._control.gather(values).mean(dim=0).numpy(), dtype=gradient.dtype)
        name = f"parameter {key}"
        self._specs[key] = ArraySpec(name, name, gradient.shape, str(np.dtype(gradient.dtype)))

    def _see(self, key: Any, gradient: mx.nd.NDArray) -> None:
        """Note when a gradient of the second step is computed."""

        def note(release: Release) -> None:
            self._computed.append(key)
            release()

        witness = mx.nd.zeros((1,))
        hold(witness, note, reads=[gradient])
        self._second[key] = gradient, witness

    def _begin(self) -> None:
        """Connect, when the second step has shown in which order gradients are computed. Collective."""
        try:
            self._agree("no more gradients")
            for each in chain.from_iterable(self._second.values()):
                each.wait_to_read()  # MXNet raises here what went wrong in the backward pass
            forward = self._control.share([self._places[key] for key in reversed(self._computed)])
            keys = list(self._specs)
            self._places = {keys[place]: index for index, place in enumerate(forward)}
            self._held, self._lent = [None] * len(keys), [None] * len(keys)
            self.averaging = Averaging("gluon", [self._specs[key] for key in self._places], self._settings)
        except Exception as error:
            self._fail(error)
            raise
        self._waiter.start()
        for key, (gradient, _) in self._second.items():
            self._hold(key, gradient, 0)
        self._second.clear()

    def _hold(self, key: Any, gradient: mx.nd.NDArray, priority: int) -> None:
        """Let a gradient be averaged, once it is computed."""
        place = self._places[key]
        hold(gradient, lambda release: self._on_complete(place, gradient, release), priority)

    def _on_complete(self, place: int, gradient: mx.nd.NDArray, release: Release) -> None:
        """In a thread of MXNet's: a gradient is computed, and held."""
        averaging = self.averaging
        assert averaging is not None, "proxies are left after it is made"
        with self._lock:
            failed = self._error is not None
            if not failed:
                self._held[place] = gradient, release
        if failed:  # nobody would release it later
            _spoil(gradient)
            release()
            return
        self._lent[place] = gradient
        try:
            averaging.ready(place, memory(gradient), lent=True)
            with self._lock:  # after `ready`: several of these threads come here at once
                self._complete += 1
                last = self._complete == len(self._places)
                if last:
                    self._complete = 0
            if last:
                if self._error is None:
                    averaging.end()
                    if not self._apart:
                        averaging.begin()  # as far as MXNet's engine shows: what is behind this waits for averages
                self._steps.put(True)
        except Exception as error:  # raised in the thread that trains, at its next call
            self._fail(error)

    def _wait(self) -> None:
        """Release gradients as their averages arrive, in the order in which the next step needs them."""
        averaging = self.averaging
        assert averaging is not None, "the thread begins after it is made"
        while self._steps.get():
            places, apart = range(len(self._places)), self._apart > 0
            try:
                if apart:
                    for place in places:
                        averaging.wait(place)
                    self._apart -= 1
                    averaging.begin()
                for place in places:
                    if not apart:
                        averaging.wait(place)
                    self._release(place)  # it was lent, and is the average now
            except Exception as error:  # raised in the thread that trains, at its next call
                self._fail(error)

    def _release(self, place: int, *, spoiled: bool = False) -> None:
        with self._lock:
            held, self._held[place] = self._held[place], None
        if held is not None:
            gradient, release = held
            try:
                if spoiled:
                    _spoil(gradient)
            finally:
                release()

    def _fail(self, error: Exception) -> None:
        """Let the loop go on to its next call, which raises."""
        with self._lock:
            self._error = self._error or error
        for gradient, _ in self._second.values():
            gradient[:] = np.nan
        for place in range(len(self._held)):
            self._release(place, spoiled=True)


def _spoil(gradient: mx.nd.NDArray) -> None:
    """Let no update with this rank's own gradient pass for one with the average."""
    memory(gradient).fill(np.nan)


def _single(value: Any, key: Any) -> mx.nd.NDArray:
    """The array of a process that has one device.

    Raises:
        InputError: it has several, or it is not in host memory.
    """
    arrays = value if isinstance(value, list) else [value]
    if len(arrays) > 1:
        raise InputError(f"parameter {key} is on {len(arrays)} devices; start one process for each")
    if not arrays[0].context.device_type.startswith("cpu"):
        raise InputError(f"parameter {key} is on {arrays[0].context}: AutoByte averages arrays of mx.cpu() alone")
    return arrays[0]
