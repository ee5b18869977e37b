"""Keras on torch: a Keras model is an `nn.Module` there, so `autobyte.torch` averages its gradients."""
