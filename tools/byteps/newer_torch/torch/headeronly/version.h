/* PyTorch's version as the number that BytePS compares. PyTorch's own header makes it a text. */
#pragma once
#include_next <torch/headeronly/version.h>
#undef TORCH_VERSION
#define TORCH_VERSION 2000000000
