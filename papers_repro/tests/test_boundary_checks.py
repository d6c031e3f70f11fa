"Errors and edge cases of geometries, the dual encoder and objectives, beyond what readers need."

import inspect
import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fastcore.test import test_close as assert_close
from fastcore.test import test_eq as assert_eq
from PIL import Image
from torch import nn

from hypvl.config import UnknownKey, config_hash, from_dict, override, to_dict
from hypvl.geometry.spaces import (
    EuclideanConfig,
    Geometry,
    GeometryConfig,
    Product,
    ProductConfig,
    Sphere,
    SphereConfig,
)
from hypvl.losses.contrast import Contrast
from hypvl.losses.entailment import Entail
from hypvl.losses.label_contrast import LabelContrast
from hypvl.losses.objective import (
    VARIANTS,
    FamilyObjective,
    Objective,
    ObjectiveConfig,
    Schedule,
    TermsObjective,
)
from hypvl.models.dual_encoder import DualEncoder, eval_transform
from hypvl.models.text import make_text_tower
from hypvl.models.towers import make_vision_tower


def refused(message, call, *args, error=ValueError, **kwargs):
    with pytest.raises(error, match=message):
        call(*args, **kwargs)


# geometries


def test_what_every_geometry_has():
    base = Geometry(8)
    assert_close(base.logit_scale.item(), 2.65926, eps=1e-5)
    assert_eq((base.heads, base.feature_dim, base.factors), ({"point": 8}, 8, 1))
    assert_eq(base.split(torch.zeros(3, 8)).shape, [3, 1, 8])
    assert_eq(base.make_head("point", 5, "image")(torch.zeros(2, 5)).shape, [2, 8])
    nn.init.constant_(base.logit_scale, 7.0)
    base.clamp_parameters()
    assert_close(base.logit_scale.exp().item(), 100, eps=1e-3)
    missing = ["lift", "score", "dist", "norm", "angles", "search_vectors", "entail"]
    assert_eq(base.lacks(), missing)
    base.part, base.measure, base._seen = nn.GELU(), torch.dist, 3
    assert_eq(
        base.settings(),
        {"": {"class": "Geometry", "dim": 8}, "part": {"class": "GELU", "approximate": "none"}},
    )


def test_points_of_the_wrong_shape():
    base, zeros = Geometry(8), torch.zeros(3, 8)
    refused("points must have width 8, got 7", base.split, torch.zeros(3, 7))
    message = r"image_points must have width 8, got \[3, 7\]"
    refused(message, base.check_points, torch.zeros(3, 7), "image_points")
    for value in (None, [[0.0] * 8]):
        message = "text_points: Tensor needed, got (None|.*0.0)"
        refused(message, base.check_points, value, "text_points", error=TypeError)
    base.check_rows(torch.zeros(3, 2, 8))
    for shape in ((8,), ()):
        message = r"text_points must be \[N, 8\], got .*; points\[None\] is"
        refused(message, base.check_rows, torch.zeros(shape), "text_points")
    refused("dim must be at least 1, got 0", Geometry, 0)
    message = r"Geometry lacks score\(queries, keys, side\)"
    refused(message, base.logits, zeros, zeros, error=TypeError)
    message = r"Geometry lacks angles\(general, specific\)"
    refused(message, base.angles, zeros, zeros, error=TypeError)


def test_unknown_sides_and_kinds_of_a_sphere():
    sphere = Sphere(6)
    features = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    unit = sphere.lift(features)
    for side in ("images", "key"):
        refused("unknown side '(images|key)'", sphere.lift, features, side)
    message = "unknown kind 'offical'. Did you mean 'official'?"
    refused(re.escape(message), sphere.score, unit, unit, kind="offical")
    refused("unknown side 'text'", sphere.search_vectors, unit, "text")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"metric": "L1"}, "unknown metric 'L1'. Did you mean 'l1'?"),
        ({"scale": "factors"}, "unknown scale 'factors'. Did you mean 'factor'?"),
        ({"mode": "literall"}, "unknown mode 'literall'. Did you mean 'literal'?"),
        ({"form": "tritan"}, "unknown form 'tritan'. Did you mean 'triton'?"),
        ({"curvature_init": 0}, "curvature_init must be > 0, got 0"),
        ({"min_radius": 0.0}, "min_radius must be > 0, got 0.0"),
        ({"min_radius": float("nan")}, "min_radius must be > 0, got nan"),
        (
            {"form": "triton", "mode": "literal"},
            "form='triton' needs mode='stable', got mode='lit",
        ),
    ],
)
def test_settings_of_a_product(settings, message):
    refused(re.escape(message), Product, 2, 2, **settings)


def test_geometries_as_data():
    before = to_dict(ProductConfig())
    assert_eq(before.pop("form"), "auto")  # older stored configs have no such field
    assert_eq(config_hash(from_dict(GeometryConfig, before)), config_hash(ProductConfig()))
    assert config_hash(ProductConfig(form="triton")) != config_hash(ProductConfig())
    message = "form='triton' needs mode='stable', got mode='lit"
    refused(message, ProductConfig(form="triton", mode="literal").make)
    for config, sizes, message in (
        (ProductConfig, {"k": 0}, "k: 1 or more, got 0"),
        (ProductConfig, {"d": -1}, "d: 1 or more, got -1"),
        (SphereConfig, {"dim": 0}, "dim: 1 or more, got 0"),
        (EuclideanConfig, {"dim": 0}, "dim: 1 or more, got 0"),
    ):
        refused(message, config, **sizes)
    message = "unknown kind 'spher' of GeometryConfig. Did you mean 'sphere'"
    refused(message, from_dict, GeometryConfig, {"kind": "spher"})
    message = "unknown key 'k' of SphereConfig"
    refused(message, from_dict, GeometryConfig, {"kind": "sphere", "k": 3}, error=UnknownKey)


# the dual encoder


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        towers = make_vision_tower("conv_tiny"), make_text_tower("text_tiny")
        return DualEncoder(*towers, ProductConfig(k=8, d=8).make()).eval()


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (4, 3, 48, 48), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def tokens(model):
    return model.tokenizer(["a small dog", "a red taxi", "two barns", "an oak and a tulip"])


@pytest.fixture(scope="module")
def points(model, images):
    with torch.no_grad():
        return model.encode_image(images, normalize=True)


@pytest.fixture(scope="module")
def texts(model, tokens):
    with torch.no_grad():
        return model.encode_text(tokens, normalize=True)


@pytest.mark.parametrize(
    "name",
    "encode_image encode_text score classify embed calibrate summary encoders freeze add_adapter"
    "".split(),
)
def test_public_methods_document_their_parameters(name):
    method = getattr(DualEncoder, name)
    assert len(inspect.getdoc(method)) > 150
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        assert parameter.annotation is not inspect.Parameter.empty, parameter
        documented = f"{parameter.name}:", f"{parameter.name},"
        assert any(text in method.__doc__ for text in documented), parameter


def test_pictures_that_cannot_be_prepared():
    for mode in ("crop", "squeeze"):
        empty = Image.new("RGB", (0, 9))
        refused("image: no pixels, got 0 x 9", eval_transform(48, mode), empty)
    refused("mode must be 'crop' or 'squeeze', got 'pad'", eval_transform, 48, "pad")
    message = "image: PIL image needed, got str 'photo.jpg'; PIL.Image.open"
    refused(message, eval_transform(48), "photo.jpg", error=TypeError)
    message = "image: PIL image needed, got ndarray .* PIL.Image.fromarray"
    refused(message, eval_transform(48), np.zeros((48, 48, 3), "u1"), error=TypeError)


def test_wrong_images(model, images):
    floats = images / 255
    with pytest.warns(UserWarning, match="images: pictures of 48 x 40 pixels .* made for 48 x 48"):
        model.encode_image(floats[..., :40])
    message = r"images must be \[B, 3, H, W\], got uint8 \[3, 48, 48\]"
    refused(message, model.encode_image, images[0])
    refused(r"got list; torch.stack\(\[model.preprocess\(picture\)", model.encode_image, [floats])
    message = r"got uint8 \[2, 2, 3, 48, 48\]; join the first two axes"
    refused(message, model.encode_image, images.view(2, 2, 3, 48, 48))
    message = r"got int64 \[4, 3, 48, 48\]; integers in 0…255 become bytes"
    refused(message, model.encode_image, images.long())
    refused(r"images: no pixels, got uint8 \[4, 3, 0, 48\]", model.encode_image, images[:, :, :0])
    model.encode_image(floats * 1.2 - 0.1)  # bicubic resizing may overshoot a little
    no_number = floats.clone()
    no_number[1, 0, :2, 0] = torch.nan
    refused(r"in \[0, 1\], got 2 NaN values", model.encode_image, no_number)


def test_wrong_tokens(model, tokens):
    message = r"tokens must be integer ids \[B, L\], got int64 \[7\]"
    refused(message, model.encode_text, tokens[0])
    refused(r"got float32 \[4, 7\]", model.encode_text, tokens.float())
    refused(r"tokens: no ids, got int64 \[4, 0\]", model.encode_text, tokens[:, :0])
    refused(r"ids \[B, L\], got list; model.tokenizer\(texts\) gives", model.encode_text, [])
    refused(r"got list; .* torch.tensor\(ids\) makes one", model.encode_text, tokens.tolist())
    refused(r"integer ids \[B, L\], got bool \[4, 7\]", model.encode_text, tokens > 0)
    message = r"integer ids \[B, L\], got complex64"
    refused(message, model.encode_text, tokens.to(torch.complex64))


def test_wrong_calls(model, images, tokens, points, texts):
    message = r"image_points must be \[N, 64\], got \[64\]; points"
    refused(message, model.score, points[0], texts)
    message = r"inputs: a list of names, \['text'\]"
    refused(message, model.embed, {"text": tokens}, "text", error=TypeError)
    message = (
        r"mapping name → entry is needed, got float32 .* hypvl.compat.open_clip has model\(image, t"
    )
    refused(message, model, images.float() / 255, tokens, error=TypeError)


def test_integers_and_floats_of_any_width(model, images, tokens, texts):
    floats = images / 255
    with torch.no_grad():
        of_longs, by_hand = model.encode_text(tokens % 128), model.encode_image(images)
        for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32"):
            assert_eq(model.encode_text((tokens % 128).to(getattr(torch, name))), of_longs)
        short = {"text": (tokens % 128).to(torch.int8), "box_text": tokens}
        assert_close(model.embed(short, ["text", "box_text"])["box_text"], texts, 1e-5)
        for kind in (torch.float64, torch.float16):
            assert_close(model.encode_image(floats.to(kind)), by_hand, 0.02)
        assert_eq(model.encode_image(floats.double()), model.encode_image(floats))


def test_wrong_arguments_of_classify(model, images):
    labels, picture = ["dog", "taxi", "barn"], Image.new("RGB", (120, 60))
    call = model.classify
    refused("images must be .* got str; pathlib.Path", call, "dog.jpg", labels)
    refused("got a list with str; pathlib.Path", call, [picture, "dog.jpg"], labels)
    refused(r"got a list with uint8 \[3, 2, 2\]", call, [images[0][:, :2, :2].byte()], labels)
    refused("got a list with none", call, [], labels)
    for wrong in ("dog", [], {"dog"}, ["dog", 3], None):
        refused(re.escape(f"labels must be a list of names, got {wrong!r}"), call, images, wrong)
    for blank in ("", " "):
        refused(rf"labels\[1\] must be a name, got {blank!r}", call, images, ["dog", blank])
    refused(r"template\[1\] must have {} .*, got 'a'", call, images, labels, ["{}", "a"])
    message = "template must have {} where the name goes, got "
    refused(message + "None", call, images, labels, None)
    refused(message + "'a photo'", call, images, labels, "a photo")


def test_wrong_inputs_of_a_batch(model, images, tokens):
    batch = {"image": images, "text": tokens, "box_image": images.flip(-1)}
    numbers = torch.arange(12).view(4, 3)
    more = batch | {"number": numbers}
    message = "input 'number' has no kind; declare it"
    refused(message, model.embed, more, ["number"], error=LookupError)
    message = r"input 'text' must be integer ids \[B, L\], got int64 \[3\]"
    refused(message, model.embed, batch | {"text": numbers[0]})
    message = r"input 'image' must be \[B, 3, H, W\], got uint8 \[1, 4, 3, 48, 48\]; join"
    refused(message, model.embed, batch | {"image": images[None]})
    refused("input 'text' are strings", model.embed, batch | {"text": ["a dog"] * 4})
    small = batch | {"box_image": images[..., :32, :32]}
    refused("inputs of pictures need one size", model.embed, small, ["image", "box_image"])


# objectives


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(hold=-1), "hold must be 0 or more steps, got -1"),
        (dict(fall=100), "hold: the steps at 1 before fall=100; 0 falls at once"),
        (dict(end=-3.0), "end must be 0 or more, got -3.0"),
        (dict(delay=True), "got True"),
        (dict(shape="square"), "shape must be 'linear' or 'cosine', got 'square'"),
        (dict(delay=-1), "got -1"),
        (dict(ramp=-5), "ramp must be 0 or more steps, got -5"),
        (dict(plateau_fraction=1.5), "plateau_fraction must be between 0 and 1, got 1.5"),
    ],
)
def test_settings_of_a_schedule(settings, message):
    refused(message, Schedule, **settings)


def test_terms_and_schedules_that_do_not_fit():
    terms = [Contrast("image", "text", weight=0.5), Entail("text", "image", eta=0.7, weight=0.2)]
    refused("an objective needs at least one loss term, got none", Objective, [])
    for wrong in ("contrast", Contrast("image", "text")):
        message = r"terms: a list of loss terms, \[Contrast"
        refused(message, Objective, wrong, error=TypeError)
    message = "geometry: model.geometry is needed, got SimpleNamespace"
    refused(message, Objective(terms), {}, SimpleNamespace(geometry=None), error=TypeError)
    message = "names must differ, got 'symmetric/image_text' twice"
    refused(message, Objective, terms[:1] * 2)
    message = "'loss' is a column of the log"
    refused(message, Objective, [Contrast("image", "text", name="loss")])
    message = "weight of 'symmetric/image_text' is a number, got 'x'"
    refused(message, Objective, [Contrast("image", "text", weight="x")])
    message = "'contrast' is the name of a term and of a group"
    refused(message, Objective, [Contrast("image", "text", name="contrast")])
    waits = {"entailment": Schedule("plateau")}
    several = LabelContrast("image", "text", "label", "label")
    message = "delay='plateau' of 'entailment' watches terms of group 'contrast'"
    refused(message, Objective, [several, terms[1]], waits)
    refused(message + ", the objective has", Objective, terms[1:], waits)
    plane = Product(1, 2).double()
    embeddings = {"image": torch.eye(2).double(), "text": torch.eye(2).double() / 2}
    message = "step: int needed, got '3'"
    refused(message, Objective(terms), embeddings, plane, step="3", error=TypeError)


def test_wrong_settings_of_a_family():
    message = "eta must be positive, got 0.0"  # was silently .7
    refused(message, FamilyObjective(eta_inter=0.0).make)
    message = "gamma: the weight of entailment, 0 or more, got -1"
    refused(message, FamilyObjective, gamma=-1)
    refused("unknown boxes 'no'. Known: True, False", FamilyObjective, "phyclip", boxes="no")
    refused("unknown family 'phyclp'. Did you mean 'phyclip'", FamilyObjective, "phyclp")
    message = "unknown variant 'papers'. Did you mean 'paper'"
    refused(message, FamilyObjective, "clip", variant="papers")
    message = "unknown box_contrast 'box'. Did you mean 'boxes'"
    refused(message, FamilyObjective, box_contrast="box")
    refused("unknown reduction 'total'", FamilyObjective, reduction="total")
    for described in (Objective, FamilyObjective.make, TermsObjective.make):
        assert len(described.__doc__.split()) > 5, described
    for name in ("terms", "schedules", "decay"):
        assert f"\n{name}: " in inspect.getdoc(Objective), name


FAMILIES = list(itertools.product(("clip", "meru", "hycoclip", "phyclip"), (True, False), VARIANTS))


@pytest.mark.parametrize("family, boxes, variant", FAMILIES)
def test_inputs_weights_and_margins_of_each_family(family, boxes, variant):
    "Contrast adds up to 1, entailment to 1, 2 (halved) or 4, with gamma = 1."
    terms = FamilyObjective(family, boxes, variant, gamma=1.0).loss_terms()
    weights = {g: sum(t.weight for t in terms if t.group == g) for g in ("contrast", "entailment")}
    many = boxes and family in ("hycoclip", "phyclip")
    entailment = {"official": 2.0, "paper": 4.0}[variant] if many else float(family != "clip")
    assert_eq(weights, dict(contrast=1.0, entailment=entailment))
    inputs = {"image", "text", "box_image", "box_text"} if boxes else {"image", "text"}
    assert_eq(set(Objective(terms).inputs), inputs)
    assert_eq({t.reduction for t in terms}, {"mean" if variant == "official" else "sum"})
    margins = {"clip": [], "meru": [1.0]}.get(family, [0.7, 0.7, 1.2, 1.2][: 4 if many else 1])
    assert_eq([t.eta for t in terms if t.group == "entailment"], margins)


def test_objectives_are_read_from_strings():
    strings = {"delay": "150", "ramp": "300", "gamma": "1e-1", "reduction": "sum"}
    config = override(FamilyObjective(), strings)
    read = config.delay, config.ramp, config.gamma
    assert_eq(read, (150, 300, 0.1))
    assert_eq((config.choice("reduction"), config.choice("ent_scale")), ("sum", 0.5))
    assert_eq(override(config, {"delay": "plateau"}).delay, "plateau")
    terms = override(config, {"eta_inter": 0.5, "eta_intra": 2.0}).loss_terms()
    assert_eq([t.eta for t in terms if t.group == "entailment"], [0.5, 0.5, 2.0, 2.0])
    message = "unknown key 'gama'. Did you mean 'gamma'"
    refused(message, override, config, {"gama": 1}, error=UnknownKey)


def test_objectives_as_data():
    meru = FamilyObjective("meru", boxes=False)
    assert_eq([t.weight for t in replace(meru, gamma=0.3).loss_terms()], [1.0, 0.3])
    listed = TermsObjective((*meru.loss_terms(),), {"entailment": Schedule(5)})
    assert_eq(from_dict(ObjectiveConfig, to_dict(listed)), listed)
    assert_eq(listed.make().factors(4), {"contrast": 1.0, "entailment": 0.0})
    assert_eq(to_dict(listed.for_steps(2)), to_dict(listed))
    ramps = [FamilyObjective("meru", ramp=300).for_steps(s).ramp for s in (4_000, 1_000, 3)]
    assert_eq(ramps, [300, 250, 0])
