"""Addresses of torch functions that read a tensor in nanoseconds, for C code built without headers.

In: nothing. Out: `torch_functions()`, addresses in the order of `NAMES`, and the offset of the C++ tensor in a
Python tensor; `None` if this build of torch lacks a function or returns an unexpected result.

Most belong to torch's C interface, with names and arguments kept stable for compiled models; a handle is
the address of an `at::Tensor`, itself one pointer. The others are C++ functions, with the argument types in the
mangled names. All are checked on example tensors before the first use.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from sparsify.runtime import threads

_CPU, _C10, _PYTHON = "libtorch_cpu", "libc10", "libtorch_python"
NAMES: Final = (
    (_CPU, "aoti_torch_get_data_ptr"),
    (_CPU, "aoti_torch_get_dim"),
    (_CPU, "aoti_torch_get_sizes"),
    (_CPU, "aoti_torch_get_strides"),
    (_CPU, "aoti_torch_get_dtype"),
    (_CPU, "aoti_torch_get_device_type"),
    (_CPU, "aoti_torch_get_numel"),
    (_CPU, "aoti_torch_is_contiguous"),
    (_CPU, "aoti_torch_get_storage_size"),
    (_CPU, "aoti_torch_get_storage_offset"),
    (_CPU, "aoti_torch_empty_strided"),
    (_CPU, "aoti_torch_delete_tensor_object"),
    (_CPU, "aoti_torch_grad_mode_is_enabled"),
    (_CPU, "_ZN2at15get_num_threadsEv"),
    (_CPU, "_ZN2at6native6is_negERKNS_6TensorE"),
    (_CPU, "_ZN2at6native7is_conjERKNS_6TensorE"),
    (_CPU, "_ZNK2at10TensorBase8_versionEv"),
    (_C10, "_ZNK3c1010TensorImpl11has_storageEv"),
    (_C10, "_ZNK3c1010TensorImpl13requires_gradEv"),
    (_C10, "_ZN3c104impl21dispatch_mode_enabledEv"),
    (_PYTHON, "_Z16THPVariable_WrapRKN2at10TensorBaseE"),
)


@cache
def torch_functions() -> tuple[int, ...] | None:
    """The addresses of `NAMES`, then the address of the flag `threads.forked`, then the offset of the C++ tensor."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        libraries = {name: _library(name) for name, _ in NAMES}
        functions = {name: getattr(libraries[library], name) for library, name in NAMES}
        # The first call may be traced, or in inference mode: examples are plain tensors even then.
        with torch.inference_mode(False), _disable_current_modes(), torch._C.DisableTorchFunction():
            offset = _offset()
            if offset is None or not _are_as_expected(functions, offset):
                return None
    except (OSError, AttributeError):
        return None
    return (
        *[_address(function) for function in functions.values()],
        ctypes.addressof(threads.forked),
        offset,
    )


@cache
def dtype_number(dtype: torch.dtype) -> int:
    """The number of a dtype in torch's C interface."""
    name = str(dtype).removeprefix("torch.")
    return int(getattr(_library(_CPU), f"aoti_torch_dtype_{name}")())


@cache
def _library(name: str) -> Any:
    folder = Path(torch.__file__).parent / "lib"
    ending = "dylib" if sys.platform == "darwin" else "so"
    # Only a library already loaded by torch.
    return ctypes.CDLL(str(folder / f"{name}.{ending}"), mode=os.RTLD_NOLOAD)


def _examples() -> Iterator[torch.Tensor]:
    """Tensors of several kinds."""
    yield torch.zeros(2, 3)
    yield torch.zeros(4, 5, dtype=torch.float64).t()
    yield torch.nn.Parameter(torch.zeros(()))
    yield torch.zeros(7, dtype=torch.int32)[2:].add_(1)
    yield torch.zeros(2, 0, 5, dtype=torch.int64)
    yield torch._neg_view(torch.zeros(3, 1))
    yield torch.zeros(3, dtype=torch.complex64).conj()


def _offset() -> int | None:
    """Offset of the `at::Tensor` pointer in a Python tensor."""
    examples = list(_examples())
    step = ctypes.sizeof(ctypes.c_void_p)
    for offset in range(0, torch.Tensor.__basicsize__, step):
        words = [ctypes.c_void_p.from_address(id(example) + offset).value for example in examples]
        if words == [example._cdata for example in examples]:
            return offset
    return None


def _are_as_expected(functions: dict[str, Any], offset: int) -> bool:
    """Whether the functions return the same properties of tensors as Python."""
    for example in _examples():
        handle = ctypes.c_void_p(id(example) + offset)
        implementation = ctypes.c_void_p(example._cdata)
        sizes = _property(functions["aoti_torch_get_sizes"], handle, ctypes.POINTER(ctypes.c_int64))
        strides = _property(functions["aoti_torch_get_strides"], handle, ctypes.POINTER(ctypes.c_int64))
        properties = (
            _property(functions["aoti_torch_get_data_ptr"], handle, ctypes.c_void_p) or 0,
            _property(functions["aoti_torch_get_dim"], handle, ctypes.c_int64),
            tuple(sizes[: example.dim()]),
            tuple(strides[: example.dim()]),
            _property(functions["aoti_torch_get_dtype"], handle, ctypes.c_int32),
            _property(functions["aoti_torch_get_device_type"], handle, ctypes.c_int32),
            _property(functions["aoti_torch_get_numel"], handle, ctypes.c_int64),
            _property(functions["aoti_torch_is_contiguous"], handle, ctypes.c_bool),
            _property(functions["aoti_torch_get_storage_size"], handle, ctypes.c_int64),
            _property(functions["aoti_torch_get_storage_offset"], handle, ctypes.c_int64),
            _called(functions["_ZN2at6native6is_negERKNS_6TensorE"], handle, ctypes.c_bool),
            _called(functions["_ZN2at6native7is_conjERKNS_6TensorE"], handle, ctypes.c_bool),
            _called(functions["_ZNK2at10TensorBase8_versionEv"], handle, ctypes.c_int64),
            _called(functions["_ZNK3c1010TensorImpl11has_storageEv"], implementation, ctypes.c_bool),
            _called(functions["_ZNK3c1010TensorImpl13requires_gradEv"], implementation, ctypes.c_bool),
        )
        expected = (
            example.data_ptr(),
            example.dim(),
            tuple(example.shape),
            example.stride(),
            dtype_number(example.dtype),
            int(_library(_CPU).aoti_torch_device_type_cpu()),
            example.numel(),
            example.is_contiguous(),
            example.untyped_storage().nbytes(),
            example.storage_offset(),
            example.is_neg(),
            example.is_conj(),
            example._version,
            True,
            example.requires_grad,
        )
        if properties != expected:
            return False
        if _WRAP(_address(functions["_Z16THPVariable_WrapRKN2at10TensorBaseE"]))(handle) is not example:
            return False
    enabled = functions["aoti_torch_grad_mode_is_enabled"]
    enabled.restype = ctypes.c_bool
    return bool(enabled()) == torch.is_grad_enabled()


_WRAP: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None, "a function has an address"
    return address


def _property(function: Any, handle: ctypes.c_void_p, kind: Any) -> Any:
    """The output argument of a function of the C interface; `None` on failure."""
    result = kind()
    if function(handle, ctypes.byref(result)):
        return None
    return result if hasattr(result, "contents") else result.value


def _called(function: Any, argument: ctypes.c_void_p, kind: Any) -> Any:
    """The result of a function."""
    function.restype = kind
    return function(argument)
