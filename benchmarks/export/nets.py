"""Twelve small nets: six that the search was looked at with, and six of transformers that it was not.

A step takes some tens of milliseconds on one core.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from benchmarks.zoo.densenet import DenseNet
from benchmarks.zoo.language import LanguageLoss
from benchmarks.zoo.losses import CrossEntropy, images
from benchmarks.zoo.resnet import BasicBlock, ResNet
from benchmarks.zoo.unet import UNet
from benchmarks.zoo.vit import Vit

_Made: TypeAlias = tuple[nn.Module, tuple[Tensor, ...]]
_VOCAB: Final = 512


def _language(net: Any, length: int = 96, batch: int = 4) -> _Made:
    ids = torch.randint(2, _VOCAB, (batch, length))
    net.loss_type = getattr(net, "loss_type", None) or "ForCausalLM"
    return LanguageLoss(net), (ids, ids.clone())


def _mlp() -> _Made:
    layers = (
        nn.Sequential(nn.LayerNorm(192), nn.Linear(192, 384), nn.GELU(), nn.Linear(384, 192))
        for _ in range(6)
    )
    return CrossEntropy(nn.Sequential(*layers)), (torch.randn(1024, 192), torch.randint(192, (1024,)))


def _gpt2() -> _Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(
        GPT2Config(vocab_size=_VOCAB, n_positions=128, n_embd=256, n_layer=4, n_head=4, use_cache=False)
    )
    net.loss_type = "ForCausalLM"
    return _language(net, 128)


def _vit() -> _Made:
    net = Vit(size=64, patch=8, width=128, depth=4, num_heads=4, num_classes=10)
    return CrossEntropy(net), images(6, 64, 10)


def _resnet18() -> _Made:
    return CrossEntropy(ResNet(BasicBlock, (2, 2, 2, 2), 16, num_classes=10)), images(8, 96, 10)


def _unet() -> _Made:
    net = UNet(8, depth=3, num_classes=2)
    return CrossEntropy(net), (torch.randn(2, 3, 96, 96), torch.randint(2, (2, 96, 96)))


def _densenet() -> _Made:
    return CrossEntropy(DenseNet((3, 4, 4), growth=16, width=32, num_classes=10)), images(8, 96, 10)


def _opt() -> _Made:
    from transformers import OPTConfig, OPTForCausalLM

    return _language(
        OPTForCausalLM(
            OPTConfig(
                vocab_size=_VOCAB, hidden_size=160, ffn_dim=640, num_hidden_layers=4, num_attention_heads=4,
                max_position_embeddings=128, word_embed_proj_dim=160, use_cache=False,
            )
        )
    )  # fmt: skip


def _qwen2() -> _Made:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _language(
        Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=_VOCAB, hidden_size=160, intermediate_size=448, num_hidden_layers=4,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, use_cache=False,
            )
        )
    )  # fmt: skip


def _gpt_neox() -> _Made:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return _language(
        GPTNeoXForCausalLM(
            GPTNeoXConfig(
                vocab_size=_VOCAB, hidden_size=160, intermediate_size=640, num_hidden_layers=5,
                num_attention_heads=4, max_position_embeddings=128, use_cache=False,
            )
        )
    )  # fmt: skip


def _t5() -> _Made:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=_VOCAB, d_model=128, d_kv=32, d_ff=512, num_layers=3, num_heads=4)
    config.decoder_start_token_id, config.pad_token_id, config.use_cache = 0, 0, False
    return _language(T5ForConditionalGeneration(config))


class _ImageLoss(nn.Module):
    """A Hugging Face classifier that returns its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.net(pixel_values=pixels, labels=labels).loss
        return loss


def _convnext() -> _Made:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[32, 64, 96, 128], depths=[2, 2, 3, 2])
    config.num_labels = 10
    return _ImageLoss(ConvNextForImageClassification(config)), images(4, 96, 10)


def _swin() -> _Made:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=64, patch_size=4, embed_dim=48, depths=[2, 2, 2], num_heads=[2, 4, 8], window_size=4
    )
    config.num_labels = 10
    return _ImageLoss(SwinForImageClassification(config)), images(4, 64, 10)


NETS: Final[Mapping[str, Callable[[], _Made]]] = {
    "mlp": _mlp, "gpt2": _gpt2, "vit": _vit, "resnet18": _resnet18, "unet": _unet, "densenet": _densenet,
    "opt": _opt, "qwen2": _qwen2, "gpt_neox": _gpt_neox, "t5": _t5, "convnext": _convnext, "swin": _swin,
}  # fmt: skip
UNSEEN: Final = frozenset(("opt", "qwen2", "gpt_neox", "t5", "convnext", "swin"))
"""Nets that nothing was tuned with."""


def built(name: str) -> _Made:
    """Build a net in training mode, and its batch, without touching the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs = NETS[name]()
    return model.train(), inputs
