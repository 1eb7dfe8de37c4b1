"""What torch's own modules call, by class: the words from which `align` tells modules.

A class is known by *signature* ops, which hardly anything else calls, and may call others around them.
"""

import re
from dataclasses import dataclass
from typing import Final

Names = frozenset[str]


@dataclass(frozen=True, slots=True)
class Words:
    """Bare names of ops that a class calls; see the module text.

    Attributes:
        signature: what it is known by; none for a class that calls nothing.
        companions: what it calls between.
        before: what it calls first, in order; any of it may be missing.
        after: what it calls last, in order; any of it may be missing.
    """

    signature: Names
    companions: Names = frozenset()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def _words(signature: str, *, between: str = "", before: str = "", after: str = "") -> Words:
    return Words(
        frozenset(signature.split()), frozenset(between.split()), tuple(before.split()), tuple(after.split())
    )


KNOWN: Final[dict[str, Words]] = {
    "linear": _words("linear addmm"),
    "conv": _words("conv1d conv2d conv3d convolution"),
    "projection": _words("addmm", before="view", after="view"),
    "rmsnorm": _words("rms_norm"),
    "somenorm": _words(
        "layer_norm rms_norm rsqrt", before="permute to pow mean add", after="mul to mul permute"
    ),
    "rotary": _words(
        "cos sin", between="mul", before="unsqueeze expand to mul matmul transpose cat", after="mul to"
    ),
    "convtranspose": _words("conv_transpose1d conv_transpose2d conv_transpose3d"),
    "batchnorm": _words("batch_norm", before="add_"),
    "layernorm": _words("layer_norm"),
    "groupnorm": _words("group_norm"),
    "instancenorm": _words("instance_norm"),
    "relu": _words("relu clamp_min hardtanh leaky_relu prelu relu6"),
    "hardtanh": _words("hardtanh"),
    "gelu": _words("gelu"),
    "silu": _words("silu"),
    "sigmoid": _words("sigmoid"),
    "tanh": _words("tanh"),
    "softmax": _words("softmax log_softmax"),
    "embedding": _words("embedding"),
    "embeddingbag": _words("embedding_bag", before="arange reshape"),
    "dropout": _words("dropout"),
    "maxpool": _words("max_pool1d max_pool2d max_pool3d"),
    "avgpool": _words("avg_pool2d adaptive_avg_pool2d avg_pool1d mean adaptive_avg_pool1d"),
    "flatten": _words("flatten"),
    "upsample": _words("upsample_nearest2d upsample_bilinear2d"),
    "zeropad": _words("pad constant_pad_nd"),
    "lstm": _words("lstm"),
    "gru": _words("gru"),
    "rnn": _words("rnn_tanh rnn_relu"),
    "lstmcell": _words("lstm_cell"),
    "grucell": _words("gru_cell"),
    "multiheadattention": _words(
        "_native_multi_head_attention scaled_dot_product_attention linear bmm baddbmm",
        between="unflatten unsqueeze transpose squeeze contiguous view reshape select softmax dropout mul "
        "div masked_fill permute chunk mean expand cat pad zeros",
    ),
    "loss": _words("cross_entropy_loss nll_loss mse_loss binary_cross_entropy_with_logits l1_loss kl_div"),
    "identity": _words(""),
}
"""By class name in lower case without digits and endings such as 2d."""

_GLUE_NAMES: Final = (
    "view reshape contiguous transpose permute t to _to_copy empty zeros zero_ clone unsqueeze squeeze "
    "expand select slice detach detach_ alias size narrow chunk split unbind add_ copy_ zeros_like "
    "result_type full lift_fresh is_floating_point is_nonzero item _local_scalar_dense as_strided ones"
)
GLUE: Final = frozenset(_GLUE_NAMES.split())
"""Ops that any module may make beside the ones it is known for."""

SUMS: Final = frozenset({"add", "add_"})
"""Ops that join a residual branch."""

JOINS: Final = frozenset({"cat", "stack"})
"""Ops that join what several children made: they belong to the module around these."""

LIGHT: Final = frozenset(
    [
        "relu",
        "hardtanh",
        "gelu",
        "silu",
        "sigmoid",
        "tanh",
        "softmax",
        "dropout",
        "maxpool",
        "avgpool",
        "flatten",
    ]
)
"""Classes without weights: often left out by their parent, or used twice."""

_WEIGHTED_NAMES: Final = (
    "linear conv projection convtranspose rmsnorm somenorm batchnorm layernorm groupnorm instancenorm "
    "embedding embeddingbag lstm gru rnn lstmcell grucell"
)
WEIGHTED: Final = frozenset(_WEIGHTED_NAMES.split())
"""Classes with weights, which hardly any model calls but through a module."""

_BASES: Final = ("batchnorm", "conv", "linear", "embedding", "dropout")
_HEADED: Final = re.compile(r"[a-z0-9]For[A-Z]|LMHeadModel$")
LISTS: Final = frozenset({"ModuleList", "ModuleDict"})
"""Classes that are never called: their children are called by the module around them."""

HOLDERS: Final = frozenset({"NonDynamicallyQuantizableLinear"})
"""Classes that are never called and only hold weights: ``out_proj`` of torch's ``MultiheadAttention``."""


def class_of(kind: str) -> str:
    """Bring class names together: ``Conv2d`` and ``Conv1d`` are ``conv``.

    Example:
        >>> class_of("Conv2d"), class_of("LlamaRMSNorm"), class_of("CrossEntropyLoss")
        ('conv', 'somenorm', 'loss')
    """
    if kind == "Conv1D":  # of transformers: a matrix product between two views
        return "projection"
    name = kind.lower().replace("_", "").replace("adaptive", "").removesuffix("activation")
    for ending in ("1d", "2d", "3d"):
        name = name.removesuffix(ending)
    if name.endswith(("loss", "crossentropy")):
        return "loss"
    if name.endswith(("layernorm", "rmsnorm")) and name not in KNOWN:
        return "somenorm"
    if name.endswith("rotaryembedding"):
        return "rotary"
    return next((base for base in _BASES if name.endswith(base)), name)


def is_derived(kind: str) -> bool:
    """Whether a class is somebody's own kind of a class of torch, which may do more than that one.

    Example:
        >>> is_derived("DepthwiseConv2d"), is_derived("Conv2d"), is_derived("Block")
        (True, False, False)
    """
    own = kind.lower().replace("_", "")
    known = next((base for base in _BASES if class_of(kind) == base), None)
    return known is not None and not own.startswith(known)


def words_of(kind: str) -> Words | None:
    """Look up what a class calls; None where nobody knows.

    Example:
        >>> sorted(words_of("ReLU6").signature)[:2], words_of("MyBlock")
        (['clamp_min', 'hardtanh'], None)
    """
    name = class_of(kind)
    return KNOWN.get(name) or KNOWN.get(name.rstrip("0123456789"))


def is_light(kind: str) -> bool:
    """Whether a class has no weights and is often left out, or used twice."""
    return class_of(kind).rstrip("0123456789") in LIGHT


def is_norm(kind: str) -> bool:
    """Whether a class normalizes; residual sums stand in modules that have such children."""
    return class_of(kind).endswith("norm")


def makes_loss(kind: str) -> bool:
    """Whether a class around others computes the loss: one called so, or a model of transformers with a head.

    Example:
        >>> makes_loss("MyLoss"), makes_loss("BertForMaskedLM"), makes_loss("BertModel")
        (True, True, False)
    """
    return class_of(kind) == "loss" or _HEADED.search(kind) is not None


def plain(name: str) -> str:
    """The bare name of an op: ``aten::relu_`` is ``relu``.

    Example:
        >>> plain("aten::relu_"), plain("aten::_unsafe_view")
        ('relu', '_unsafe_view')
    """
    bare = name.rpartition("::")[2]
    return bare if bare in GLUE else bare.removesuffix("_")
