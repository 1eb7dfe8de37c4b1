"""The text of compiled loops, as torch writes it: one extension module of many kernels, and files of it."""

from collections.abc import Sequence
from typing import Final

import msgspec

_BINDING_HEAD: Final = """
#include <torch/csrc/inductor/cpp_prefix.h>
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cstdlib>
#include <stdexcept>
#include <type_traits>

static void* (*data_of)(PyObject*);

template <typename T> static T parsed(PyObject* args, Py_ssize_t n) {
  PyObject* item = PyTuple_GET_ITEM(args, n);
  if constexpr (std::is_pointer_v<T>) return static_cast<T>(data_of(item));
  else if constexpr (std::is_floating_point_v<T>) return static_cast<T>(PyFloat_AsDouble(item));
  else return static_cast<T>(PyLong_AsSsize_t(item));
}
"""
_BINDING: Final = """
static PyObject* %(name)s_py(PyObject*, PyObject* args) {
  try {
    if (PyTuple_GET_SIZE(args) != %(num)d) throw std::runtime_error("wrong number of arguments");
    %(name)s(%(given)s);
    Py_RETURN_NONE;
  } catch (std::exception const& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}
"""
_BINDING_TAIL: Final = """
static PyMethodDef methods[] = {%(methods)s{nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernel", nullptr, -1, methods};

PyMODINIT_FUNC PyInit_kernel() {
  const char* address = std::getenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR");
  if (!address) {
    PyErr_SetString(PyExc_RuntimeError, "torch did not say where the data of tensors are");
    return nullptr;
  }
  data_of = reinterpret_cast<decltype(data_of)>(std::strtoull(address, nullptr, 10));
  return PyModule_Create(&definition);
}
"""


class LoopKernel(msgspec.Struct, frozen=True):
    """A C++ function, and where it was built: a library below torch's folder, its key, its name there."""

    arguments: tuple[str, ...]
    source: str
    library: tuple[str, str, str] | None = None


class LoopText(msgspec.Struct, frozen=True):
    """What torch's compiler writes: a Python module and the kernels that it calls."""

    python: str
    kernels: tuple[LoopKernel, ...]


def library_text(kernels: Sequence[LoopKernel], names: Sequence[str]) -> str:
    """Write a Python extension module of kernels, each of which torch calls ``kernel``."""
    parts = [_BINDING_HEAD]
    for kernel, name in zip(kernels, names, strict=True):
        given = (
            f"parsed<{kind.replace('const ', '')}>(args, {k})" for k, kind in enumerate(kernel.arguments)
        )
        parts += [f"#define kernel {name}", kernel.source, "#undef kernel"]
        parts.append(_BINDING % {"name": name, "num": len(kernel.arguments), "given": ", ".join(given)})
    methods = "".join(f'{{"{name}", {name}_py, METH_VARARGS, ""}}, ' for name in names)
    return "\n".join([*parts, _BINDING_TAIL % {"methods": methods}])
