"""Models of every paper train, and are measured, on another device than their data."""

from dataclasses import replace

import pytest
import torch
from other_device import OnDevice, other_device

from hypvl.models.registry import load_model
from hypvl.papers.runs import find_probe, train
from hypvl.papers.study import find_paper

# one for each kind of space, of towers and of data
MODELS = [
    ("phyclip", "CLIP + boxes"),
    ("phyclip", "PHyCLIP"),
    ("syntax", "MERU + syntax"),
    ("visual_hierarchies", "CLIP-hyp"),
    ("h2em", "Troika"),
    ("h2em", "H2EM"),
    ("agr", "AGR"),
    ("ideas", "sphere × product"),
]


@pytest.mark.parametrize(("paper", "name"), MODELS)
def test_no_tensors_meet_across_devices(paper, name, smoke_data, tmp_path):
    recipes = find_paper(paper).recipes("main", preset="smoke", seed=0)
    made = next(made for made in recipes if made.name == name)
    made = replace(made, train=replace(made.train, steps=4, checkpoint_every=2, warmup=1))
    data, size, tests = smoke_data, made.image_size, made.tests or {}
    known, test = (s.prepare(data, size, 1, False) for s in (made.data, made.test or made.data))
    with other_device():
        history = train(made, known, tmp_path, "cpu", progress=False)
    assert history["step"].iloc[-1] == 4 and history["loss"].notna().all()
    model = load_model(tmp_path / "model")
    with other_device(model):
        for probe in made.probes:
            own = tests[probe].prepare(data, size, 1, False) if probe in tests else test
            frames = find_probe(probe)(model, own, made.seen_by(probe), tmp_path, False)
            assert all(len(frame) for frame in frames.values())


def test_another_device_refuses_what_a_gpu_refuses():
    here, number = torch.ones(2), torch.tensor(2.0)
    with other_device() as device:
        there = torch.ones(2, device=device)
        assert there.device == device and (there + 1).is_cuda and not there.cpu().is_cuda
        assert here.to(there).is_cuda and here.type_as(there).is_cuda and here.cuda(0).is_cuda
        assert there[torch.tensor([0])].is_cuda and (there * number).is_cuda
        for wrong in (
            lambda: there + here,
            lambda: torch.cat([there, here]),
            lambda: there.index_put_((torch.tensor([0]),), torch.ones(1)),
            lambda: number.add_(there.sum()),
        ):
            with pytest.raises(RuntimeError, match="tensors on the device meet tensors on the CPU"):
                wrong()
        with pytest.raises(TypeError, match="no numpy array"):
            there.numpy()
    layer = torch.nn.Linear(2, 1)
    with other_device(layer) as device:
        with pytest.raises(RuntimeError, match="linear: tensors on the device meet"):
            layer(here)
        loss = layer(here.to(device)).sum()
        loss.backward()
        assert isinstance(layer.weight.grad, OnDevice)
        assert not layer.cpu().weight.is_cuda and layer.cuda().weight.is_cuda
