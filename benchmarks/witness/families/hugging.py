"""Tiny configurations of Hugging Face with random weights; nothing is fetched."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.witness.families.trial import Family, Trial, ordinary

_VOCAB, _WIDTH = 512, 96
_TEXT: dict[str, Any] = {
    "vocab_size": _VOCAB,
    "hidden_size": _WIDTH,
    "intermediate_size": 2 * _WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class _Loss(nn.Module):
    """A model of Hugging Face that returns its loss."""

    def __init__(self, net: nn.Module, *names: str, **fixed: object) -> None:
        super().__init__()
        self.net, self.names, self.fixed = net, names, fixed

    def forward(self, *tensors: Tensor) -> Tensor:
        loss: Tensor = self.net(**dict(zip(self.names, tensors, strict=True)), **self.fixed).loss
        return loss


def _ids(batch: int = 4, length: int = 128) -> Tensor:
    return torch.randint(3, _VOCAB, (batch, length))


def _causal(net: nn.Module) -> Trial:
    ids = _ids()
    return ordinary(_Loss(net, "input_ids", "labels", use_cache=False), ids, ids)


def _t5() -> Trial:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(  # type: ignore[call-arg]
        vocab_size=_VOCAB, d_model=_WIDTH, d_kv=24, d_ff=192, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    net = _Loss(T5ForConditionalGeneration(config), "input_ids", "labels", use_cache=False)
    return ordinary(net, _ids(), _ids(4, 96))


def _whisper() -> Trial:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=_VOCAB, d_model=_WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=192, decoder_ffn_dim=192, num_mel_bins=40,
        max_source_positions=150, max_target_positions=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, begin_suppress_tokens=None, suppress_tokens=None,
    )  # fmt: skip
    net = _Loss(WhisperForConditionalGeneration(config), "input_features", "labels", use_cache=False)
    return ordinary(net, torch.randn(4, 40, 300), _ids(4, 64))


def _swin() -> Trial:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(  # type: ignore[call-arg]
        image_size=64, patch_size=4, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4,
        num_labels=10,
    )  # fmt: skip
    net = _Loss(SwinForImageClassification(config), "pixel_values", "labels")
    return ordinary(net, torch.randn(8, 3, 64, 64), torch.randint(10, (8,)))


def _convnext() -> Trial:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(num_stages=2, hidden_sizes=[32, 64], depths=[2, 2], num_labels=10)  # type: ignore[call-arg]
    net = _Loss(ConvNextForImageClassification(config), "pixel_values", "labels")
    return ordinary(net, torch.randn(8, 3, 64, 64), torch.randint(10, (8,)))


def _mamba2() -> Trial:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        vocab_size=_VOCAB, hidden_size=64, num_hidden_layers=1, num_heads=8, head_dim=16, state_size=16,
        n_groups=1, chunk_size=32, expand=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    ids = _ids(2, 64)
    return ordinary(_Loss(Mamba2ForCausalLM(config), "input_ids", "labels", use_cache=False), ids, ids)


def _distilbert() -> Trial:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = DistilBertConfig(
        vocab_size=_VOCAB, dim=_WIDTH, hidden_dim=192, n_layers=3, n_heads=4, max_position_embeddings=256
    )
    net = DistilBertForMaskedLM(config)
    net.gradient_checkpointing_enable()  # type: ignore[no-untyped-call]
    ids = _ids()
    return ordinary(_Loss(net, "input_ids", "labels"), ids, ids)


def _gemma2() -> Trial:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(**_TEXT, num_key_value_heads=2, head_dim=24, sliding_window=64)
    return _causal(Gemma2ForCausalLM(config))


def _qwen2() -> Trial:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _causal(Qwen2ForCausalLM(Qwen2Config(**_TEXT, num_key_value_heads=2)))


def _clip() -> Trial:
    from transformers import CLIPConfig, CLIPModel

    text = {**_TEXT, "num_hidden_layers": 2, "max_position_embeddings": 64}
    vision = {
        "hidden_size": _WIDTH, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 64, "patch_size": 8,
    }  # fmt: skip
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=64)
    net = _Loss(CLIPModel(config), "input_ids", "pixel_values", return_loss=True)
    return ordinary(net, _ids(8, 32), torch.randn(8, 3, 64, 64))


def _wav2vec2() -> Trial:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(  # type: ignore[call-arg]
        vocab_size=32, hidden_size=_WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192,
        conv_dim=[32, 32, 32], conv_kernel=[10, 3, 2], conv_stride=[5, 2, 2], num_feat_extract_layers=3,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, apply_spec_augment=False, num_labels=4,
        classifier_proj_size=32,
    )  # fmt: skip
    net = _Loss(Wav2Vec2ForSequenceClassification(config), "input_values", "labels")
    return ordinary(net, torch.randn(4, 4000), torch.randint(4, (4,)))


FAMILIES = (
    Family("t5", _t5),
    Family("whisper", _whisper),
    Family("swin", _swin),
    Family("convnext", _convnext),
    Family("mamba2", _mamba2),
    Family("distilbert", _distilbert),
    Family("gemma2", _gemma2),
    Family("qwen2", _qwen2),
    Family("clip", _clip),
    Family("wav2vec2", _wav2vec2),
)
