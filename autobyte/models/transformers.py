"""Transformers, with Hugging Face's parameters, names and order: bert-base, bert-large, gpt2.

Attention is counted as eager code runs it: the scores are written to memory, scaled, normalised, dropped, multiplied.

Reference: BERT (Devlin et al., NAACL'19), BertModel with its pooler and without a head; GPT-2 small (Radford et al.,
2019), GPT2LMHeadModel, whose output projection is the token embedding again.
"""

from dataclasses import dataclass

from autobyte.models.network import NetworkTable
from autobyte.models.ops import Op, elementwise, embedding, matmul


@dataclass(frozen=True)
class Shape:
    """A batch of token sequences and the width of the network they pass."""

    batch: int
    length: int
    hidden: int
    heads: int

    @property
    def tokens(self) -> int:
        """Positions of the whole batch."""
        return self.batch * self.length

    @property
    def elements(self) -> int:
        """Numbers of one hidden state of the whole batch."""
        return self.tokens * self.hidden


def bert_base(*, batch_size: int = 32) -> NetworkTable:
    """Write down BERT-base, 12 layers of 768, on sequences of 128 tokens."""
    return _bert("bert-base", Shape(batch_size, 128, 768, 12), layers=12)


def bert_large(*, batch_size: int = 8) -> NetworkTable:
    """Write down BERT-large, 24 layers of 1024, on sequences of 128 tokens."""
    return _bert("bert-large", Shape(batch_size, 128, 1024, 16), layers=24)


def gpt2(*, batch_size: int = 4) -> NetworkTable:
    """Write down GPT-2 small, 12 layers of 768, on sequences of 1024 tokens."""
    x = Shape(batch_size, 1024, 768, 12)
    vocabulary = 50257
    net = NetworkTable("gpt2", batch_size, (x.length,))
    _embedding(net, "transformer.wte", vocabulary, x)
    _embedding(net, "transformer.wpe", 1024, x)
    net.fold(elementwise("sum", x.elements), elementwise("dropout", x.elements))
    for layer in range(12):
        _gpt2_block(net, f"transformer.h.{layer}", x)
    _layernorm(net, "transformer.ln_f", x)
    logits = elementwise("loss", x.tokens * vocabulary)
    net.module("lm_head", {}, matmul(x.tokens, x.hidden, vocabulary), logits)  # its weight is wte's
    return net


def _bert(name: str, x: Shape, *, layers: int) -> NetworkTable:
    net = NetworkTable(name, x.batch, (x.length,))
    for table, rows in (("word", 30522), ("position", 512), ("token_type", 2)):
        _embedding(net, f"embeddings.{table}_embeddings", rows, x)
    net.fold(elementwise("sum", x.elements), elementwise("sum", x.elements))
    _layernorm(net, "embeddings.LayerNorm", x)
    net.fold(elementwise("dropout", x.elements))
    for layer in range(layers):
        _bert_layer(net, f"encoder.layer.{layer}", x)
    net.module("pooler.dense", _weights(x.hidden, x.hidden), matmul(x.batch, x.hidden, x.hidden))
    net.fold(elementwise("tanh", x.batch * x.hidden))
    return net


def _bert_layer(net: NetworkTable, name: str, x: Shape) -> None:
    for part in ("query", "key", "value"):
        _linear(net, f"{name}.attention.self.{part}", x, x.hidden, x.hidden)
    net.fold(*_attention(x))
    _linear(net, f"{name}.attention.output.dense", x, x.hidden, x.hidden)
    _residual(net, x)
    _layernorm(net, f"{name}.attention.output.LayerNorm", x)
    _linear(net, f"{name}.intermediate.dense", x, x.hidden, 4 * x.hidden)
    net.fold(elementwise("gelu", 4 * x.elements))
    _linear(net, f"{name}.output.dense", x, 4 * x.hidden, x.hidden)
    _residual(net, x)
    _layernorm(net, f"{name}.output.LayerNorm", x)


def _gpt2_block(net: NetworkTable, name: str, x: Shape) -> None:
    _layernorm(net, f"{name}.ln_1", x)
    _linear(net, f"{name}.attn.c_attn", x, x.hidden, 3 * x.hidden)
    net.fold(*_attention(x))
    _linear(net, f"{name}.attn.c_proj", x, x.hidden, x.hidden)
    _residual(net, x)
    _layernorm(net, f"{name}.ln_2", x)
    _linear(net, f"{name}.mlp.c_fc", x, x.hidden, 4 * x.hidden)
    net.fold(elementwise("gelu", 4 * x.elements))
    _linear(net, f"{name}.mlp.c_proj", x, 4 * x.hidden, x.hidden)
    _residual(net, x)


def _attention(x: Shape) -> list[Op]:
    """What happens between the projections: scores, softmax, context; and the heads' copies to and fro."""
    maps, head = x.batch * x.heads, x.hidden // x.heads
    scores = maps * x.length**2
    return [
        elementwise("copy", 3 * x.elements),
        matmul(x.length, head, x.length, batch=maps),
        elementwise("scale", scores),
        elementwise("softmax", scores),
        elementwise("dropout", scores),
        matmul(x.length, x.length, head, batch=maps),
        elementwise("copy", x.elements),
    ]


def _residual(net: NetworkTable, x: Shape) -> None:
    net.fold(elementwise("dropout", x.elements), elementwise("add", x.elements))


def _embedding(net: NetworkTable, name: str, rows: int, x: Shape) -> None:
    net.module(name, {"weight": rows * x.hidden}, embedding(rows * x.hidden, x.elements))


def _layernorm(net: NetworkTable, name: str, x: Shape) -> None:
    net.module(name, {"weight": x.hidden, "bias": x.hidden}, elementwise("layernorm", x.elements))


def _linear(net: NetworkTable, name: str, x: Shape, inner: int, out: int) -> None:
    net.module(name, _weights(inner, out), matmul(x.tokens, inner, out))


def _weights(inner: int, out: int) -> dict[str, int]:
    return {"weight": inner * out, "bias": out}
