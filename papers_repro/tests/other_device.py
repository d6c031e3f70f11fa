"""A GPU that is not there: on any machine, tensors that would not meet on one are an error.

Inside `other_device(model)` the model's tensors are marked, and stay so. What is made of a marked
tensor, with `device="cuda"` or by `.to("cuda")` is marked; `.cpu()` takes the mark off. Everything
lies in the memory of the CPU, and is computed there; but an operation on a marked and an unmarked
tensor is refused, and so is `.numpy()` of a marked one.

It sees less than a GPU does: nothing of what happens in a backward pass (gradients come from the
engine, unmarked), no generators, and of single numbers, which a GPU takes from the CPU in most
operations, only those that are changed in place.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("cuda", 0)
_ANSWERS = {
    Tensor.device.__get__: DEVICE,
    Tensor.is_cuda.__get__: True,
    Tensor.is_cpu.__get__: False,
}
_INDEXED = (Tensor.__getitem__, Tensor.__setitem__, Tensor.index_put, Tensor.index_put_)
_MOVES = (Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.copy_, Tensor.type_as)
_TAKES_ANY = ("_has_compatible_shallow_copy_type", "backward")  # of modules, of the engine


class OnDevice(Tensor):
    "A tensor that says that it lies on the device."

    def __deepcopy__(self, memo):
        copied = self.detach().clone()
        if isinstance(self, nn.Parameter):
            copied = nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __format__(self, spec):
        return format(self.as_subclass(Tensor), spec)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _checked(func, args, kwargs)


class _Watch(TorchFunctionMode):
    "Also looks at calls without a marked tensor: a new one may be asked for on the device."

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return _checked(func, args, kwargs)


def _marked(x: Any) -> Any:
    plain = isinstance(x, Tensor) and not isinstance(x, OnDevice)
    return x.as_subclass(OnDevice) if plain else x


def _unmarked(x: Any) -> Any:
    return x.as_subclass(Tensor) if isinstance(x, OnDevice) else x


def _is_device(x: Any) -> bool:
    return isinstance(x, (str, torch.device)) and torch.device(x).type == DEVICE.type


def _wanted(func, args: tuple, kwargs: dict) -> Any:
    "The device that a call names: a string, a device or a tensor; None where it names none."
    if func is Tensor.cpu:
        return "cpu"
    if func is Tensor.cuda:
        return DEVICE
    takes_place = func in (Tensor.to, Tensor.type_as) and len(args) > 1
    named = args[1] if takes_place else kwargs.get("device")
    if isinstance(named, Tensor):
        return DEVICE if isinstance(named, OnDevice) else "cpu"
    return named if isinstance(named, (str, torch.device)) else None


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def _refuse(func, args: tuple, kwargs: dict) -> None:
    "Raise RuntimeError where tensors do not meet."
    inside_the_engine = torch._C._current_graph_task_id() != -1
    if inside_the_engine or func in _MOVES or func.__name__ in _TAKES_ANY:
        return
    if func in _INDEXED and isinstance(args[0], OnDevice):  # indices may lie anywhere
        args, kwargs = (args[0], *args[2:]), {}
    tensors = _tensors((args, kwargs))
    in_place = func.__name__.endswith("_") and not isinstance(args[0], OnDevice)
    if any(not isinstance(x, OnDevice) and (x.dim() or in_place) for x in tensors):
        raise RuntimeError(f"{func.__name__}: tensors on the device meet tensors on the CPU")


def _checked(func, args: tuple, kwargs: dict | None) -> Any:
    "The call's result, marked where it belongs on the device."
    kwargs = dict(kwargs or {})
    any_marked = any(isinstance(x, OnDevice) for x in _tensors((args, kwargs)))
    with torch._C.DisableTorchFunctionSubclass():
        if any_marked:
            for getter, answer in _ANSWERS.items():
                if func == getter:
                    return answer
            if func == Tensor.data.__set__:  # a parameter takes whatever it is given
                return func(*args)
            if func.__name__ in ("numpy", "__array__"):
                raise TypeError("a tensor on the device has no numpy array")
            _refuse(func, args, kwargs)
        wanted = _wanted(func, args, kwargs)
        if func is Tensor.cuda:
            return _marked(args[0])
        if _is_device(wanted):
            args = tuple(torch.device("cpu") if _is_device(x) else x for x in args)
            kwargs |= {"device": torch.device("cpu")} if "device" in kwargs else {}
        found = func(*args, **kwargs)
        if func is Tensor.copy_:
            return args[0]
        if _is_device(wanted) or (any_marked and wanted is None):
            return tree_map(_marked, found)
        return found if wanted is None else tree_map(_unmarked, found)


@contextmanager
def other_device(
    *modules: nn.Module,  # that lie on the device
) -> Iterator[torch.device]:
    "Inside, the modules are on the device, and whatever accelerate trains is taken there."
    for part in (part for module in modules for part in module.modules()):
        for name, p in part._parameters.items():
            if p is not None:
                part._parameters[name] = nn.Parameter(_marked(p.detach()), p.requires_grad)
        for name, b in part._buffers.items():
            part._buffers[name] = _marked(b)
    replaced = torch.__future__.get_overwrite_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accelerator, "device", property(lambda self: DEVICE))
        patch.setattr(torch.cuda, "get_rng_state", lambda device=None: torch.get_rng_state())
        patch.setattr(torch.cuda, "set_rng_state", lambda state, device=None: None)
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # a mark is a class
        try:
            with _Watch():
                yield DEVICE
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(replaced)
