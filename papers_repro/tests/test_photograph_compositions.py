"""Preset `photographs` of H²EM on a small set of pictures with encoders of random weights."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tiny_encoders import tiny_encoders

from hypvl.data.photographs import Photograph
from hypvl.features import extract
from hypvl.models.registry import load_model
from hypvl.papers.feature_recipes import convergence_table, tuning_table
from hypvl.papers.h2em import photographs
from hypvl.papers.h2em.fashion_draws import prepare_fashion
from hypvl.papers.h2em.photographs import photograph_recipe
from hypvl.papers.runs import run
from hypvl.papers.study import find_paper

COLOURS = {"red": "red", "blue": "blue", "navy-blue": "navy", "green": "green"}
ARTICLES = ("shirt", "flip-flops", "belt", "shoe")
EACH = 20  # pictures of a pair

NAMES = "a photo of red blue navy green shirt flip flops belt shoe neutral warm cool tops others"


def picture(colour, place, number):
    "A square of a colour whose place says the article, on a noisy ground."
    noise = np.random.default_rng(number).integers(0, 90, (32, 32, 3), dtype=np.uint8)
    made = Image.fromarray(noise)
    left, top = 16 * (place % 2), 16 * (place // 2)
    made.paste(COLOURS[colour], (left, top, left + 16, top + 16))
    return made


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    "The folder of the preset."
    folder = tmp_path_factory.mktemp("fashion")
    image, text = tiny_encoders(folder, NAMES.split())
    raw, lines, captioned = folder / "raw", ["image,attr,obj,subcategory"], []
    (raw / "images").mkdir(parents=True)
    for colour in COLOURS:
        for place, article in enumerate(ARTICLES):
            for number in range(EACH):
                name, made = f"{colour}_{article}_{number}.png", picture(colour, place, number)
                made.save(raw / "images" / name)
                lines.append(f"{name},{colour},{article},{'Tops' if place == 0 else 'Others'}")
                split = {0: "test", 1: "val"}.get(number, "train")
                if number < 4:
                    captioned.append(Photograph(name, made, split, (f"a {colour} {article}",)))
    (raw / "metadata.csv").write_text("\n".join(lines))
    store = extract(captioned, image, text, folder / "store", 16, 0, progress=False, device="cpu")
    how = {"width": 128, "progress": False, "steps": 4, "batch_size": 8}
    return prepare_fashion(store.folder, raw, folder / "prepared", **how)


SHORT = {"steps": 3, "batch_size": 8, "checkpoint_every": 0, "validate_every": 0, "log_every": 1}


def test_a_study_ends_with_tables_and_claims(prepared, tmp_path, monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    monkeypatch.setattr(photographs, "RATES", (1e-3,))
    rates = dict.fromkeys(photographs.PHOTOGRAPH_RATES, 1e-3)
    monkeypatch.setattr(photographs, "PHOTOGRAPH_RATES", rates)
    for name, value in SHORT.items():
        monkeypatch.setitem(photographs._TRAINING, name, value)
    settings = {"preset": "photographs", "data_root": str(prepared), "out": str(tmp_path)}
    paper = find_paper("h2em")
    study = paper.plan(seeds="0", sections="main,tuning,longer", **settings)
    study.run()
    results, claims = pd.read_csv(tmp_path / "results.csv"), study.judged().set_index("id")
    wanted = {"best-closed", "best-open", "best-closed-hm", "best-open-hm"}
    assert {*claims.index} == wanted | {"H1", "H2", "H3-hm", "losses"}
    assert claims["effect"].notna().all() and {*claims["note"]} == {"1 of 8 seeds"}
    own = results[results["section"].eq("main") & results["score"].eq("paper")]
    own = own[own["suite"].eq("closed") & own["dataset"].eq("fashion")]
    by_model = own.pivot_table(index="model", columns="metric", values="value")
    bars = {"majority", "chance", "class_mean", "classifiers", "aligned_classifiers", "oracle"}
    assert {*by_model.index} == bars | {recipe.name for recipe in study.recipes["main"]}
    assert by_model.at["oracle", "auc"] == 1 and by_model.at["class_mean", "unseen"] == 0
    losses = 100 * (by_model["harmonic_mean"]["H2EM"] - by_model["harmonic_mean"]["hyperbolic"])
    assert claims.at["losses", "effect"] == pytest.approx(losses)
    table = study.table(1).markdown()
    assert "nearest class mean" in table and "state × object classifiers" in table
    tuned = tuning_table(study, ("auc",))
    longer = convergence_table(study, ("auc",))
    assert [*tuned.index] == [*longer.index] == ["CSP", "Troika", "H2EM"]
    tried = results[results["section"].eq("tuning") & results["suite"].eq("closed")]
    assert {*tried["dataset"]} == {"validation"}


def test_each_seed_has_its_own_pairs_and_models_share_them(prepared):
    settings = {"preset": "photographs", "data_root": str(prepared), "sections": "factorial"}
    study = find_paper("h2em").plan(seeds="0,1", **settings)
    models, roots = {}, {}
    for section, recipes in study.recipes.items():
        for recipe, seed in zip(recipes, study.asked_seeds[section]):
            models.setdefault(seed, set()).add(recipe.model.vocabulary.pairs)
            roots.setdefault(seed, set()).add(recipe.data.root)
    assert [len(found) for found in (*models.values(), *roots.values())] == [1] * 4
    assert models[0] != models[1]


def test_a_trained_model_is_loaded_and_scores_tokens(prepared, tmp_path):
    made = photograph_recipe(
        **{f"train.{name}": value for name, value in SHORT.items()}
        | {"data.folder": str(prepared)},
        probes=("validation compositions",),
    )
    folder = run(made, tmp_path, device="cpu", progress=False).folder
    model = load_model(folder / "model")
    tokens = torch.from_numpy(np.load(prepared / "tokens.npy")[:5]).float()
    scores = model.scores({"image": tokens}, [("red", "shirt"), ("navy_blue", "shoe")])
    assert scores.shape == (5, 2) and scores.isfinite().all()
