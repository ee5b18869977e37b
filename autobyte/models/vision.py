"""Convolutional networks, with torchvision's parameters, names and order: resnet50, vgg16, alexnet, densenet121.

Reference: ResNet (He et al., CVPR'16; the stride in the 3x3 convolution, as torchvision has it), VGG (Simonyan and
Zisserman, ICLR'15, configuration D), AlexNet (Krizhevsky, arXiv 1404.5997), DenseNet (Huang et al., CVPR'17).
"""

from dataclasses import dataclass

from autobyte.models.network import NetworkTable
from autobyte.models.ops import avgpool, conv, elementwise, matmul, maxpool

CLASSES = 1000


@dataclass(frozen=True)
class Images:
    """A batch of square feature maps."""

    batch: int
    channels: int
    side: int

    @property
    def pixels(self) -> int:
        """Positions of the whole batch."""
        return self.batch * self.side**2

    @property
    def elements(self) -> int:
        """Numbers in the whole batch."""
        return self.channels * self.pixels

    def slide(self, channels: int, kernel: int, stride: int, padding: int) -> "Images":
        """What a window that slides over the maps leaves."""
        return Images(self.batch, channels, (self.side + 2 * padding - kernel) // stride + 1)


def resnet50(*, batch_size: int = 32) -> NetworkTable:
    """Write down ResNet-50: four stages of bottleneck blocks."""
    net, x = _start("resnet50", batch_size)
    x = _conv_bn(net, "conv1", "bn1", x, 64, 7, stride=2)
    _relu(net, x)
    x = _maxpool(net, x, 3, stride=2, padding=1)
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            x = _bottleneck(net, f"layer{stage}.{block}", x, 32 << stage, stride=stride)
    x = _average(net, x, 1)
    _classify(net, "fc", x)
    return net


def vgg16(*, batch_size: int = 32) -> NetworkTable:
    """Write down VGG-16 without batch normalisation."""
    net, x = _start("vgg16", batch_size)
    index = 0
    for repeats, channels in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(repeats):
            x = _conv(net, f"features.{index}", x, channels, 3, bias=True)
            _relu(net, x)
            index += 2
        x = _maxpool(net, x, 2, stride=2)
        index += 1
    x = _dense(net, "classifier.0", x)
    x = _dense(net, "classifier.3", x)
    _classify(net, "classifier.6", x)
    return net


def alexnet(*, batch_size: int = 128) -> NetworkTable:
    """Write down AlexNet, the one-column version."""
    net, x = _start("alexnet", batch_size)
    for index, channels, kernel, stride, padding, pooled in (
        (0, 64, 11, 4, 2, True),
        (3, 192, 5, 1, 2, True),
        (6, 384, 3, 1, 1, False),
        (8, 256, 3, 1, 1, False),
        (10, 256, 3, 1, 1, True),
    ):
        x = _conv(net, f"features.{index}", x, channels, kernel, stride=stride, padding=padding, bias=True)
        _relu(net, x)
        x = _maxpool(net, x, 3, stride=2) if pooled else x
    net.fold(elementwise("dropout", x.elements))
    x = _dense(net, "classifier.1", x)
    x = _dense(net, "classifier.4", x, dropout=False)
    _classify(net, "classifier.6", x)
    return net


def densenet121(*, batch_size: int = 32) -> NetworkTable:
    """Write down DenseNet-121: growth rate 32, four dense blocks, a transition that halves after the first three."""
    net, x = _start("densenet121", batch_size)
    x = _conv_bn(net, "features.conv0", "features.norm0", x, 64, 7, stride=2)
    _relu(net, x)
    x = _maxpool(net, x, 3, stride=2, padding=1)
    for block, layers in enumerate((6, 12, 24, 16), start=1):
        for layer in range(1, layers + 1):
            x = _dense_layer(net, f"features.denseblock{block}.denselayer{layer}", x)
        if block < 4:
            x = _transition(net, f"features.transition{block}", x)
    _batchnorm(net, "features.norm5", x)
    _relu(net, x)
    x = _average(net, x, 1)
    _classify(net, "classifier", x)
    return net


def _start(name: str, batch_size: int) -> tuple[NetworkTable, Images]:
    return NetworkTable(name, batch_size, (3, 224, 224)), Images(batch_size, 3, 224)


def _bottleneck(net: NetworkTable, name: str, x: Images, width: int, *, stride: int) -> Images:
    y = _conv_bn(net, f"{name}.conv1", f"{name}.bn1", x, width, 1)
    _relu(net, y)
    y = _conv_bn(net, f"{name}.conv2", f"{name}.bn2", y, width, 3, stride=stride)
    _relu(net, y)
    y = _conv_bn(net, f"{name}.conv3", f"{name}.bn3", y, 4 * width, 1)
    if x.channels != y.channels:
        _conv_bn(net, f"{name}.downsample.0", f"{name}.downsample.1", x, 4 * width, 1, stride=stride)
    net.fold(elementwise("add", y.elements))
    _relu(net, y)
    return y


def _dense_layer(net: NetworkTable, name: str, x: Images) -> Images:
    growth = 32
    _batchnorm(net, f"{name}.norm1", x)
    _relu(net, x)
    y = _conv_bn(net, f"{name}.conv1", f"{name}.norm2", x, 4 * growth, 1)
    _relu(net, y)
    _conv(net, f"{name}.conv2", y, growth, 3)
    joined = Images(x.batch, x.channels + growth, x.side)
    net.fold(elementwise("concat", joined.elements))
    return joined


def _transition(net: NetworkTable, name: str, x: Images) -> Images:
    _batchnorm(net, f"{name}.norm", x)
    _relu(net, x)
    y = _conv(net, f"{name}.conv", x, x.channels // 2, 1)
    return _average(net, y, y.side // 2)


def _conv(
    net: NetworkTable,
    name: str,
    x: Images,
    out: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int | None = None,
    bias: bool = False,
) -> Images:
    y = x.slide(out, kernel, stride, kernel // 2 if padding is None else padding)
    parameters = {"weight": x.channels * out * kernel**2} | ({"bias": out} if bias else {})
    pixels = {"pixels_in": x.pixels, "pixels_out": y.pixels}
    net.module(name, parameters, conv(x.channels, out, kernel, stride=stride, first=not net.modules, **pixels))
    return y


def _conv_bn(net: NetworkTable, name: str, norm: str, x: Images, out: int, kernel: int, *, stride: int = 1) -> Images:
    y = _conv(net, name, x, out, kernel, stride=stride)
    _batchnorm(net, norm, y)
    return y


def _batchnorm(net: NetworkTable, name: str, x: Images) -> None:
    net.module(name, {"weight": x.channels, "bias": x.channels}, elementwise("batchnorm", x.elements))


def _relu(net: NetworkTable, x: Images) -> None:
    net.fold(elementwise("relu", x.elements))


def _maxpool(net: NetworkTable, x: Images, kernel: int, *, stride: int, padding: int = 0) -> Images:
    y = x.slide(x.channels, kernel, stride, padding)
    net.fold(maxpool(x.elements, y.elements))
    return y


def _average(net: NetworkTable, x: Images, side: int) -> Images:
    y = Images(x.batch, x.channels, side)
    net.fold(avgpool(x.elements, y.elements))
    return y


def _linear(net: NetworkTable, name: str, x: Images, out: int) -> Images:
    inner = x.elements // x.batch
    net.module(name, {"weight": inner * out, "bias": out}, matmul(x.batch, inner, out))
    return Images(x.batch, out, 1)


def _dense(net: NetworkTable, name: str, x: Images, *, dropout: bool = True) -> Images:
    y = _linear(net, name, x, 4096)
    _relu(net, y)
    if dropout:
        net.fold(elementwise("dropout", y.elements))
    return y


def _classify(net: NetworkTable, name: str, x: Images) -> None:
    y = _linear(net, name, x, CLASSES)
    net.fold(elementwise("loss", y.elements))
