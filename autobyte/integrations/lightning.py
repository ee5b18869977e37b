"""Lightning's Trainer: a strategy that does what DDP's does, with AutoByte in place of DDP.

Importing this module makes the name `autobyte` known to `Trainer(strategy=…)`, and to `Fabric(strategy=…)`.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from autobyte.errors import InputError, needs
from autobyte.integrations import fabric
from autobyte.integrations.closures import CalledModule, ClosureFirst, bare
from autobyte.integrations.passes import before_backward
from autobyte.integrations.versions import check_version
from autobyte.torch import CommunicationError

with needs("lightning", what="training with Lightning"):
    from lightning.pytorch import Callback, LightningModule
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

log = logging.getLogger("autobyte")

#: Hooks in which users look at gradients.
LOOKS = ("on_after_backward", "on_before_optimizer_step")


class AutoByteStrategy(DDPStrategy):
    """A strategy for `lightning.Trainer`: one process per rank, gradients by AutoByte.

    >>> trainer = Trainer(strategy="autobyte", devices=2, accumulate_grad_batches=3, gradient_clip_val=1.0)
    >>> trainer = Trainer(strategy=AutoByteStrategy(wire_dtype="bf16"), devices=2)

    Automatic and manual optimisation, accumulation, clipping, precision and checkpoints are as with DDP. With manual
    optimisation, several optimizers may share the module.

    Args:
        keywords: of `autobyte.torch.DistributedOptimizer`. What `DDPStrategy` has beside DDP's own, such as
            `process_group_backend` and `start_method`, is handed on to it.

    Raises:
        InputError: an argument is DDP's own, or Lightning's to decide.
    """

    strategy_name = "autobyte"
    model: Any  # these three are properties of Lightning's
    optimizers: Any
    precision_plugin: Any

    def __init__(self, **keywords: Any) -> None:
        check_version("lightning")
        own = fabric.split(keywords, "accelerator", "checkpoint_io", "precision_plugin")
        super().__init__(**own)
        self._keywords = keywords
        self._failed = False
        self._blocked = False  # backward passes send nothing
        self._looks: str | None = None  # what looks at gradients before the step

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Make the name known."""
        strategy_registry.register(cls.strategy_name, cls, description="DDP's results by AutoByte")

    def configure_ddp(self) -> None:
        """Put a module around the user's whose call is one training step: layers are updated while it goes on."""
        self.model = CalledModule(self.model)

    def setup_optimizers(self, trainer: Any) -> None:
        """Wrap each optimizer."""
        super().setup_optimizers(trainer)
        module = self.lightning_module
        self.optimizers = [self._wrap(each, trainer, module) for each in self.optimizers]
        self._looks = _what_looks(trainer, module) if module.automatic_optimization else None
        if self._looks is not None and self.is_global_zero:
            log.info("averages are waited for before step(), and do not cross it: %s may read them", self._looks)

    def setup_precision_plugin(self) -> None:
        """Let the precision plugin clip by AutoByte."""
        super().setup_precision_plugin()
        plugin = self.precision_plugin
        plugin.clip_grad_by_norm = _clip_by_norm
        plugin.clip_grad_by_value = _clip_by_value
        self.precision_plugin = plugin

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients, and send none."""
        with ExitStack() as stack:
            for optimizer in self.optimizers:
                stack.enter_context(bare(optimizer).no_sync())
            self._blocked = True
            try:
                yield
            finally:
                self._blocked = False

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *arguments: Any, **keywords: Any) -> Tensor:
        """Do what Lightning's strategies do; hooks that look at gradients find averages."""
        module, plugin = self.lightning_module, self.precision_plugin
        loss = plugin.pre_backward(closure_loss, module)
        for each in self.optimizers:
            before_backward(loss, bare(each))
        plugin.backward(loss, module, optimizer, *arguments, **keywords)
        if self._looks is not None and not self._blocked:
            bare(optimizer).synchronize()
        done: Tensor = plugin.post_backward(loss, module)
        return done

    def on_validation_start(self) -> None:
        """Evaluate with rank 0's buffers, as with DDP."""
        super().on_validation_start()
        for optimizer in self.optimizers[:1]:
            bare(optimizer).broadcast_buffers()

    def on_exception(self, exception: BaseException) -> None:
        """Let go of what cannot be finished."""
        super().on_exception(exception)
        self._failed = True

    def teardown(self) -> None:
        """Take the last updates, and let go of hooks, threads and sockets."""
        for optimizer in map(bare, self.optimizers):
            if not isinstance(optimizer, ClosureFirst):
                continue
            if self._failed:
                with suppress(CommunicationError, InputError):  # Lightning raises what failed first
                    optimizer.recover()
            else:
                optimizer.close()
        self._failed = False
        if isinstance(self.model, CalledModule):
            self.model = self.lightning_module
        super().teardown()

    def _wrap(self, optimizer: Optimizer, trainer: Any, module: nn.Module) -> Optimizer:
        if isinstance(optimizer, LBFGS) and trainer.gradient_clip_val:
            raise InputError("LBFGS evaluates a closure several times, so its gradients cannot be clipped here")
        owner = self.model if module.automatic_optimization else fabric.owner_of(optimizer, module)
        return ClosureFirst(optimizer, owner, **self._keywords)


def _what_looks(trainer: Any, module: Any) -> str | None:
    """The first hook of the user's that may look at gradients."""
    for base, each in [(LightningModule, module), *((Callback, callback) for callback in trainer.callbacks)]:
        for name in LOOKS:
            if getattr(type(each), name) is not getattr(base, name):
                return f"{type(each).__name__}.{name}"
    return None


def _clip_by_norm(optimizer: Any, clip_val: float) -> None:
    bare(optimizer).clip_grad_norm_(clip_val)


def _clip_by_value(optimizer: Any, clip_val: float) -> None:
    bare(optimizer).clip_grad_value_(clip_val)


if AutoByteStrategy.strategy_name not in StrategyRegistry:
    AutoByteStrategy.register_strategies(StrategyRegistry)
