"`hypvl export`: encoders that run in torch.export and onnxruntime, for batches of any size."

import json
import os
from importlib.util import find_spec

import pytest
import torch

from hypvl.cli import main
from hypvl.models import create_model

LIBRARIES = ("onnx", "onnxscript", "onnxruntime")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    "A small model of the MERU line, and its folder."
    small = {"text.layers": 1, "text.width": 32, "text.heads": 2}
    model = create_model("meru_tiny_s", seed=0, **small).eval()
    folder = tmp_path_factory.mktemp("model") / "meru"
    model.save_pretrained(folder)
    return model, folder


def batches(model, count):
    "Inputs of both programs, and the points that the model gives for them."
    images = torch.rand(count, 3, 48, 48, generator=torch.Generator().manual_seed(count))
    ids = model.tokenizer(["a dog", "a red dog", "the sea"][:count])
    width = model.text_tower.config.context_length
    full = torch.nn.functional.pad(ids, (0, width - ids.shape[1]))
    with torch.no_grad():
        points = model.encode_image(images, True), model.encode_text(ids, True)
    return {"image_encoder": (images, points[0]), "text_encoder": (full, points[1])}


def of_torch(path):
    "A program of torch.export as a function."
    return torch.export.load(path).module()


def of_onnx(path):
    "An ONNX file as a function."
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    name = session.get_inputs()[0].name
    return lambda batch: torch.as_tensor(session.run(None, {name: batch.numpy()})[0])


@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_programs_give_the_points_of_the_model(saved, form, tmp_path, capsys):
    if form == "onnx" and os.environ.get("HYPVL_ONNX") != "1":
        for library in LIBRARIES:
            pytest.importorskip(library)
    model, folder = saved
    assert main(["export", str(folder), f"--{form}", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    read, suffix = {"torch": (of_torch, "pt2"), "onnx": (of_onnx, "onnx")}[form]
    programs = {}
    for name in ("image_encoder", "text_encoder"):
        path = tmp_path / f"{name}.{suffix}"
        assert f"written: {path}" in output
        programs[name] = read(path)
    for count in (1, 3):
        for name, (batch, points) in batches(model, count).items():
            torch.testing.assert_close(programs[name](batch), points, rtol=0, atol=1e-5)
    described = json.loads((tmp_path / "export.json").read_text())
    assert described["images"] == ["batch", 3, 48, 48] and described["points"] == ["batch", 64]
    assert described["curvature"] == pytest.approx(model.geometry.curvature.tolist())


def test_wrong_calls_say_what_to_do(saved, tmp_path, monkeypatch, capsys):
    front, out = ["export", str(saved[1])], str(tmp_path / "out")
    for call, error in (
        (
            ["export", str(tmp_path / "none"), "--torch", out],
            "none' is no folder, no file, none of",
        ),
        (["export", "meru_vit_b", "--torch", out], "Published are meru_vit_b/redcaps, meru_vit_b/"),
        (["export", str(tmp_path), "--torch", out], "has no config.json"),
        (front, "one of the arguments --torch --onnx is required"),
        ([*front, "--torch", out, "--onnx", out], "not allowed with argument"),
    ):
        try:
            assert main(call) == 2
        except SystemExit as stop:
            assert stop.code == 2
        assert error in capsys.readouterr().err
    absent = {"onnx", "onnxscript"}
    monkeypatch.setattr(
        "hypvl.models.export.find_spec", lambda name: None if name in absent else find_spec(name)
    )
    assert main([*front, "--onnx", out]) == 2
    output = capsys.readouterr().err
    assert "needs onnx and onnxscript" in output and "form='torch' needs nothing more" in output
    assert not (tmp_path / "out").exists()
