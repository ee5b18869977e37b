"""Optuna's covariance matrix adaptation, which needs an extra of its own."""

from autobyte.errors import require

for module in ("optuna", "cmaes"):  # before `optuna.py`, which would name the extra without `cmaes`
    require(module, extra="cmaes", what="Optuna's sampler 'cmaes'")

from autobyte.tuners.optuna import Optuna  # noqa: E402


class OptunaCmaEs(Optuna):
    """Covariance matrix adaptation; needs: pip install 'autobyte[cmaes]'."""

    named = "cmaes"
