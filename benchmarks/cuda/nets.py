"""Nets at the sizes of a data-centre GPU, with random weights and a batch; they run in bfloat16 autocast.

gpt2         GPT-2, 124M parameters, dropout 0.1                     8 x 1024 tokens
gpt2_medium  GPT-2, 355M parameters, dropout 0.1                     8 x 1024 tokens
llama_lora   22 layers x 2048, 1.1B bfloat16 parameters, adapters    4 x 1024 tokens
bert_large   BERT, 335M parameters, dropout 0.1                      16 x 512 tokens
resnet50     1,000 classes                                           128 x 224x224
unet         64 channels, 4 levels                                   16 x 256x256
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.case import Case
from benchmarks.zoo.language import LanguageLoss
from benchmarks.zoo.lora import add_lora
from benchmarks.zoo.resnet import Bottleneck, ResNet
from benchmarks.zoo.unet import UNet

_Made = tuple[nn.Module, tuple[Tensor, ...]]
_COMMON: Final[dict[str, Any]] = {"use_cache": False, "attn_implementation": "sdpa"}
_IGNORE: Final = -100


def _gpt2(layers: int, width: int, heads: int, *, batch: int = 8) -> _Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=width, n_layer=layers, n_head=heads, **_COMMON)
    net = GPT2LMHeadModel(config)
    net.loss_type = "ForCausalLM"
    ids = torch.randint(config.vocab_size, (batch, 1024))
    return LanguageLoss(net), (ids, ids.clone())


def _llama_lora(*, batch: int = 4) -> _Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
        num_attention_heads=32, num_key_value_heads=4, max_position_embeddings=1024, **_COMMON,
    )  # fmt: skip
    with torch.device("cuda"):
        model = LanguageLoss(LlamaForCausalLM(config)).bfloat16()
        add_lora(model, rank=16, alpha=32.0)
    ids = torch.randint(config.vocab_size, (batch, 1024))
    return model, (ids, ids.clone())


def _bert_large(*, batch: int = 16) -> _Made:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, **_COMMON
    )
    labels = torch.randint(config.vocab_size, (batch, 512))
    predicted = torch.rand(labels.shape) < 0.15
    ids = labels.masked_fill(predicted, 1)
    return LanguageLoss(BertForMaskedLM(config)), (ids, labels.masked_fill(~predicted, _IGNORE))


class FlatCrossEntropy(nn.Module):
    """A net and its cross entropy over rows: over maps, torch has no kernel that is deterministic."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Compute the loss."""
        found = self.net(x)
        return functional.cross_entropy(found.movedim(1, -1).flatten(0, -2), target.flatten())


def _resnet50(*, batch: int = 128) -> _Made:
    net = ResNet(Bottleneck, (3, 4, 6, 3), 64, num_classes=1000)
    return FlatCrossEntropy(net), (torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,)))


def _unet(*, batch: int = 16) -> _Made:
    net = UNet(64, depth=4, num_classes=2)
    return FlatCrossEntropy(net), (torch.randn(batch, 3, 256, 256), torch.randint(2, (batch, 256, 256)))


NETS: Final[dict[str, Callable[..., _Made]]] = {
    "gpt2": partial(_gpt2, 12, 768, 12),
    "gpt2_medium": partial(_gpt2, 24, 1024, 16),
    "llama_lora": _llama_lora,
    "bert_large": _bert_large,
    "resnet50": _resnet50,
    "unet": _unet,
}
TRANSFORMERS: Final = ("gpt2", "gpt2_medium", "llama_lora", "bert_large")


def build(name: str, *, batch: int | None = None) -> Case:
    """Build a net and its batch on the GPU, from a seed.

    Args:
        name: a key of `NETS`.
        batch: samples; default: that of the table above.
    """
    torch.manual_seed(0)
    model, inputs = NETS[name](**({} if batch is None else {"batch": batch}))
    return Case(name, model.cuda().train(), tuple(value.cuda() for value in inputs), frozenset())
