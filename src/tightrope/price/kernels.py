"""From the name of a target to the kernel behind it.

Names of torch's own ops and of ops that a library registers look like ``aten.mm.default``; they are
looked up in torch's registry and nowhere else, so a file can name an op and no other code. Kernels of
this package are entered in a table by the modules that define them.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from tightrope.core import Argument, Items, Name, TightropeError, View, printable
from tightrope.native.kernels.batch_norm import batch_norm_backward
from tightrope.price.device import CPU, in_state, saved_state

Kernel = Callable[..., Any]

_OWN: Final[dict[str, Kernel]] = {}
_SCRATCH: Final[dict[str, frozenset[int]]] = {}
_MOST_COPIED: Final = 524_288
"""Numbers of a matrix that are copied at a time."""
_REFUSED: Final = frozenset({"aten.from_file", "aten._load_from_bytes", "aten._print", "aten.save"})
"""Ops that reach beyond their tensors."""
_NAMESPACES: Final = ("aten", "prims")
_OVERLOAD: Final[Any] = type(torch.ops.aten.mm.default)
"""What a name may lead to: attributes of another type, such as methods, are not kernels."""


def register(name: str, *, scratch: tuple[int, ...] = ()) -> Callable[[Kernel], Kernel]:
    """Enter a kernel of this package; a decorator.

    Args:
        name: of the target.
        scratch: positions of results that it does not fill: equal runs may leave other bits there.
    """

    def enter(kernel: Kernel) -> Kernel:
        _OWN[name] = kernel
        _SCRATCH[name] = frozenset(scratch)
        return kernel

    return enter


def scratch(target: str) -> frozenset[int]:
    """List the positions of results that a kernel does not fill.

    >>> scratch("tightrope.lstm_layer"), scratch("aten.mm.default")
    (frozenset({3}), frozenset())
    """
    return _SCRATCH.get(target, frozenset())


def resolve(target: str, *, allow: tuple[str, ...] | None = None) -> Kernel:
    """Find the kernel behind a target.

    Args:
        target: name of the op and its overload.
        allow: namespaces besides torch's own whose ops may be called; None = any.

    Raises:
        TightropeError: there is no such op here, or it may not be called.

    Example:
        >>> resolve("aten.mm.default")
        <OpOverload(op='aten.mm', overload='default')>
    """
    if target in _OWN:
        return _OWN[target]
    parts = target.split(".")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts):
        raise TightropeError(f"{printable(target)[:80]!r} is no op that can be called.")
    namespace, name, overload = parts
    if f"{namespace}.{name}" in _REFUSED:
        raise TightropeError(f"{target} reaches beyond its tensors: it is not called from a plan.")
    if allow is not None and namespace not in (*_NAMESPACES, *allow):
        raise TightropeError(
            f"{target} is of the library {namespace!r}: import that library and allow its namespace."
        )
    return _look_up(namespace, name, overload)


@functools.cache
def _look_up(namespace: str, name: str, overload: str) -> Kernel:
    try:
        found: Any = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (AttributeError, RuntimeError) as error:
        raise TightropeError(
            f"torch {torch.__version__} has no op {namespace}.{name}.{overload}: import the library that "
            "defines it, or capture again with this torch."
        ) from error
    if not isinstance(found, _OVERLOAD):
        raise TightropeError(f"{namespace}.{name}.{overload} is no overload of an op: it cannot be called.")
    kernel: Kernel = found
    return kernel


def constant(value: Name, *, allow: tuple[str, ...] | None = None) -> Any:
    """Find what a name stands for.

    Raises:
        TightropeError: nothing.

    Example:
        >>> constant(Name("dtype", "float32")), constant(Name("number", "-inf"))
        (torch.float32, -inf)
    >>> constant(Name("number", "9223372036854775807")) == 2**63 - 1
    True
    """
    match value.kind:
        case "dtype" | "layout" | "memory_format":
            found = getattr(torch, value.text, None)
            wanted = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
            if isinstance(found, wanted[value.kind]):
                return found
        case "device":
            try:
                return torch.device(value.text)
            except RuntimeError:
                pass
        case "op":
            return resolve(value.text, allow=allow)
        case "number":
            try:
                if value.text.lstrip("-").isdecimal():
                    return int(value.text)
                return complex(value.text) if "j" in value.text else float(value.text)
            except ValueError:
                pass
    raise TightropeError(f"{printable(value.text)[:80]!r} is no {value.kind}.")


def dtype_of(name: str) -> torch.dtype:
    """Find a dtype by its name.

    >>> dtype_of("int8")
    torch.int8
    """
    found = constant(Name("dtype", name))
    assert isinstance(found, torch.dtype)
    return found


def value_of(argument: Argument, tensor: Callable[[View], torch.Tensor]) -> Any:
    """Turn an argument into what a kernel takes; ``tensor`` makes the tensors."""
    if isinstance(argument, View):
        return tensor(argument)
    if isinstance(argument, Items):
        return [value_of(item, tensor) for item in argument.items]
    return constant(argument) if isinstance(argument, Name) else argument


def tensor_in(storage: torch.UntypedStorage, view: View) -> torch.Tensor:
    """Make the tensor that looks into a storage as ``view`` says.

    Example:
        >>> tensor_in(torch.arange(6).untyped_storage(), View(0, "int64", (2,), (2,), 1))
        tensor([1, 3])
    """
    made = torch.empty(0, dtype=dtype_of(view.dtype), device=storage.device)
    made = made.set_(storage, view.offset, view.shape, view.strides)
    return with_bits(made, view.bits)


def with_bits(tensor: torch.Tensor, bits: str) -> torch.Tensor:
    """Let a tensor carry the lazy conjugation or negation of a view."""
    if "conj" in bits:
        tensor = tensor.conj()
    return torch.ops.aten._neg_view.default(tensor) if "neg" in bits else tensor


def bits_of(tensor: torch.Tensor) -> str:
    """Name the lazy conjugation or negation that a tensor carries.

    >>> bits_of(torch.ones(2, dtype=torch.complex64).conj())
    'conj'
    """
    return " ".join(name for name, on in (("conj", tensor.is_conj()), ("neg", tensor.is_neg())) if on)


@register("tightrope.save_state")
def save_state(device: torch.device = CPU) -> torch.Tensor:
    """Save the state of the generator of a device."""
    return saved_state(device)


@register("tightrope.run_with_state")
def run_with_state(state: torch.Tensor, kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel with the generator as it was, then put the present state back."""
    with in_state(state):
        return kernel(*args, **kwargs)


@register("tightrope.dropout")
def dropout(given: torch.Tensor, p: float, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Drop elements by the ops that eager calls on a CPU; keep their noise as a mask of one byte each."""
    assert train
    noise = torch.empty_like(given).bernoulli_(1 - p)
    mask = noise.to(torch.bool)
    return _times(given, noise.div_(1 - p)), mask


@register("tightrope.dropout_again")
def dropout_again(given: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Multiply by the noise of an earlier dropout."""
    return _times(given, mask.to(given.dtype).mul_(scale))


def dropout_scale(dtype: torch.dtype, p: float) -> float:
    """The noise where a dropout keeps an element, as eager rounds it.

    >>> dropout_scale(torch.bfloat16, 0.1)
    1.109375
    """
    return float(torch.ones((), dtype=dtype).div_(1 - p))


def _times(given: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Multiply, in the memory of the noise where the product would look like it."""
    return noise.mul_(given) if given.stride() == noise.stride() else given * noise


@register("tightrope.norm_backward")
def norm_backward(
    gradient: torch.Tensor,
    given: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    mean: torch.Tensor | None,
    deviation: torch.Tensor | None,
    train: bool,
    eps: float,
    wanted: list[bool],
    *,
    over: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Call the kernel of torch's backward of batch norm without the tensor that its op makes and drops.

    It takes what torch's op takes. The gradient of the input may be written over ``gradient`` or ``given``:
    ``over`` says which; None = to a new tensor.
    """
    values = [value for value in (gradient, given, weight, mean, deviation) if value is not None]
    plain = all(value.is_contiguous() and value.dtype == given.dtype for value in values)
    plain = plain and mean is not None and deviation is not None and gradient.shape == given.shape
    if not (
        plain and train and given.dtype in (torch.float32, torch.float64) and given.numel() and wanted[0]
    ):
        statistics = (running_mean, running_var, mean, deviation)
        found: tuple[torch.Tensor | None, ...] = torch.ops.aten.native_batch_norm_backward.default(
            gradient, given, weight, *statistics, train, eps, wanted
        )
        return found if over is None or found[0] is None else (over.copy_(found[0]), *found[1:])
    made = (
        torch.empty_like(given) if over is None else over,
        given.new_empty(given.shape[1]) if wanted[1] else None,
        given.new_empty(given.shape[1]) if wanted[2] else None,
    )
    inputs = (gradient, given, weight, mean, deviation)
    batch_norm_backward(
        given.shape,
        [None if value is None else value.data_ptr() for value in inputs],
        [None if value is None else value.data_ptr() for value in made],
        eps=eps,
        wide=given.dtype == torch.float64,
    )
    return made


@register("tightrope.norm_backward.over")
def norm_backward_over(*args: Any, over: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Call `norm_backward` so that the gradient of the input is written over the gradient or the input."""
    found: tuple[torch.Tensor | None, ...] = norm_backward(*args, over=over)
    return found


@register("tightrope.lstm_layer", scratch=(3,))
def lstm_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    """Run one layer of an LSTM in grad mode: only there it makes the workspace of its backward."""
    given = [value.detach() if isinstance(value, torch.Tensor) else value for value in args]
    with torch.enable_grad():
        found: tuple[torch.Tensor, ...] = torch.ops.aten.mkldnn_rnn_layer.default(*given)
    return found


@register("tightrope.own_gradient")
def own_gradient(gradient: torch.Tensor, stride: list[int]) -> torch.Tensor:
    """Copy a gradient into memory of its own, laid out like its parameter, as autograd would."""
    return gradient.new_empty_strided(gradient.shape, stride).copy_(gradient)


@functools.cache
def onednn_missing() -> str:
    """Say why oneDNN cannot compute products of float32 matrices here; empty where it can."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch is built without oneDNN"
    try:
        one = torch.eye(2)
        found = onednn_addmm(one[0], one, one)
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"torch {torch.__version__} has no linear layers of oneDNN that can be called ({error})"
    return "" if torch.equal(found, one + one[0]) else "oneDNN's linear layer computes something else here"


@register("tightrope.onednn_mm")
def onednn_mm(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Multiply two matrices of float32 by oneDNN, whichever library torch would call.

    The kernel copies a first matrix that lies by columns: of a large one some rows at a time.
    """
    linear = torch.ops.mkldnn._linear_pointwise.default
    rows = max(1, _MOST_COPIED // one.shape[1])
    if one.is_contiguous() or rows >= one.shape[0]:
        found: torch.Tensor = linear(one, other.t(), None, "none", [], "")
        return found
    found = one.new_empty(one.shape[0], other.shape[1])
    for first in range(0, one.shape[0], rows):
        found[first : first + rows] = linear(one[first : first + rows], other.t(), None, "none", [], "")
    return found


@register("tightrope.onednn_addmm")
def onednn_addmm(bias: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Multiply two matrices of float32 and add a row to every row, by oneDNN."""
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(one, other.t(), bias, "none", [], "")
    return found
