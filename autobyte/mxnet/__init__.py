"""Training with MXNet's Gluon: a store that `gluon.Trainer` takes, and AutoByte's blocks below it.

    import autobyte.mxnet as ab                # first: MXNet needs names that NumPy 2 has dropped
    from mxnet import gluon

    store = ab.KVStore()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=store)

MXNet was retired upstream in 2023. It is here for comparison with the papers' own stack.
"""

from autobyte.errors import MissingExtra
from autobyte.mxnet.names import restore

restore()
try:
    from autobyte.mxnet.store import KVStore
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"autobyte.mxnet needs {error.name}: pip install --no-deps mxnet==1.9.1 graphviz==0.8.4, and requests"
    ) from error

__all__ = ["KVStore"]
