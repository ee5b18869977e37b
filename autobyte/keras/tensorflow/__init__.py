"""Keras on TensorFlow: gradients leave from within the dataflow, and averages come back into it."""
