/* Names of PyTorch 1, in functions that BytePS declares and does not define. */
#pragma once
struct THByteTensor;
struct THIntTensor;
struct THLongTensor;
struct THFloatTensor;
struct THDoubleTensor;
