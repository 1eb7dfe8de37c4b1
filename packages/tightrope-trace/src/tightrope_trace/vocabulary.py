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
        starts: companions that it may begin with.
    """

    signature: Names
    companions: Names = frozenset()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    starts: Names = frozenset()

    @property
    def single(self) -> bool:
        """Whether one call makes one op of the signature."""
        return not self.companions


def _words(
    signature: str, *, between: str = "", before: str = "", after: str = "", starts: str = ""
) -> Words:
    first, inner, begin = (frozenset(text.split()) for text in (signature, between, starts))
    return Words(first, inner, tuple(before.split()), tuple(after.split()), begin)


_UPSAMPLE: Final = (
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_bicubic2d upsample_trilinear3d"
)
_PADS: Final = "zero constant reflection replication circular"
_LOSSES: Final = (
    "cross_entropy_loss nll_loss nll_loss_nd mse_loss l1_loss smooth_l1_loss huber_loss kl_div "
    "binary_cross_entropy binary_cross_entropy_with_logits poisson_nll_loss ctc_loss soft_margin_loss "
    "hinge_embedding_loss margin_ranking_loss triplet_margin_loss cosine_embedding_loss "
    "multilabel_margin_loss multi_margin_loss"
)

_SAME: Final = (
    "silu sigmoid tanh gelu elu celu selu mish prelu rrelu hardtanh hardswish hardsigmoid hardshrink "
    "softshrink softplus threshold glu flatten unflatten bilinear lstm gru softmax embedding linear"
)
"""Classes that call one op, which is called as they are."""

KNOWN: Final[dict[str, Words]] = {
    **{name: _words(name) for name in _SAME.split()},
    "linear": _words("linear addmm"),
    "conv": _words("conv1d conv2d conv3d convolution"),
    "projection": _words("addmm", before="view", after="view"),
    "convtranspose": _words("conv_transpose1d conv_transpose2d conv_transpose3d"),
    "rmsnorm": _words("rms_norm"),
    "somenorm": _words(
        "layer_norm rms_norm rsqrt", before="permute to pow mean add", after="mul to mul permute"
    ),
    "rotary": _words(
        "cos sin", between="mul", before="unsqueeze expand to mul matmul transpose cat", after="mul to"
    ),
    "batchnorm": _words("batch_norm", before="add_"),
    "layernorm": _words("layer_norm"),
    "groupnorm": _words("group_norm"),
    "instancenorm": _words("instance_norm"),
    "relu": _words("relu clamp_min hardtanh relu6"),
    "leakyrelu": _words("leaky_relu"),
    "logsigmoid": _words("log_sigmoid"),
    "logsoftmax": _words("log_softmax"),
    "softmin": _words("softmax", before="neg"),
    "tanhshrink": _words("tanh", after="sub"),
    "softsign": _words("abs", after="add div"),
    "embeddingbag": _words("embedding_bag", before="arange reshape reshape"),
    "dropout": _words("dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout"),
    "maxpool": _words(
        "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"
    ),
    "fractionalmaxpool": _words("fractional_max_pool2d fractional_max_pool3d", before="rand"),
    "avgpool": _words(
        "avg_pool1d avg_pool2d avg_pool3d mean adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"
    ),
    "upsample": _words(_UPSAMPLE),
    "upsamplingnearest": _words(_UPSAMPLE),
    "upsamplingbilinear": _words(_UPSAMPLE),
    "pixelshuffle": _words("pixel_shuffle"),
    "pixelunshuffle": _words("pixel_unshuffle"),
    "channelshuffle": _words("channel_shuffle"),
    "fold": _words("col2im"),
    "unfold": _words("im2col"),
    **{f"{name}pad": _words("pad constant_pad_nd") for name in _PADS.split()},
    "cosinesimilarity": _words("cosine_similarity"),
    "pairwisedistance": _words("pairwise_distance"),
    "lstm": _words("lstm", before="zeros zeros"),
    "gru": _words("gru", before="zeros"),
    "rnn": _words("rnn_tanh rnn_relu", before="zeros"),
    "lstmcell": _words("lstm_cell", before="zeros"),
    "grucell": _words("gru_cell", before="zeros"),
    "rnncell": _words("rnn_tanh_cell rnn_relu_cell", before="zeros"),
    "multiheadattention": _words(
        "_native_multi_head_attention scaled_dot_product_attention linear bmm baddbmm",
        between="unflatten unsqueeze transpose squeeze contiguous view reshape select softmax dropout mul "
        "div masked_fill permute chunk mean expand cat pad zeros zeros_like repeat split_with_sizes",
        starts="transpose zeros_like masked_fill split_with_sizes",
    ),
    "loss": _words(_LOSSES, before="broadcast_tensors"),
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

RANGES: Final = frozenset(
    [
        "zeros",
        "empty",
        "zero_",
        "_record_function_enter",
        "_record_function_enter_new",
        "_record_function_exit",
    ]
)
"""Ops that older versions of torch leave behind for every range of the profiler."""

SUMS: Final = frozenset({"add", "add_"})
"""Ops that join a residual branch."""

JOINS: Final = frozenset({"cat", "stack"})
"""Ops that join what several children made: they belong to the module around these."""

_LIGHT_NAMES: Final = (
    "relu leakyrelu elu celu selu gelu silu mish hardtanh hardswish hardsigmoid hardshrink softshrink "
    "softplus sigmoid logsigmoid tanh glu softmax logsoftmax dropout maxpool avgpool flatten"
)
LIGHT: Final = frozenset(_LIGHT_NAMES.split())
"""Classes without weights: often left out by their parent, or used twice."""

_WEIGHTED_NAMES: Final = (
    "linear conv projection convtranspose rmsnorm somenorm batchnorm layernorm groupnorm instancenorm "
    "embedding embeddingbag lstm gru rnn lstmcell grucell rnncell bilinear"
)
WEIGHTED: Final = frozenset(_WEIGHTED_NAMES.split())
"""Classes with weights, which hardly any model calls but through a module."""

MADE: Final = frozenset[str]().union(*(KNOWN[name].signature for name in WEIGHTED))
"""Ops that layers with weights make."""

_BASES: Final = ("batchnorm", "conv", "linear", "embedding", "dropout")
_CHAIN: Final = re.compile(r"mlp|ffn|feed_?forward|expert|perceptron|projector", re.IGNORECASE)
_ACTIVATION: Final = re.compile(r"activation$|gelu|relu|silu|swish|mish|tanh|sigmoid", re.IGNORECASE)
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
    return name if name in KNOWN else next((base for base in _BASES if name.endswith(base)), name)


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


def is_activation(kind: str) -> bool:
    """Whether a class is called as a function of every value, which begins and ends with plain arithmetic.

    Example:
        >>> is_activation("NewGELUActivation"), is_activation("GATConv")
        (True, False)
    """
    return _ACTIVATION.search(kind) is not None


def is_norm(kind: str) -> bool:
    """Whether a class normalizes; residual sums stand in modules that have such children."""
    return class_of(kind).endswith("norm")


def is_chain(kind: str) -> bool:
    """Whether a class is called as what runs its children and does nothing before and behind them.

    Example:
        >>> is_chain("LlamaMLP"), is_chain("Expert"), is_chain("GATConv")
        (True, True, False)
    """
    return _CHAIN.search(kind) is not None


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
