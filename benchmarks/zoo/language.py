"""Language models from Hugging Face configurations, random weights, attention through SDPA.

    name              scale  call                                                      batch    parameters
    gpt2              bench  4 layers x 256, 4 heads, vocabulary 8192, dropout 0.1     2 x 256   5,322,240
    gpt2              test   2 layers x 32, 2 heads, vocabulary 64, dropout 0.1        2 x 16       35,712
    gpt2_small_vocab  bench  4 layers x 256, 4 heads, vocabulary 1024, dropout 0       2 x 256   3,487,232
    gpt2_small_vocab  test   2 layers x 32, 2 heads, vocabulary 64, dropout 0          2 x 16       35,712
    bert              bench  4 layers x 256, 4 heads, vocabulary 8192, dropout 0.1     2 x 256   5,397,248
    bert              test   2 layers x 32, 2 heads, vocabulary 64, dropout 0.1        2 x 16       36,960
    llama             bench  4 layers x 256, 4 heads, inner 688, vocabulary 32000      2 x 128  19,548,416
    llama             test   2 layers x 32, 2 heads, inner 64, vocabulary 64           2 x 16       24,736
    llama_lora        bench  llama with adapters of rank 8, alpha 16; 156,160 trained  2 x 128  19,704,576
    llama_lora        test   llama with adapters of rank 8, alpha 16; 8,704 trained    2 x 16       33,440

Classes: ``GPT2LMHeadModel``, ``BertForMaskedLM`` (15 % of the positions are predicted) and
``LlamaForCausalLM`` (untied head). GPT-2 and BERT tie the output layer to the embedding.
``transformers`` is imported when one of these is built, not before.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.case import Scale, entry
from benchmarks.zoo.lora import add_lora

_IGNORE = -100
"""Label of a position that does not count in the loss (the default of ``cross_entropy``)."""

_COMMON: dict[str, Any] = {"use_cache": False, "attn_implementation": "sdpa"}


class LanguageLoss(nn.Module):
    """A Hugging Face language model that returns its loss: ``forward(ids, labels)``."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net: nn.Module = net

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.net(input_ids=ids, labels=labels, use_cache=False).loss
        return loss


def _ids(scale: Scale, vocab: int, *, bench_length: int) -> Tensor:
    return torch.randint(vocab, (2, bench_length if scale == "bench" else 16))


def _gpt2(scale: Scale, *, bench_vocab: int, dropout: float) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads, vocab = (4, 256, 4, bench_vocab) if scale == "bench" else (2, 32, 2, 64)
    config = GPT2Config(
        vocab_size=vocab,
        n_positions=256,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        **_COMMON,
    )
    net = GPT2LMHeadModel(config)
    # The class name does not end in ForCausalLM, so the library would guess the same loss with a
    # warning in the middle of forward, and Dynamo cannot trace a logger.
    net.loss_type = "ForCausalLM"
    ids = _ids(scale, vocab, bench_length=256)
    return LanguageLoss(net), (ids, ids.clone())


def _bert(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import BertConfig, BertForMaskedLM

    layers, width, heads, vocab = (4, 256, 4, 8192) if scale == "bench" else (2, 32, 2, 64)
    config = BertConfig(
        vocab_size=vocab,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=256,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        **_COMMON,
    )
    labels = _ids(scale, vocab, bench_length=256)
    predicted = torch.rand(labels.shape) < 0.15
    predicted[:, 0] = True
    ids = labels.masked_fill(predicted, 1)
    return LanguageLoss(BertForMaskedLM(config)), (ids, labels.masked_fill(~predicted, _IGNORE))


def _llama(scale: Scale, *, rank: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, width, heads, inner, vocab = (4, 256, 4, 688, 32000) if scale == "bench" else (2, 32, 2, 64, 64)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=256,
        **_COMMON,
    )
    model = LanguageLoss(LlamaForCausalLM(config))
    if rank:
        add_lora(model, rank=rank, alpha=2.0 * rank)
    ids = _ids(scale, vocab, bench_length=128)
    return model, (ids, ids.clone())


ENTRIES = (
    entry("gpt2", partial(_gpt2, bench_vocab=8192, dropout=0.1), "transformer", "dropout", "tied"),
    entry("gpt2_small_vocab", partial(_gpt2, bench_vocab=1024, dropout=0.0), "transformer", "tied"),
    entry("bert", _bert, "transformer", "dropout", "tied"),
    entry("llama", partial(_llama, rank=0), "transformer"),
    entry("llama_lora", partial(_llama, rank=8), "transformer", "lora"),
)
