"""Keras on torch: a Keras optimizer behind `autobyte.torch`, compared with averaging after backward."""

from pathlib import Path

import keras_ranks

CHECKS = Path(__file__).parent / "checks.py"


def test_two_ranks_train_as_with_averaging_after_backward(tmp_path: Path) -> None:
    names = ["sgd_allreduce", "sgd_ps", "adamw_allreduce", "adamw_ps", "unusual", "saved", "refusals", "unused"]
    for found in keras_ranks.run_checks(CHECKS, names, tmp_path, backend="torch"):
        assert set(names) <= set(found), "".join((tmp_path / f"rank{rank}.log").read_text() for rank in range(2))
        for name in names[:5]:
            assert "apart" in found[name], found[name]
            assert found[name]["apart"] <= 1e-6, f"{name}: {found[name]}"
            assert found[name]["ranks"], name
            assert found[name]["steps"] == 20, name
        assert found["unused"] == 4
        assert found["saved"] == [True, True]
        for what, words in (
            ("tape", "GradientTape is TensorFlow's"),
            ("another model", "CommunicationError: ranks [1] have a model unlike rank 0's"),
            ("jit", "say jit_compile=False"),
            ("thawed", "compile the model and wrap it again"),
            ("compiled again", "compile() was called after distribute()"),
            ("own optimizer", "train_step did not use model.optimizer"),
            ("scaled", "is not the .grad that backward() has left"),
            ("another optimizer", "InputError: train_step applies gradients with self.other beside model.optimizer"),
            ("jax", "Keras's backend is 'jax', and gradients are averaged on tensorflow and torch"),
            ("old", "keras 3.4.0 is too old, 3.15 works"),
        ):
            assert words in found["refusals"][what], f"{what}: {found['refusals'][what]}"
