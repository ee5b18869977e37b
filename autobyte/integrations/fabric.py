"""Lightning Fabric: a strategy that does what DDP's does, with AutoByte in place of DDP.

Importing this module makes the name `autobyte` known to `Fabric(strategy=…)`.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autobyte.errors import InputError, needs
from autobyte.integrations.closures import CalledModule, ClosureFirst, bare
from autobyte.integrations.passes import before_backward
from autobyte.integrations.versions import check_version
from autobyte.torch import DistributedOptimizer

with needs("lightning", what="training with Fabric"):
    from lightning.fabric.strategies import STRATEGY_REGISTRY, DDPStrategy

#: What Lightning's strategies of DDP take beside DDP's own arguments.
SHARED = ("parallel_devices", "cluster_environment", "process_group_backend", "start_method")


def split(keywords: dict[str, Any], *more: str) -> dict[str, Any]:
    """Take what is Lightning's out of keywords, and leave what is AutoByte's and not its default.

    LightningCLI hands in every argument that it finds in signatures.

    Raises:
        InputError: one is neither's.
    """
    own = {name: keywords.pop(name) for name in (*SHARED, *more) if name in keywords}
    known = inspect.signature(DistributedOptimizer).parameters
    for name in list(keywords):
        if name not in known:
            raise InputError(f"'{name}' is no argument of DistributedOptimizer; those of DDP mean nothing here")
        if keywords[name] == known[name].default:
            del keywords[name]
    if "accumulation" in keywords:
        raise InputError("leave accumulation= out: Lightning says which backward passes travel")
    return own


def owner_of(optimizer: Optimizer, module: nn.Module) -> nn.Module:
    """The part of a module that a loop calls for an optimizer: the first below the module with all its parameters.

    Returns:
        the module itself, if no part has them all.
    """
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    parts = (part for part in module.modules() if part is not module and trained <= set(part.parameters()))
    return next(parts, module)


class AutoByteFabricStrategy(DDPStrategy):
    """A strategy for `lightning.Fabric`: one process per rank, gradients by AutoByte.

    >>> fabric = Fabric(strategy="autobyte", devices=2)
    >>> model, optimizer = fabric.setup(model, optimizer)

    Args:
        keywords: of `autobyte.torch.DistributedOptimizer`. What Fabric's `DDPStrategy` has beside DDP's own, such as
            `process_group_backend` and `start_method`, is handed on to it.

    Raises:
        InputError: an argument is DDP's own, or Fabric's to decide.
    """

    def __init__(self, **keywords: Any) -> None:
        check_version("lightning")
        own = split(keywords, "accelerator", "checkpoint_io", "precision")
        super().__init__(**own)
        self._keywords = keywords
        self._wrapped: list[tuple[nn.Module, ClosureFirst]] = []
        self._backward_sync_control = _Control(self._wrapped)

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Make the name known."""
        strategy_registry.register("autobyte", cls, description="DDP's results by AutoByte")

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Put a module around a model whose call is one forward pass, also of a method that Fabric redirects."""
        return CalledModule(module)

    def setup_module_and_optimizers(self, module: nn.Module, optimizers: list[Optimizer], *scheduler: Any) -> Any:
        """Wrap the optimizers of a model; Lightning 2.6 hands in a scheduler besides, and 2.5 does not."""
        called = self.setup_module(module)
        owners = [module if len(optimizers) == 1 else owner_of(each, module) for each in optimizers]
        made = [
            ClosureFirst(each, called if owner is module else owner, **self._keywords)
            for each, owner in zip(optimizers, owners, strict=True)
        ]
        self._wrapped.extend((called, each) for each in made)
        return called, [*made], *scheduler

    def backward(self, tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> None:
        """Do what Fabric's strategies do; a pass that follows on another in one step adds to averages."""
        for _, optimizer in self._wrapped:
            before_backward(tensor, optimizer)
        super().backward(tensor, *arguments, **keywords)

    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        """The state of the user's own model."""
        state: dict[str, Any] = super().get_module_state_dict(
            module.module if isinstance(module, CalledModule) else module
        )
        return state

    def load_module_state_dict(self, module: nn.Module, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Load the state of the user's own model."""
        super().load_module_state_dict(
            module.module if isinstance(module, CalledModule) else module, state_dict, strict=strict
        )

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Refuse an optimizer without its model.

        Raises:
            InputError: always.
        """
        raise InputError("hand in model and optimizer together: model, optimizer = fabric.setup(model, optimizer)")

    def clip_gradients_norm(
        self,
        module: nn.Module,
        optimizer: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> torch.Tensor:
        """Clip by the norm while averages travel."""
        self.precision.unscale_gradients(optimizer)
        wrapped: ClosureFirst = bare(optimizer)
        return wrapped.clip_grad_norm_(max_norm, norm_type, error_if_nonfinite=error_if_nonfinite)

    def clip_gradients_value(self, module: nn.Module, optimizer: Any, clip_val: float) -> None:
        """Clip every element when its average is used."""
        self.precision.unscale_gradients(optimizer)
        bare(optimizer).clip_grad_value_(clip_val)


class _Control:
    """Says to Fabric how backward passes do not travel.

    Args:
        wrapped: models and their optimizers.
    """

    def __init__(self, wrapped: list[tuple[nn.Module, ClosureFirst]]) -> None:
        self._wrapped = wrapped

    @contextmanager
    def no_backward_sync(self, module: nn.Module, enabled: bool) -> Iterator[None]:
        """Backward passes of a model within the block accumulate, and send nothing."""
        with ExitStack() as stack:
            for owner, optimizer in self._wrapped:
                if enabled and owner is module:
                    stack.enter_context(optimizer.no_sync())
            yield


if "autobyte" not in STRATEGY_REGISTRY:
    AutoByteFabricStrategy.register_strategies(STRATEGY_REGISTRY)
