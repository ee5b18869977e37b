"""Handwritten digits, a small CNN in Keras: plain, or on several ranks with AutoByte, in one file.

    python examples/train_keras.py --plain
    torchrun --nproc-per-node 2 examples/train_keras.py --autobyte
    KERAS_BACKEND=torch torchrun --nproc-per-node 2 examples/train_keras.py --autobyte

About 10 s each on two CPU cores, most of it imports. pip install 'autobyte[examples,keras]' tensorflow
"""

import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import autobyte.keras as ab

try:
    from sklearn.datasets import load_digits
except ImportError:
    raise SystemExit("this example needs scikit-learn: pip install 'autobyte[examples]'") from None

BATCH = 32  # images per rank and step


def make_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--plain", action="store_true", help="Keras alone, on one rank")
    how.add_argument("--autobyte", action="store_true")
    parser.add_argument("--engine", choices=["allreduce", "ps"], default="allreduce", help="with --autobyte")
    parser.add_argument("--cross-step", action="store_true", help="updates wait for the next step; on TensorFlow")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    rank, ranks = (ab.rank(), ab.size()) if options.autobyte else (0, 1)

    digits = load_digits()
    images, labels = digits.images[..., np.newaxis].astype("float32") / 16, digits.target
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1408], order[1408:]
    own = train[rank::ranks]  # as many batches on every rank

    model = make_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = 0.05 * ranks
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss=loss, metrics=["accuracy"])
    callbacks = []
    if options.autobyte:
        ab.distribute(model, engine=options.engine, cross_step=options.cross_step)
        callbacks = [ab.LearningRateWarmup(rate, warmup_epochs=2), ab.MetricAverage()]

    began = time.perf_counter()
    model.fit(images[own], labels[own], batch_size=BATCH, epochs=options.epochs, verbose=0, callbacks=callbacks)
    spent = time.perf_counter() - began
    right = model.evaluate(images[test], labels[test], verbose=0)[1]
    if rank == 0:
        name = "AutoByte" if options.autobyte else "plain"
        print(f"{name}, {ranks} ranks: {right:.1%} of the test images right, after {spent:.1f} s of training")


if __name__ == "__main__":
    main()
