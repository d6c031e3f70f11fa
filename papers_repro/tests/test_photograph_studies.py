"""Preset `photographs` of the papers on a small feature store with encoders of random weights."""

import numpy as np
import pandas as pd
import pytest
import torch
from new_process import in_new_process, run_notebook
from PIL import Image
from tiny_encoders import tiny_encoders

from hypvl.cli import main
from hypvl.comparison.curvature_outcomes import ChainFeatures
from hypvl.data.photographs import Photograph
from hypvl.data.records import Parse
from hypvl.features import FeatureStore, extract, load_encoder
from hypvl.models.registry import load_model
from hypvl.papers import feature_recipes
from hypvl.papers.agr.recipes import photograph_recipe as agr_photographs
from hypvl.papers.agr.recipes import section_recipes as agr_recipes
from hypvl.papers.agr.recipes import trained_parameters
from hypvl.papers.phyclip.photograph_factors import FAMILIES
from hypvl.papers.phyclip.recipes import PHOTOGRAPH_RATES, photograph_recipe, section_recipes
from hypvl.papers.study import find_paper
from hypvl.papers.syntax.parsers import load_parser
from hypvl.papers.syntax.photographs import photograph_recipe as syntax_photographs
from hypvl.papers.syntax.word_features import write_words

COUNT = 128  # photographs: sixteen in each fold
KINDS = ("people", "animals", "vehicles")
SHORT = {"steps": 4, "batch_size": 16}

WORDS = ("a", "photo", "of", "and", "red", *(FAMILIES[kind] for kind in KINDS))


def photograph(number, split):
    "A picture whose colour says which two of three families it shows, each in a box of its own."
    kinds = KINDS[number % 3], KINDS[(number + number // 3) % 3]
    colour = tuple(255 * (kind in kinds) for kind in KINDS)
    phrases = [f"a {FAMILIES[kind]}" for kind in kinds]
    captions = [f"a photo of {f' and a {word} '.join(phrases)}" for word in ("large", "red")]
    boxes = [(0, 0, 0.5, 1), (0.5, 0, 1, 1)]
    picture = Image.new("RGB", (16, 16), colour)
    return Photograph(f"{number:03d}.jpg", picture, split, captions, boxes, phrases, (0, 1), kinds)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    image, text = tiny_encoders(folder, WORDS)
    splits = ["test"] * 16 + ["val"] * 16 + ["train"] * 96
    found = [photograph(number, split) for number, split in enumerate(splits)]
    store = extract(found, image, text, folder / "store", 32, 0, progress=False, device="cpu")
    chains = tuple((f"a {number}", f"red {number}") for number in range(64))
    rng = np.random.default_rng(0)
    shapes = (64, 8), (64, 2, 16), (64, 2, 1, 16), (16,)
    ChainFeatures(*map(rng.standard_normal, shapes), chains).save(store.folder / "hierarcaps.npz")
    return store


def test_each_seed_has_a_fold_and_tuning_its_own_seeds(store, tmp_path):
    of_store = {"data.folder": str(store.folder)}
    main_recipes = section_recipes("main", "photographs", 3, **of_store)
    assert [recipe.data.fold for recipe in main_recipes] == [3] * 4
    assert {recipe.train.seed for recipe in main_recipes} == {3}
    assert [recipe.data.boxes for recipe in main_recipes] == [True] * 4
    tuning = [section_recipes("tuning", "photographs", seed, **of_store) for seed in range(8)]
    assert [len(recipes) for recipes in tuning] == [25] * 3 + [0] * 5
    assert {recipe.train.seed for recipe in tuning[2]} == {10}
    counts = pd.Series([recipe.family for recipe in sum(tuning, [])]).value_counts()
    assert counts["clip"] == 21 and {*counts.drop("clip")} == {18}  # no baseline has fewer
    rates = {recipe.family: recipe.train.lr for recipe in main_recipes}
    assert rates == PHOTOGRAPH_RATES
    tests = []
    for seed in range(8):
        recipe = photograph_recipe("clip", seed=seed, **of_store)
        paths = recipe.data.prepare(tmp_path, 0)
        items = FeatureStore(paths.suite).items
        tests.append({*items.loc[items["split"].eq("test"), "image"]})
    assert sum(map(len, tests)) == len(set.union(*tests)) == COUNT


@pytest.mark.parametrize(
    ("make", "overrides", "columns"),
    [
        (
            photograph_recipe,
            {"data.fold": 2, "train.lr": 0.01, "train.seed": 5},
            {"splits": "fold 2", "rate": 0.01, "training_seed": 5},
        ),
        (photograph_recipe, {"published": True}, {"splits": "published"}),
        (agr_photographs, {"train.lr": 0.01, "data.fold": 2, "model.hidden": 16}, {"rate": 0.01}),
        (syntax_photographs, {"train.seed": 5, "weight": 0.3}, {"mu": 0.3, "training_seed": 5}),
    ],
)
def test_columns_are_those_of_the_finished_recipe(store, make, overrides, columns):
    family = ("clip",) if make is photograph_recipe else ()
    made = make(*family, **{"data.folder": str(store.folder)}, **overrides)
    assert {name: made.columns[name] for name in columns} == columns
    assert made.data.fold in (None, 0, overrides.get("data.fold"))


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (photograph_recipe, {"rate": 0.0}, "lr: above 0, got 0.0"),
        (photograph_recipe, {"objective.boxes": False}, "objective.boxes: set the argument boxes"),
        (photograph_recipe, {"k": 8}, "k=8, metric='l1': only phyclip has factors, not clip"),
        (agr_photographs, {"rate": 0.0}, "lr: above 0, got 0.0"),
        (agr_photographs, {"setting": "towers"}, "setting='towers' trains a tower"),
        (agr_photographs, {"budget": -1}, "budget: a positive share of the steps, got -1"),
        (agr_photographs, {"train.steps": 2.7}, "steps: a whole number, got 2.7"),
        (agr_photographs, {"data.held_out": 3}, "unknown key 'data.held_out'"),
        (syntax_photographs, {"rate": 0.0}, "lr: above 0, got 0.0"),
        (syntax_photographs, {"weight": -1.0}, "weight: 0 or more, got -1.0"),
        (syntax_photographs, {"trees": "parsr"}, "trees='parsr' is none of .*parser"),
        (syntax_photographs, {"data.trees": "shuffled"}, "data.trees: set the argument trees"),
        (syntax_photographs, {"data.captions": 0}, "captions: 1 or more, got 0"),
        (syntax_photographs, {"data.boxes": True}, "boxes: False needed"),
    ],
)
def test_settings_that_would_do_nothing_or_misname_are_refused(store, make, settings, message):
    family = ("clip",) if make is photograph_recipe else ()
    with pytest.raises((ValueError, KeyError), match=message):
        make(*family, **{"data.folder": str(store.folder)}, **settings)


def test_no_negative_seed_is_planned(store):
    with pytest.raises(ValueError, match="more_seeds: 0 or more"):
        find_paper("phyclip").plan(
            preset="photographs", data_root=str(store.folder), sections="tuning", more_seeds="-1"
        )


def test_preset_photographs_asks_for_a_store(capsys):
    assert main(["train", "phyclip:clip", "--preset", "photographs"]) == 2
    assert "data_root: preset 'photographs' trains on a feature store" in capsys.readouterr().err
    assert main(["train", "syntax:meru", "--preset", "photographs"]) == 2
    assert "data_root: preset 'photographs' trains on a feature store" in capsys.readouterr().err
    assert main(["train", "ideas:meru", "--preset", "photographs"]) == 2
    assert "preset='photographs' is none of smoke, mini, gpu" in capsys.readouterr().err


def shortened(notebook, out, parameters):
    "The notebook with four steps per run."
    from hypvl.papers.agr import recipes

    feature_recipes._TRAINING |= SHORT
    recipes.STEPS = SHORT["steps"]
    return run_notebook(notebook, out, parameters)


def reproduce(notebook, store, out, **parameters):
    settings = {"preset": "photographs", "data_root": str(store.folder), "out": str(out)}
    job = shortened, notebook, out, settings | parameters
    found, output = in_new_process(*job, log=out / "log.txt")
    assert not found, output[-6000:]
    return pd.read_csv(out / "results.csv"), pd.read_csv(out / "tables" / "claims.csv")


def test_phyclip_on_photographs(store, tmp_path):
    settings = {"seeds": "0,1", "more_seeds": "0", "sections": "main,tuning,longer"}
    results, claims = reproduce("phyclip.ipynb", store, tmp_path, **settings)
    claims = claims.set_index("id")
    assert {*claims.index} == {"retrieval", "families", "composition"}
    assert claims["effect"].notna().all()
    assert {*claims["note"]} == {"2 of 8 seeds"}
    own = results[results["section"].eq("main") & results["score"].eq("paper")]
    recall = own[own["metric"].isin(["t2i_R@5", "i2t_R@5"]) & own["dataset"].eq("Flickr8k")]
    by_model = recall.groupby("model")["value"].mean()
    rivals = by_model[["CLIP + boxes", "MERU + boxes", "HyCoCLIP"]].mean()
    assert claims.at["retrieval", "effect"] == pytest.approx(100 * (by_model["PHyCLIP"] - rivals))
    assert by_model["oracle"] == 1
    assert own.groupby("seed")["data"].nunique().tolist() == [1, 1] and own["data"].nunique() == 2
    tried = results[results["section"].eq("tuning")]
    assert {*tried["dataset"]} == {"validation"} and tried["rate"].nunique() == 7


def test_agr_on_photographs(store, tmp_path):
    settings = {"seeds": "0,1", "more_seeds": "0", "sections": "main,tuning"}
    results, claims = reproduce("agr.ipynb", store, tmp_path, **settings)
    claims = claims.set_index("id")
    assert claims.drop("euclid-dominates")["effect"].notna().all(), claims["note"]
    own = results[results["section"].eq("main") & results["metric"].eq("t2i_R@5")]
    by_model = own.groupby("model")["value"].mean()
    gap = 100 * (by_model["AGR"] - by_model["MERU"])
    assert claims.at["t2i-meru", "effect"] == pytest.approx(gap)
    made = agr_recipes("main", "photographs", **{"data.folder": str(store.folder)})
    sizes = {recipe.name: trained_parameters(recipe) for recipe in made}
    assert sizes["MERU"] < sizes["MERU, wide"] == pytest.approx(sizes["AGR"], rel=0.01)


def parsed(text):
    "A parse in which the words of each half depend on its last word, and halves on 'and'."
    words = text.split()
    middle, last = words.index("and"), len(words) - 1
    ends = [middle - 1] * (middle - 1) + [middle] * 2 + [last] * (last - middle - 1) + [middle]
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1].tolist()
    return Parse(
        text, words, starts, ends, ["ROOT" if n == middle else "det" for n in range(last + 1)]
    )


def test_syntax_on_photographs(store, tmp_path):
    texts = store.items.loc[store.items["kind"].eq("caption"), "text"].unique()
    encoder = load_encoder(store.encoders["text"].name)
    write_words(store, encoder, load_parser("gold", map(parsed, texts)), progress=False)
    settings = {"seeds": "0,1", "more_seeds": "0", "sections": "main,tuning"}
    results, claims = reproduce("syntax.ipynb", store, tmp_path, **settings)
    claims = claims.set_index("id")
    measured = claims.drop(["classification", "order"])
    assert measured["effect"].notna().all() and {*measured["note"].dropna()} == {"2 of 8 seeds"}
    own = results[results["section"].eq("main") & results["metric"].isin(["t2i_R@5", "i2t_R@5"])]
    by_model = own[own["score"].eq("paper")].groupby("model")["value"].mean()
    gap = 100 * (by_model["MERU + syntax"] - by_model["MERU"])
    assert claims.at["retrieval", "effect"] == pytest.approx(gap)
    rows = results[results["section"].eq("main") & results["dataset"].eq("parse_recovery")]
    by_model = rows.groupby("model")["value"].mean()
    others = "MERU + syntax, shuffled parses", "MERU + syntax, right-branching trees"
    assert {*others, "MERU", "MERU + syntax", "permuted", "oracle"} == {*by_model.index}
    assert by_model["oracle"] == 1
    tried = results[results["section"].eq("tuning") & results["suite"].eq("retrieval")]
    assert {*tried["dataset"]} == {"validation"} and tried["rate"].nunique() == 4
    for name in ("figure2_loss", "recovery", "claims"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5_000, name


def test_command_makes_a_model_of_photographs(store, tmp_path, capsys):
    command = ["train", "phyclip:phyclip", "--preset", "photographs", "--data", str(store.folder)]
    command += ["--set", "train.steps=4", "--set", "train.batch_size=16"]
    assert main([*command, "--out", str(tmp_path), "--device", "cpu", "--quiet"]) == 0
    output = capsys.readouterr().out
    assert "t2i_R@5" in output
    (folder,) = tmp_path.glob("runs/*/model")
    model = load_model(folder)
    pictures = [photograph(number, "test").image for number in (0, 1, 2, 4)]
    likely = model.classify(
        pictures, [FAMILIES[kind] for kind in KINDS], template="a photo of a {}"
    )
    assert likely.shape == (4, 3) and torch.allclose(likely.sum(1), torch.ones(4))
    texts = model.encode(["a person", "a red animal"])
    assert len(texts) == 2 and np.isfinite(np.asarray(texts)).all()
    card = (folder / "README.md").read_text()
    assert "| retrieval | test | t2i_R@1 |" in card and "timm:test_efficientnet" in card
