"""What ranks say to each other besides gradients: agreement, statistics, plans. Numbers or JSON, never pickles."""

import contextlib
import hashlib
import json
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

from autobyte.errors import AutoByteError
from autobyte.exchange.deadline import Deadline
from autobyte.exchange.diagnostics import Diagnostics
from autobyte.exchange.rollcall import LONG_S, POLL_S, RollCall
from autobyte.internals import own_gloo
from autobyte.scheduler.engines.abandoned import abandoned
from autobyte.units import MIB

TOGETHER = 4 * MIB  # bytes of small tensors that are sent as one message
AFTER_GLOO = timedelta(seconds=1)  # gloo's own message comes first, and says more


class CommunicationError(AutoByteError, RuntimeError):
    """Ranks no longer understand or hear each other; the message names rank, step and tensor."""


class Control:
    """A small gloo backend beside the gradients'. Calls are collective: all ranks make them in the same order.

    Args:
        name: of the training it belongs to, the same on all ranks.
        rank: this process's place among them.
        ranks: the processes that take part, as torchrun numbers them: so messages name them.
        timeout: after which a call fails.
        step: where training is, for messages.
        diagnostics: hears of failures.
    """

    def __init__(
        self,
        name: str,
        *,
        rank: int,
        ranks: Sequence[int],
        timeout: timedelta,
        step: Callable[[], int] = lambda: 0,
        diagnostics: Diagnostics | None = None,
    ) -> None:
        self.rank, self.size = rank, len(ranks)
        self.ranks = list(ranks)
        self.rollcall = RollCall(name, rank=self.ranks[rank], ranks=ranks)
        self.diagnostics = diagnostics or Diagnostics(None, rank=self.ranks[rank])
        self._step = step
        self._timeout = timeout
        self._broken = False  # a call has failed, and may still wait
        self._under_way: list[tuple[Any, Any]] = []  # calls, and their tensors
        self._backend = self.meet(
            lambda: own_gloo(f"{name}/control", rank=rank, size=self.size, timeout=timeout, threads=2)
        )

    @property
    def global_rank(self) -> int:
        """This process, as torchrun numbers it."""
        return self.ranks[self.rank]

    def meet(self, make: Callable[[], Any]) -> Any:
        """What is made where all ranks must come.

        Raises:
            CommunicationError: naming the ranks that did not, or saying why they will not.
        """
        what, alarms, began_s = "meet the other ranks", list[str](), time.monotonic()

        def check() -> None:
            if time.monotonic() > began_s + LONG_S:
                self._listen(alarms, what)

        try:  # gloo holds the timeout while it waits for ranks, but not where the store does not answer
            return Deadline(self._timeout + AFTER_GLOO).run(make, check=check)
        except (RuntimeError, TimeoutError) as error:
            raise self._failed(what, error) from error
        finally:
            self.rollcall.ignore()

    def gather(self, numbers: torch.Tensor) -> torch.Tensor:
        """Everybody's numbers, shape [size, *]."""
        rows = [torch.empty_like(numbers) for _ in range(self.size)]
        self._run(self._begun(self._backend.allgather([rows], [numbers]), rows, numbers), "gather numbers")
        return torch.stack(rows)

    def mean(self, loss: Any) -> Any:
        """The mean of ranks' losses, if they are numbers: an optimizer that decides by one must decide alike."""
        if not isinstance(loss, torch.Tensor | float):
            return loss
        here = float(loss if isinstance(loss, float) else loss.detach())
        mean = float(self.gather(torch.tensor([here], dtype=torch.float64, device="cpu")).mean())
        return mean if isinstance(loss, float) else torch.full_like(loss.detach(), mean)

    def gather_later(self, numbers: torch.Tensor) -> "Tally":
        """Begin to gather everybody's numbers, without waiting; shape [size, *]."""
        rows = numbers.new_empty((self.size, *numbers.shape))
        parts = list(rows.unbind())
        work = self._begun(self._backend.allgather([parts], [numbers]), parts, numbers)
        return Tally(rows, work.get_future(), lambda: self._run(work, "gather numbers"))

    def share(self, data: Any, *, source: int = 0) -> Any:
        """What one rank has, on every rank; plain JSON."""
        text = bytearray(json.dumps(data).encode()) if self.rank == source else bytearray()
        length = torch.tensor([len(text)], device="cpu")
        self.broadcast(length, source=source)
        buffer = (
            torch.frombuffer(text, dtype=torch.uint8)
            if text
            else torch.empty(int(length), dtype=torch.uint8, device="cpu")
        )
        self.broadcast(buffer, source=source)
        return json.loads(bytes(buffer.numpy()))

    def collect(self, data: Any) -> list[Any]:
        """What every rank has, on the first one; plain JSON. Others get nothing."""
        text = torch.frombuffer(bytearray(zlib.compress(json.dumps(data).encode())), dtype=torch.uint8)
        lengths = self.gather(torch.tensor([len(text)], device="cpu")).flatten().tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8, device="cpu")
        padded[: len(text)] = text
        rows = [torch.empty_like(padded) for _ in range(self.size)] if self.rank == 0 else []
        options = dist.GatherOptions()
        options.rootRank = 0
        gathering = self._backend.gather([rows] if rows else [], [padded], options)
        self._run(self._begun(gathering, *rows, padded), "collect a trace")
        texts = [bytes(row[:length].numpy()) for row, length in zip(rows, lengths, strict=False)]
        return [json.loads(zlib.decompress(each)) for each in texts]

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0, what: str = "a plan") -> None:
        """Send one rank's tensor to all others, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        self._run(self._begun(self._backend.broadcast([tensor], options), tensor), f"share {what}")

    def send(self, tensor: torch.Tensor, *, source: int = 0, what: str) -> None:
        """Send one rank's tensor, of any kind and on any device, to all others, in place.

        Args:
            what: it is, for the message of a failure.
        """
        if not tensor.numel():
            return
        travelling = tensor.detach().cpu().contiguous()  # gloo would take as many elements from where it begins
        self.broadcast(travelling.view(-1).view(torch.uint8), source=source, what=what)
        if travelling.data_ptr() != tensor.data_ptr():
            tensor.copy_(travelling)

    def send_each(self, tensors: Iterable[tuple[str, torch.Tensor]], *, source: int = 0) -> None:
        """Send one rank's tensors to all others, in place; a message takes as long as thousands of small ones' bytes.

        Args:
            tensors: with what each is, for the message of a failure.
        """
        for together in _runs(tensors):
            what = together[0][0]
            if len(together) == 1:
                self.send(together[0][1], source=source, what=what)
                continue
            parts = [tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for _, tensor in together]
            travelling = torch.cat(parts)
            self.broadcast(travelling, source=source, what=what)
            if self.rank != source:
                sent = torch.split(travelling, [len(part) for part in parts])
                for (_, tensor), part in zip(together, sent, strict=True):
                    with torch.inference_mode(tensor.is_inference()):  # and no pass is told, as where gloo writes
                        tensor.data.copy_(part.view(tensor.dtype).view(tensor.shape))

    def failure(self, what: str, *, step: int | None = None) -> CommunicationError:
        """What all ranks see at once, as an error that says where details are.

        Args:
            what: has gone wrong.
            step: in which; by default where training is.
        """
        why = f"rank {self.global_rank}, step {self._step() if step is None else step}: {what}"
        return CommunicationError(why + self.diagnostics.write(why))

    def same(self, value: str) -> bool:
        """Whether all ranks have the same."""
        rows = self.gather(_digest(value))
        return bool((rows == rows[0]).all())

    def agree(self, what: str, value: str) -> None:
        """Make sure that all ranks have the same.

        Args:
            what: for the message.
            value: what is compared; parts with "; " between them.

        Raises:
            CommunicationError: naming the ranks that differ from the first, and the first part that does.
        """
        rows = self.gather(_digest(value))
        other = [rank for rank in range(self.size) if not torch.equal(rows[rank], rows[0])]
        if other:
            own, theirs = value.split("; "), self.share(value).split("; ")
            pairs = list(zip_longest(own, theirs, fillvalue="nothing"))
            place = next((place for place, (a, b) in enumerate(pairs) if a != b), 0)
            places = self.gather(torch.tensor([place], device="cpu"))
            if self.rank not in other:  # like the first rank: what it has where the first of them differs
                place = int(places[other[0]])
            ours, firsts = pairs[place] if place < len(pairs) else ("nothing", "nothing")
            unlike, first = [self.ranks[rank] for rank in other], self.ranks[0]
            raise CommunicationError(
                f"ranks {unlike} have {what} unlike rank {first}'s; rank {self.global_rank} has {ours:.300}"
                + (f" where rank {first} has {firsts:.300}" if ours != firsts else "")
            )

    def tally(self, flags: torch.Tensor) -> "Tally":
        """Begin to count, without waiting, on how many ranks each flag is set."""
        counts = flags.to(torch.int32)
        options = dist.AllreduceOptions()
        work = self._begun(self._backend.allreduce([counts], options), counts)
        return Tally(counts, work.get_future(), lambda: self._run(work, "count missing gradients"))

    def close(self, *, idle: bool) -> None:
        """Let go of the backend.

        Args:
            idle: every call has come back, on all ranks, as far as is known.
        """
        if not idle or self._broken:
            abandoned.append((self._backend, self._under_way))
        self._backend, self._under_way = None, []  # calls keep threads and sockets, too
        self.rollcall.close()

    def _begun(self, work: Any, *tensors: Any) -> Any:
        """Hold on to a call's tensors: one that only gloo holds is let go of by its thread, which needs Python."""
        self._under_way = [(call, held) for call, held in self._under_way if not call.is_completed()]
        self._under_way.append((work, tensors))
        return work

    def _run(self, work: Any, what: str) -> None:
        """Wait for a call, and no longer for ranks that have failed meanwhile: they may never come to it."""
        alarms: list[str] = []
        patience_s = LONG_S
        try:
            while not _is_over(work, patience_s):
                patience_s = POLL_S
                self._listen(alarms, what)
        except RuntimeError as error:
            raise self._failed(what, error) from error
        finally:
            self.rollcall.ignore()

    def _listen(self, alarms: list[str], what: str) -> None:
        """Listen during a wait.

        Raises:
            RuntimeError: another rank has failed.
        """
        self.rollcall.listen(
            alarms.append, where=lambda: f"rank {self.global_rank}, step {self._step()}: could not {what}"
        )
        if alarms:
            raise RuntimeError(alarms[0])

    def _failed(self, what: str, error: Exception) -> CommunicationError:
        self._broken = True
        why = f"rank {self.global_rank}, step {self._step()}: could not {what}: {first_line(error)}"
        self.diagnostics.capture()
        self.rollcall.alarm(why)
        others = self.rollcall.absent()
        return CommunicationError(f"{why}; {others}{self.diagnostics.write(why, others, self.rollcall.heard)}")


def _is_over(work: Any, patience_s: float) -> bool:
    """Whether a call is over within so many seconds.

    Raises:
        RuntimeError: it has failed.
    """
    with contextlib.suppress(RuntimeError):  # so says torch, too, if time is over
        work.wait(timedelta(seconds=patience_s))
    if not work.is_completed():
        return False
    work.wait()
    return True


def _runs(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Tensors of one dtype that follow on each other, and are small together; empty ones are left out."""
    run: list[tuple[str, torch.Tensor]] = []
    nbytes = 0
    for what, tensor in tensors:
        if run and (tensor.dtype is not run[0][1].dtype or nbytes + tensor.nbytes > TOGETHER):
            yield run
            run, nbytes = [], 0
        if tensor.numel():
            run.append((what, tensor))
            nbytes += tensor.nbytes
    if run:
        yield run


def _digest(value: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(hashlib.sha256(value.encode()).digest()), dtype=torch.uint8)


class Tally:
    """Numbers of all ranks that are under way: counts, say.

    Args:
        numbers: where they will be.
        future: of the call that brings them.
        wait: waits for it, and says what has gone wrong.
    """

    def __init__(self, numbers: torch.Tensor, future: torch.futures.Future[Any], wait: Callable[[], None]) -> None:
        self._numbers = numbers
        self._future = future
        self._wait = wait

    def wait(self) -> torch.Tensor:
        """The numbers; nobody waits if they are there."""
        if not self.there:
            self._wait()
        return self._numbers

    @property
    def there(self) -> bool:
        """Whether they are there; False if they never will be."""
        try:
            return self._future.done() and self._future.value() is not None
        except RuntimeError:  # it has failed
            return False


def first_line(error: BaseException) -> str:
    """What went wrong, on one line: of gloo's messages the first sentence, without the place in gloo's source; of
    NCCL's the last error, where it names one.
    """
    text = re.sub(r"^\[\S+\.cc:\d+\] ", "", str(error).rpartition("\nLast error:\n")[2].strip())
    return re.split(r"\n|\. ", text)[0] if text else type(error).__name__
