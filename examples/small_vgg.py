"""A small VGG13 for images of 64 × 64: 10.0 million parameters, two thirds of them in the classifier.

autobyte profile examples/small_vgg.py:make_model --input 16,3,64,64 --device cpu --out small_vgg.json
"""

from collections import OrderedDict

from torch import nn

WIDTHS = ((64, 64), (128, 128), (256, 256), (256, 256), (256, 256))  # convolutions between pools
HIDDEN = 2048
CLASSES = 100


def make_model() -> nn.Module:
    """Make the network: convolutions that halve the image five times, then three linear layers."""
    layers: list[nn.Module] = []
    channels = 3
    for widths in WIDTHS:
        for width in widths:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    classifier = nn.Sequential(
        nn.Linear(channels * 2 * 2, HIDDEN),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(HIDDEN, CLASSES),
    )
    return nn.Sequential(OrderedDict(features=nn.Sequential(*layers), flatten=nn.Flatten(), classifier=classifier))
