"""Hugging Face Accelerate: a loop that was written for DDP goes on as it is, and its gradients go by AutoByte.

`Accelerator` has no plug for this: it looks handlers up by their exact class, and wraps models in DDP itself. So the
methods that have to do with gradients are replaced on the one accelerator that is handed in.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autobyte.errors import InputError, needs
from autobyte.integrations.passes import before_backward
from autobyte.integrations.versions import check_version
from autobyte.torch import DistributedOptimizer

with needs("accelerate", what="training with Accelerate"):
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.utils import DistributedType

log = logging.getLogger("autobyte")

WIRE = {"no": None, "fp16": "fp16", "bf16": "bf16"}  # by the name of DDP's hook


def prepare(accelerator: Accelerator, *objects: Any, **keywords: Any) -> Any:
    """Do what `accelerator.prepare` does, with AutoByte in place of DDP.

    >>> model, optimizer, loader = prepare(accelerator, model, optimizer, loader)

    The loop around it stays: `accumulate`, `backward`, `clip_grad_norm_`, `save_state` and `load_state` are the
    accelerator's. `end_training` takes the last updates.

    Args:
        accelerator: of one process per rank, on CPUs or GPUs.
        objects: what `accelerator.prepare` takes; a model comes before its optimizer, or with it.
        keywords: of `autobyte.torch.DistributedOptimizer`.

    Returns:
        the prepared objects, in their order; one alone is not in a tuple.

    Raises:
        InputError: the accelerator moves gradients in another way, as FSDP does, or a keyword cannot be used.
    """
    attach(accelerator, **keywords)
    return accelerator.prepare(*objects)


def attach(accelerator: Accelerator, **keywords: Any) -> None:
    """Let all that `accelerator.prepare` is given from now on train with AutoByte.

    Args:
        accelerator, keywords: as `prepare` has them.

    Raises:
        InputError: the accelerator has prepared an optimizer already, or as `prepare` says.
    """
    check_version("accelerate")
    attached = getattr(accelerator, "_autobyte", None)
    if attached is not None:
        attached.use(keywords)
        return
    if accelerator._optimizers:  # a model alone may be one that is only evaluated, as DPO's reference
        raise InputError("the accelerator has prepared a model already: hand it to AutoByte before")
    accelerator._autobyte = AttachedAccelerator(accelerator, keywords)


class _Several(nn.ModuleList):
    """Models that one optimizer trains."""


@dataclass(frozen=True)
class _Pair:
    """Models, their optimizer, and what the optimizer is wrapped in; whether AutoByte was on when it was."""

    models: list[nn.Module]
    own: Optimizer
    optimizer: DistributedOptimizer
    was_on: bool


class AttachedAccelerator:
    """An accelerator's methods, as they are once AutoByte is attached to it.

    Args:
        accelerator: whose methods are replaced.
        keywords: of every `DistributedOptimizer`.
    """

    def __init__(self, accelerator: Accelerator, keywords: dict[str, Any]) -> None:
        _check(accelerator)
        self._accelerator = accelerator
        self._models: list[nn.Module] = []
        self._pairs: list[_Pair] = []
        self._freed: WeakSet[DistributedOptimizer] = WeakSet()  # closed by `free_memory`, and not prepared again
        self._said: set[str] = set()
        self.use(keywords)
        replaced: list[Callable[..., Any]]
        replaced = [self.prepare, self.no_sync, self.backward, self.clip_grad_norm_, self.clip_grad_value_]
        replaced += [self.join_uneven_inputs, self.free_memory, self.end_training]
        self._own = {each.__name__: getattr(accelerator, each.__name__) for each in replaced}
        for each in replaced:
            setattr(accelerator, each.__name__, each)

    def use(self, keywords: dict[str, Any]) -> None:
        """Take other keywords for the optimizers that are still to be prepared.

        Raises:
            InputError: one of them is the accelerator's own to decide.
        """
        if "accumulation" in keywords:
            raise InputError("leave accumulation= out: Accelerator(gradient_accumulation_steps=…) says it")
        self._keywords = {"wire_dtype": _wire_dtype(self._accelerator)} | keywords

    def prepare(self, *objects: Any, device_placement: list[bool | None] | None = None) -> Any:
        """`Accelerator.prepare`, without DDP around models and with AutoByte around optimizers."""
        places: list[bool | None]
        places = [None] * len(objects) if device_placement is None else list(device_placement)
        pairs = zip(objects, places, strict=True)
        chosen = [self._model(each, place) if isinstance(each, nn.Module) else each for each, place in pairs]
        for index, each in enumerate(chosen):
            if isinstance(each, AcceleratedOptimizer):
                if each.optimizer in self._freed:
                    self._open_again(each)
                self._check_open(each)
            elif isinstance(each, Optimizer):
                if not each.state:
                    places[index] = False  # there is nothing to place: leave out the round trip of its state
                chosen[index] = self._optimizer(each)
        prepared = self._own["prepare"](*chosen, device_placement=places)
        for each in prepared if isinstance(prepared, tuple) else (prepared,):
            if isinstance(each, AcceleratedScheduler):
                self._find_optimizer(each)
        return prepared

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """`Accelerator.no_sync`: gradients of a model accumulate, and do not travel."""
        with ExitStack() as stack:
            for optimizer in self._optimizers_of(model):
                stack.enter_context(optimizer.no_sync())
            yield

    def backward(self, loss: Tensor, **keywords: Any) -> None:
        """`Accelerator.backward`; gradients accumulate, and do not travel, if `step` will be left out after it."""
        with ExitStack() as stack:
            for pair in self._pairs:
                before_backward(loss, pair.optimizer)
                if not self._accelerator.sync_gradients:
                    stack.enter_context(pair.optimizer.no_sync())
            self._own["backward"](loss, **keywords)

    def join_uneven_inputs(self, joinables: list[Any], even_batches: bool | None = None) -> Any:
        """`Accelerator.join_uneven_inputs`; a model stands for its optimizers."""
        chosen: dict[Any, None] = {}
        for each in joinables:
            own = each.optimizer if isinstance(each, AcceleratedOptimizer) else each
            chosen |= dict.fromkeys(self._optimizers_of(each) or [own])
        return self._own["join_uneven_inputs"](list(chosen), even_batches)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """`Accelerator.clip_grad_norm_`; half of the traffic still crosses the step if it is given a whole model."""
        given, optimizer = self._clipped(parameters)
        if optimizer is None:
            norm: Tensor = self._own["clip_grad_norm_"](given, max_norm, norm_type)
            return norm
        self._accelerator.unscale_gradients()
        return optimizer.clip_grad_norm_(max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """`Accelerator.clip_grad_value_`, when the averages are used."""
        given, optimizer = self._clipped(parameters)
        if optimizer is None:
            self._own["clip_grad_value_"](given, clip_value)
            return
        self._accelerator.unscale_gradients()
        optimizer.clip_grad_value_(clip_value)

    def free_memory(self, *objects: Any) -> Any:
        """`Accelerator.free_memory`, after the last updates: models are let go of, with hooks, threads and sockets.

        An optimizer that trains on has to be prepared again, as a `Trainer` does; else its `step` is refused.
        """
        try:
            self._free()
        finally:
            freed = self._own["free_memory"](*objects)
        return freed

    def end_training(self) -> None:
        """`Accelerator.end_training`, after the last updates."""
        for pair in self._pairs:
            pair.optimizer.close()
        self._own["end_training"]()

    def _model(self, model: nn.Module, place: bool | None) -> nn.Module:
        """Move a model to its device, cast and compile it as the accelerator is told to; leave out DDP.

        A model that was prepared for an evaluation stays as it is.
        """
        own = getattr(model, "_orig_mod", model)
        if not any(own is known for known in self._models):
            self._models.append(own)
        prepared: nn.Module = self._accelerator.prepare_model(model, device_placement=place, evaluation_mode=True)
        return prepared

    def _optimizer(self, optimizer: Optimizer) -> DistributedOptimizer:
        trained = {p for group in optimizer.param_groups for p in group["params"]}
        models = [model for model in self._models if trained & set(model.parameters())]
        owner = next((model for model in models if trained <= set(model.parameters())), _Several(models))
        if not trained <= set(owner.parameters()):
            raise InputError(
                f"no prepared model has all parameters of {type(optimizer).__name__}: hand in the model before its "
                "optimizer, or with it, and both after attach()"
            )
        self._check_accumulation()
        wrapped = DistributedOptimizer(optimizer, owner, **self._keywords)
        self._pairs.append(_Pair(_models_in(owner), optimizer, wrapped, was_on=wrapped.training is not None))
        return wrapped

    def _optimizers_of(self, model: Any) -> list[DistributedOptimizer]:
        bare = getattr(model, "_orig_mod", model)
        return [pair.optimizer for pair in self._pairs if any(bare is each for each in pair.models)]

    def _free(self) -> None:
        """Close every optimizer, whatever another one raises."""
        self._models.clear()
        with ExitStack() as stack:
            while self._pairs:
                pair = self._pairs.pop()
                stack.callback(pair.optimizer.close)
                if pair.was_on:
                    self._freed.add(pair.optimizer)
                    self._close(pair.optimizer)

    def _close(self, optimizer: DistributedOptimizer) -> None:
        """Refuse its steps; with a gradient scaler Accelerate sets `step` itself, to one of two that it has kept."""
        optimizer.step = _refuse  # type: ignore[method-assign]
        for each in self._accelerator._optimizers:
            if each.optimizer is optimizer:
                each._optimizer_original_step_method = each._optimizer_patched_step_method = _refuse

    def _open_again(self, optimizer: AcceleratedOptimizer) -> None:
        """Wrap anew what `free_memory` closed; a compiled model need not have been prepared again."""
        closed = optimizer.optimizer
        self._freed.discard(closed)
        models = _models_in(closed._model)
        self._models += [model for model in models if not any(model is known for known in self._models)]
        wrapped = self._optimizer(closed._optimizer)
        AcceleratedOptimizer.__init__(optimizer, wrapped, device_placement=False, scaler=optimizer.scaler)

    def _check_open(self, optimizer: AcceleratedOptimizer) -> None:
        """Refuse an optimizer that was closed: it would train every rank on its own.

        Raises:
            InputError: it was.
        """
        pair = next((pair for pair in self._pairs if pair.optimizer is optimizer.optimizer), None)
        if pair is not None and pair.was_on and pair.optimizer.training is None:
            raise InputError("the optimizer was closed, and averages nothing any more: make a new one")

    def _find_optimizer(self, scheduler: AcceleratedScheduler) -> None:
        """Let a scheduler skip the steps that its own optimizer skips; the accelerator does not find it."""
        of = next((pair for pair in self._pairs if pair.own is scheduler.scheduler.optimizer), None)
        if of is not None:
            scheduler.optimizers = [each for each in self._accelerator._optimizers if each.optimizer is of.optimizer]

    def _clipped(self, parameters: Any) -> tuple[list[Tensor], DistributedOptimizer | None]:
        """The parameters, and the optimizer that can clip them while they travel; None if torch has to."""
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if not self._accelerator.sync_gradients:
            return given, None  # a backward pass that does not travel
        members = {parameter for parameter in given if parameter.requires_grad}
        left, concerned = members, []
        for pair in self._pairs:
            training = pair.optimizer.training
            if training is None:
                continue
            travelling = set(training.exchange.parameters.values())
            if travelling == members:
                return given, pair.optimizer
            if travelling & members:
                concerned.append(pair.optimizer)
                left = left - travelling
        for optimizer in concerned:
            optimizer.synchronize()
        if concerned:
            self._say_once("parameters are clipped that are not those of one optimizer: all averages are waited for")
            self._average([parameter for parameter in given if parameter in left])
        return given, None

    def _average(self, parameters: list[Tensor]) -> None:
        """Average gradients that no optimizer uses, as DDP does: a norm without them differs, or one of each rank."""
        of_models = {parameter for model in self._models for parameter in model.parameters()}
        for parameter in parameters:
            if parameter in of_models:
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self._accelerator.reduce(own, "mean")

    def _check_accumulation(self) -> None:
        chosen = self._accelerator.gradient_state.plugin_kwargs
        if chosen.get("sync_each_batch"):
            self._say_once("sync_each_batch=True is left out: gradients are averaged once a step, which is the same")
            chosen["sync_each_batch"] = False

    def _say_once(self, text: str) -> None:
        if text not in self._said and self._accelerator.is_main_process:
            self._said.add(text)
            log.info("%s", text)


def _models_in(owner: nn.Module) -> list[nn.Module]:
    return list(owner) if isinstance(owner, _Several) else [owner]


def _refuse(closure: Any = None) -> Any:
    """The `step` of an optimizer that was freed: it would train every rank on its own.

    Raises:
        InputError: always.
    """
    raise InputError("free_memory() has closed this optimizer: prepare model and optimizer again before step()")


def _check(accelerator: Accelerator) -> None:
    """Refuse an accelerator whose gradients do not go by DDP.

    Raises:
        InputError: they do not.
    """
    known: Iterable[Any] = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
    kind = accelerator.distributed_type
    if kind not in known:
        raise InputError(
            f"Accelerate trains with {kind.value} here, which moves gradients itself: use DDP's settings"
        )
    if accelerator.mixed_precision == "fp8":
        raise InputError("mixed_precision='fp8' replaces layers, which was never tried: say 'bf16'")
    config = getattr(accelerator, "parallelism_config", None)
    if config is not None and config.total_size not in (1, config.dp_replicate_size):
        raise InputError("parallelism_config= shards the model, so gradients are not averaged as a whole")


def _wire_dtype(accelerator: Accelerator) -> str | None:
    """What gradients travel as, by the hook that the accelerator would give to DDP.

    Raises:
        InputError: AutoByte has nothing like this hook.
    """
    handler = accelerator.ddp_handler
    name = "no" if handler is None else str(getattr(handler.comm_hook, "value", handler.comm_hook)).lower()
    if name not in WIRE:
        raise InputError(f"DistributedDataParallelKwargs(comm_hook={name}): AutoByte has fp16 and bf16 only")
    return WIRE[name]
