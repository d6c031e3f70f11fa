"""Every paper trains, and is measured, with its model on another device than its data."""

from dataclasses import replace

import pytest
import torch
from other_device import OnDevice, other_device

from hypvl.models.registry import load_model
from hypvl.papers.paper import find_paper
from hypvl.papers.runs import find_probe, train

# of each paper: the places among the main recipes whose code differs
RECIPES = {
    "phyclip": (0, 3),
    "syntax": (1,),
    "visual_hierarchies": (2,),
    "h2em": (2, 7),
    "agr": (0,),
    "compare": (7,),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize(
    ("paper", "place"), [(paper, place) for paper, places in RECIPES.items() for place in places]
)
def test_no_tensors_meet_across_devices(paper, place, data, tmp_path):
    made = find_paper(paper).recipes("main", preset="smoke", seed=0)[place]
    made = replace(made, train=replace(made.train, steps=4, checkpoint_every=2, warmup=1))
    size, tests = made.image_size, made.tests or {}
    known, test = (s.prepare(data, size, 1, False) for s in (made.data, made.test or made.data))
    with other_device():
        history = train(made, known, tmp_path, None, progress=False)
    assert history["step"].iloc[-1] == 4 and history["loss"].notna().all()
    model = load_model(tmp_path / "model")
    with other_device(model):
        for name in made.probes:
            own = tests[name].prepare(data, size, 1, False) if name in tests else test
            assert find_probe(name)(model, own, made.seen_by(name), tmp_path, False)


def test_another_device_refuses_what_a_gpu_refuses():
    here = torch.ones(2)
    with other_device() as device:
        there = torch.ones(2, device=device)
        assert there.device == device and (there + 1).is_cuda and not there.cpu().is_cuda
        assert there[torch.tensor([0])].is_cuda and isinstance(here.to(there), OnDevice)
        assert (there * torch.tensor(2.0)).is_cuda  # a number may lie anywhere
        with pytest.raises(RuntimeError, match="add: tensors on the device meet tensors on the CP"):
            torch.add(there, here)
        with pytest.raises(TypeError, match="no numpy array"):
            there.numpy()
    layer = torch.nn.Linear(2, 1)
    with other_device(layer) as device:
        with pytest.raises(RuntimeError, match="linear: tensors on the device meet"):
            layer(here)
        loss = layer(here.to(device)).sum()
        loss.backward()
        assert layer.weight.grad.is_cuda and not layer.cpu().weight.is_cuda
