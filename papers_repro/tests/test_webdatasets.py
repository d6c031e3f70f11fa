"""Webdataset benchmarks against the rules that CLIP_benchmark publishes.

Read by the library webdataset, scored by those rules written here once more.
"""

import os
import shutil
import tarfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
import webdataset
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from torch.nn import functional as F
from webdataset.autodecode import ImageHandler

from hypvl.cli import main
from hypvl.data.benchmarks.webdatasets import CLASS_NAMES, TEMPLATES, write_wds
from hypvl.evaluation.probe import average_precision
from hypvl.evaluation.retrieval import recall_at_k
from hypvl.evaluation.zero_shot import classification_values, classify
from hypvl.models import create_model, export_official
from hypvl.models.published import find_published, published_place

KINDS = ["webp", "png", "jpg", "jpeg"]
NAMES = ("cat", "dog", "old house", "red car", "sea", "tree", "woman")
PROMPTS = ("a photo of a {}.", "a drawing of the {}", "{}")


def read(folder, member):
    "Pictures, and labels or texts, as CLIP_benchmark's pipeline gives them."
    count = int((folder / "test/nshards.txt").read_text())
    tars = [str(folder / f"test/{i}.tar") for i in range(count)]
    data = webdataset.WebDataset(tars, shardshuffle=False).decode(ImageHandler("pil", KINDS))
    return zip(*data.to_tuple(KINDS, member))


def text_features(model, texts):
    return F.normalize(model.encode_text(model.tokenizer(list(texts))), dim=-1)


def image_features(model, pictures):
    pixels = torch.stack([model.preprocess(picture.convert("RGB")) for picture in pictures])
    return F.normalize(model.encode_image(pixels), dim=-1)


def class_scores(model, folder, pictures):
    "Scores [N, C] by the names and prompts of the files."
    columns = []
    for name in (folder / CLASS_NAMES).read_text().splitlines():
        prompts = (folder / TEMPLATES).read_text().splitlines()
        texts = [prompt.strip().format(c=name.strip()) for prompt in prompts]
        columns.append(F.normalize(text_features(model, texts).mean(0), dim=-1))
    return 100 * image_features(model, pictures) @ torch.stack(columns, 1)


def best(scores, k):
    "The k best of each row; of equal scores the lower index comes first."
    return (-scores).argsort(dim=1, stable=True)[:, :k]


def classification_rules(scores, target):
    "acc1, acc5 and mean_per_class_recall."
    right = best(scores, 5) == target[:, None]
    return {
        "accuracy_micro": right[:, :1].any(1).double().mean().item(),
        "top5": right.any(1).double().mean().item(),
        "accuracy": balanced_accuracy_score(target, best(scores, 1)[:, 0]),
    }


def retrieval_rules(scores, owner, k=5):
    "image_retrieval_recall@k and text_retrieval_recall@k of scores [texts, images]."
    positive = owner[:, None] == torch.arange(scores.shape[1])
    found = {}
    for name, matrix, truth in (("t2i", scores, positive), ("i2t", scores.T, positive.T)):
        hits = truth.gather(1, best(matrix, k)).sum(1) / truth.sum(1)
        found[f"{name}_R@{k}"] = (hits > 0).double().mean().item()
    return found


def multilabel_rules(scores, flags):
    "mean_average_precision."
    values = []
    for column, truth in zip(scores.T, flags.T):
        truth = truth[(-column).argsort(dim=0, stable=True)]
        precision = truth.cumsum(0) / torch.arange(1, len(truth) + 1)
        values.append((precision[truth.bool()].sum() / max(float(truth.sum()), 1)).item())
    return {"mAP": float(np.mean(values))}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    "A small CLIP with random weights, and its folder."
    torch.manual_seed(0)
    made, folder = create_model("clip_tiny_s").eval(), tmp_path_factory.mktemp("model") / "clip"
    made.save_pretrained(folder)
    return made, folder


@pytest.fixture
def pictures(tmp_path):
    "Forty pictures of several kinds and sizes."
    rng, found = np.random.default_rng(0), []
    for i in range(40):
        size = rng.integers(20, 60, 2)
        path = tmp_path / f"{i}.{('jpg', 'png', 'webp', 'bmp')[i % 4]}"
        pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize(tuple(map(int, size))).save(path)
        found.append(path)
    return found


def evaluate(folder, out, *data, code=0):
    "Values of the model by dataset and metric, and all rows."
    command = ["evaluate", "--checkpoint", folder, "--out", out, "--workers", 0, "--quiet"]
    command += ["--device", "cpu", "--scores", "paper", "--name", "it", "--data", *data]
    assert main([str(word) for word in command]) == code
    rows = pd.read_csv(out / "results.csv")
    ours = rows[rows["model"] == "it"]
    return ours.set_index(["dataset", "metric"])["value"].to_dict(), rows


@torch.no_grad()
def test_numbers_are_those_of_the_published_rules(model, pictures, tmp_path):
    model, saved = model
    rng, sets = np.random.default_rng(1), tmp_path / "sets"
    labels = rng.integers(0, len(NAMES), 40).tolist()
    flags = rng.integers(0, 2, (40, len(NAMES))).tolist()
    texts = [[f"a {NAMES[i % 7]} number {i} seen {j}" for j in range(1 + i % 3)] for i in range(40)]
    lists = dict(classes=NAMES, templates=PROMPTS)
    write_wds(sets / "wds_things", pictures, labels, **lists)
    write_wds(sets / "wds_tags", pictures, flags, "multilabel", **lists)
    write_wds(sets / "wds_told", pictures, texts, "retrieval")
    folders = [sets / name for name in ("wds_things", "wds_tags", "wds_told")]
    values, rows = evaluate(saved, tmp_path / "out", *folders)

    shown, target = read(folders[0], "cls")
    target = torch.tensor([int(label) for label in target])
    assert target.tolist() == labels
    expected = classification_rules(class_scores(model, folders[0], shown), target)
    for metric, value in expected.items():
        assert values["wds_things", metric] == pytest.approx(value, abs=1e-9), metric

    shown, captions = read(folders[2], "txt")
    captions = [text.splitlines() for text in captions]
    assert captions == texts
    owner = torch.tensor([i for i, of_image in enumerate(captions) for _ in of_image])
    queries = text_features(model, [text for of_image in captions for text in of_image])
    scores = queries @ image_features(model, shown).T
    for metric, value in retrieval_rules(scores, owner).items():
        assert values["wds_told", metric] == pytest.approx(value, abs=1e-9), metric

    scores = class_scores(model, folders[1], shown)
    expected = multilabel_rules(scores, torch.tensor(flags))["mAP"]
    assert values["wds_tags", "mAP"] == pytest.approx(expected, abs=1e-6)
    source = rows.set_index("dataset")["source"]
    assert f"names of {CLASS_NAMES}, prompts of {TEMPLATES}" in source["wds_things"].iloc[0]


def test_rules_agree_where_scores_tie():
    rng = np.random.default_rng(2)
    for _ in range(20):
        scores = torch.from_numpy(rng.integers(0, 4, (12, 9))).double()
        target = torch.from_numpy(rng.integers(0, 9, 12))
        values = classification_values(classify(scores, target))
        for metric, value in classification_rules(scores, target).items():
            assert np.mean(values[metric]) == pytest.approx(value), metric
        owner = torch.from_numpy(rng.permutation([*range(9), 0, 1, 2]))
        expected = retrieval_rules(scores, owner)
        captions = [np.flatnonzero(owner == i).tolist() for i in range(9)]
        assert recall_at_k(scores, owner, 5)[5] == pytest.approx(expected["t2i_R@5"])
        assert recall_at_k(scores.T, captions, 5)[5] == pytest.approx(expected["i2t_R@5"])
        flags = torch.from_numpy(rng.integers(0, 2, (12, 9)))
        found = average_precision(scores.numpy(), flags.numpy()).mean()
        assert found == pytest.approx(multilabel_rules(scores, flags)["mAP"])


def test_a_list_that_misses_a_line_is_named(model, pictures, tmp_path, capsys):
    place = write_wds(
        tmp_path / "sets/wds_things",
        pictures,
        [i % 7 for i in range(40)],
        "classification",
        NAMES,
        PROMPTS,
    )
    (place / CLASS_NAMES).write_text("\n".join(NAMES[:6]))
    evaluate(model[1], tmp_path / "out", place, code=1)
    output = capsys.readouterr().err
    assert "'s0000006', cls: label 6, but classnames.txt has 6 lines: line 7 is missing" in output


def put_small_model(monkeypatch):
    "Put a small model at the place of meru_vit_b/redcaps, whose row has its architecture."
    row = replace(find_published("meru_vit_b", "redcaps"), architecture="meru_tiny_vit")
    monkeypatch.setattr("hypvl.models.registry.find_published", lambda name, tag: row)
    published_place(row).parent.mkdir(parents=True)
    export_official(create_model("meru_tiny_vit", seed=0), published_place(row))


def test_lists_of_models_and_sets(model, pictures, tmp_path, monkeypatch, capsys):
    "A published NAME/TAG and a folder, each with its folder of results; a second call is short."
    lists = dict(classes=NAMES, templates=PROMPTS)
    sets = [write_wds(tmp_path / f"sets/wds_{n}", pictures[:7], range(7), **lists) for n in "ab"]
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "hub"))
    put_small_model(monkeypatch)
    models = tmp_path / "models.txt"
    models.write_text(f"# as they would be typed\nmeru_vit_b/redcaps\n\n{model[1]}\n")
    (tmp_path / "sets.txt").write_text("".join(f"{place}\n" for place in sets))
    out = tmp_path / "out"
    front = ["evaluate", "--workers", 0, "--quiet", "--device", "cpu", "--scores", "paper"]
    command = [*front, "--checkpoint", models, "--data", tmp_path / "sets.txt", "--out", out]
    for _ in range(2):
        assert main([str(word) for word in command]) == 0
    output = capsys.readouterr().out
    assert "meru_vit_b redcaps, score 'paper'" in output and output.count("found finished") == 4
    rows = pd.read_csv(out / "results.csv").query("metric == 'accuracy'")
    assert not rows.duplicated(["dataset", "model"]).any()
    of_models = rows["model"].isin(["clip", "meru_vit_b redcaps"])
    for column in ("checkpoint", "family", "run", "k", "d"):
        assert (rows[column].notna() == of_models).all(), column
    found = rows.groupby("model")["dataset"].agg(list).to_dict()
    assert found == dict.fromkeys(
        ["chance", "clip", "majority", "meru_vit_b redcaps"], ["wds_a", "wds_b"]
    )
    for folder, name in (("meru_vit_b_redcaps", "meru_vit_b redcaps"), ("clip", "clip")):
        alone = pd.read_csv(out / folder / "results.csv").query("metric == 'accuracy'")
        pd.testing.assert_frame_equal(
            alone[alone["model"] == name].reset_index(drop=True),
            rows[rows["model"] == name].reset_index(drop=True),
            check_dtype=False,  # rows of baselines have no k and d
        )
    offline = mock.Mock(side_effect=RuntimeError("Failed to download weights"))
    monkeypatch.setattr("hypvl.papers.report.from_open_clip", offline)
    models.write_text(f"ViT-B-32,openai\n{model[1]}\n")
    assert main([str(word) for word in command]) == 1
    output = capsys.readouterr().out
    assert "ViT-B-32 openai: left out, the model cannot be loaded. checkpoint: open_clip:" in output
    assert (
        f"replaces {out / 'results.csv'}; " in output and "rows of meru_vit_b redcaps are" in output
    )
    assert {*pd.read_csv(out / "results.csv")["model"]} == {"chance", "clip", "majority"}
    models.write_text("ViT-B-32,openai\nViT-B-16,openai\n")
    assert main([str(word) for word in command]) == 1
    alone = [*front, "--checkpoint", "ViT-B-32,openai", "--data", sets[0], "--out", tmp_path / "b"]
    assert main([str(word) for word in alone]) == 2
    assert "open_clip:ViT-B-32/openai cannot be loaded: Failed" in capsys.readouterr().err
    for lines, error in (
        ("meru_vit_b\n", "Published are meru_vit_b/redcaps, meru_vit_b/grit."),
        ("ViT-B-33,openai\n", "Did you mean 'ViT-B-32'?"),
        (f"{model[1]}\n{model[1]}\n", "are named 'clip'"),
        ("# none\n", "models.txt' lists nothing; a line for each is needed"),
    ):
        models.write_text(lines)
        assert main([str(word) for word in command]) == 2
        assert error in capsys.readouterr().err


def test_probes_of_models_listed_as_clip_benchmark_lists_them(
    model, pictures, tmp_path, monkeypatch, capsys
):
    "The values are those of scikit-learn on features of the tower; retrieval sets are left out."
    rng, lists = np.random.default_rng(3), dict(classes=NAMES[:2], templates=PROMPTS)
    sets, labels = tmp_path / "sets", (np.arange(40) // 4 % 2).tolist()
    for name in ("wds_things", "wds_untrained"):
        write_wds(sets / name, pictures[30:], labels[30:], **lists)
    write_wds(sets / "wds_things", pictures[:30], labels[:30], split="train", **lists)
    for split, some in (("train", slice(30)), ("test", slice(30, 40))):
        flags = rng.integers(0, 2, (40, 2)).tolist()[some]
        write_wds(sets / "wds_tags", pictures[some], flags, "multilabel", split=split, **lists)
    write_wds(sets / "wds_told", pictures[:2], [["a cat"], ["a dog"]], "retrieval")
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "hub"))
    put_small_model(monkeypatch)
    (tmp_path / "models.txt").write_text(f"meru_vit_b,redcaps\n{model[1]}\n")
    out = tmp_path / "out"
    front = ["evaluate", "--checkpoint", tmp_path / "models.txt", "--out", out, "--workers", 0]
    front += ["--device", "cpu", "--data", sets]

    assert main([str(word) for word in [*front, "--probe"]]) == 3  # a set lacks its split train
    output = capsys.readouterr().out
    assert "wds_told: left out, a retrieval dataset has no labels" in output
    assert "wds_untrained: missing. wds_untrained: not found in" in output
    assert "train/nshards.txt" in output and str(out / "probes.csv") in output
    rows = pd.read_csv(out / "probes.csv")
    found = rows.groupby(["model", "dataset"])["metric"].agg(list).to_dict()
    assert found == {
        (name, dataset): metrics
        for name in ("meru_vit_b redcaps", "clip")
        for dataset, metrics in (
            ("wds_tags", ["mAP"] * 2),
            ("wds_things", ["acc1", "mean_per_class_recall"] * 2),
        )
    }
    assert set(rows["shots"]) == {"all"} and set(rows["seed"]) == {0}
    of_clip = rows[(rows["model"] == "clip") & (rows["metric"] == "acc1")].set_index("features")
    parts = [image_pixels(model[0], sets / "wds_things", split) for split in ("train", "test")]
    for side in ("before", "after"):
        features = [tower_features(model[0], part[0], side) for part in parts]
        fitted = LogisticRegression(C=of_clip["c"][side], max_iter=1000)
        fitted.fit(features[0], parts[0][1])
        known = (fitted.predict(features[1]) == parts[1][1]).mean()
        assert of_clip["value"][side] == pytest.approx(known, abs=1e-9)

    front[-1] = sets / "wds_things"
    assert main([str(word) for word in [*front, "--probe", "1,2", "--seed", "7"]]) == 0
    few = pd.read_csv(out / "probes.csv").query("model == 'clip' and features == 'after'")
    expected = [(k, seed) for k in (1, 2) for seed in range(7, 12)]
    assert list(zip(few["shots"], few["seed"])) == expected and few["c"].notna().all()
    output = capsys.readouterr().out
    assert f"replaces {out / 'probes.csv'}; 12 rows of meru_vit_b redcaps, clip are not" in output
    kept = (out / "probes.csv").read_bytes()
    assert main([str(word) for word in [*front, "--probe", "99"]]) == 1
    assert "shots: 99 pictures per class of wds_things are needed" in capsys.readouterr().out
    assert (out / "probes.csv").read_bytes() == kept

    (tmp_path / "models.txt").write_text(f"ViT-B-32,openai\n{model[1]}\n")
    offline = mock.Mock(side_effect=RuntimeError("Failed to download weights"))
    monkeypatch.setattr("hypvl.papers.report.from_open_clip", offline)
    front[-1] = sets / "wds_tags"
    front += [sets / "wds_things", "--seed", "7", "--probe", "all,2,99"]
    assert main([str(word) for word in front]) == 1
    output = capsys.readouterr().out
    for line in (
        "wds_tags: left out. probe: pictures of wds_tags have several labels, 'all' is needed",
        "wds_things: left out. shots: 99 pictures per class of wds_things are needed for training",
        "ViT-B-32 openai: left out, the model cannot be loaded. checkpoint: open_clip:ViT-B-32/",
    ):
        assert line in output, output
    rows = pd.read_csv(out / "probes.csv").query("features == 'after' and seed == 7")
    found = rows[["model", "dataset", "shots", "metric"]].values.tolist()
    assert found == [
        ["clip", "wds_tags", "all", "mAP"],
        ["clip", "wds_things", "all", "acc1"],
        ["clip", "wds_things", "all", "mean_per_class_recall"],
        ["clip", "wds_things", "2", "acc1"],
    ]
    front[-4:] = ["--probe"]
    front[front.index("--data") + 1 : -1] = [sets / "wds_told"]
    assert main([str(word) for word in front]) == 2
    assert "got retrieval datasets alone: wds_told" in capsys.readouterr().err


def test_flattening_of_a_retrieval_set(pictures, tmp_path, capsys):
    texts = [[f"a {NAMES[i % 7]} number {i}" for _ in range(1 + i % 2)] for i in range(12)]
    folder = write_wds(tmp_path / "sets/wds_told", pictures[:12], texts, "retrieval")
    create_model("meru_tiny_s", seed=0).save_pretrained(tmp_path / "meru")
    values, _ = evaluate(tmp_path / "meru", tmp_path / "rows", folder)
    command = ["evaluate", "--checkpoint", tmp_path / "meru", "--out", tmp_path / "out", "--data"]
    command += [folder, "--flatten", "--workers", 0, "--device", "cpu", "--quiet"]
    assert main([str(word) for word in command]) == 0, capsys.readouterr().err
    found = pd.read_csv(tmp_path / "out/flattening.csv").set_index(["dataset", "way"])
    for metric in ("t2i_R@5", "i2t_R@5"):
        known = 100 * values["wds_told", metric]
        assert found[metric]["wds_told", "geodesic"] == pytest.approx(known), metric


def image_pixels(model, folder, split):
    "Pixels and labels of a split, read by the library webdataset."
    data = webdataset.WebDataset(str(folder / split / "0.tar"), shardshuffle=False)
    shown, labels = zip(*data.decode(ImageHandler("pil", KINDS)).to_tuple(KINDS, "cls"))
    pixels = torch.stack([model.preprocess(picture.convert("RGB")) for picture in shown])
    return pixels, np.array([int(label) for label in labels])


@torch.no_grad()
def tower_features(model, pixels, side):
    "Features before or after the projection."
    features = model.image_tower(pixels) if side == "before" else model.encode_image(pixels)
    return features.double().numpy()


def test_the_command_says_what_it_needs(model, pictures, tmp_path, capsys):
    lists = dict(classes=NAMES, templates=PROMPTS)
    one = write_wds(tmp_path / "a/wds_one", pictures[:7], range(7), **lists)
    two = write_wds(tmp_path / "b/wds_two", pictures[:7], range(7), **lists)
    plain = tmp_path / "photos"
    (plain / "cat").mkdir(parents=True)
    pictures[9].rename(plain / "cat" / pictures[9].name)
    front = ["evaluate", "--checkpoint", str(model[1]), "--out", str(tmp_path / "out"), "--data"]
    for data, message in (
        ([one, two], "data: sets in one folder are needed, got"),
        ([one, plain], "data: several only where all are webdataset benchmarks"),
        ([one, "--sections", "zero_shot"], "sections: --data names the sets"),
        ([one, tmp_path / "none"], "data: no file or folder"),
        ([tmp_path / "wds_cifar100"], "wds/cifar100 downloads CLIP_benchmark's dataset"),
        ([one, "wds/cifar100"], "data: folders and addresses need separate calls, got both"),
    ):
        assert main([*front, *map(str, data)]) == 2
        assert message in capsys.readouterr().err


def test_exported_folders_are_read_by_others(pictures, tmp_path, capsys):
    photos = tmp_path / "photos"
    for i, path in enumerate(pictures[:8]):
        (photos / f"n{i % 2}").mkdir(parents=True, exist_ok=True)
        path.rename(photos / f"n{i % 2}" / path.name)
    assert main(["data", "export", "--data", str(photos), "--wds", str(tmp_path / "out")]) == 0
    folder = tmp_path / "out/wds_photos"
    assert str(folder) in capsys.readouterr().out
    shown, labels = read(folder, "cls")
    assert [int(label) for label in labels] == [0] * 4 + [1] * 4
    assert all(picture.size[0] >= 20 for picture in shown)
    assert (folder / CLASS_NAMES).read_text() == "n0\nn1\n"

    for path in photos.glob("*/*"):
        path.with_suffix(".txt").write_text(f"a photo of {path.stem}\nanother\n")
    assert main(["data", "export", "--data", str(photos), "--wds", str(tmp_path / "told")]) == 0
    _, texts = read(tmp_path / "told/wds_photos", "txt")
    assert len(texts) == 8 and {text.splitlines()[1] for text in texts} == {"another"}
    capsys.readouterr()
    for name in ("half", "broken"):
        shutil.copytree(folder, tmp_path / f"out/wds_{name}")
    (tmp_path / "out/wds_half/test/0.tar").unlink()
    (tmp_path / "out/wds_broken/test/0.tar").write_bytes(b"no tar" * 200)
    assert main(["data", "check", "--data_root", str(tmp_path / "out")]) == 1
    output = [line for line in capsys.readouterr().out.splitlines() if " wds_" in line]
    assert [line.split()[:2] for line in output] == [
        ["unusable", "wds_broken"],
        ["incomplete", "wds_half"],
        ["complete", "wds_photos"],
    ]
    assert main(["data", "export", "--wds", str(tmp_path / "none")]) == 2
    assert "data: one of --data and --data_root is needed" in capsys.readouterr().err


class Server(SimpleHTTPRequestHandler):
    "Serves a folder; the tar of wds_cut promises more than it sends."

    def log_message(self, *_):
        pass

    def do_GET(self):
        if not self.path.endswith("wds_cut/test/0.tar"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "5000")
        self.end_headers()
        self.wfile.write(b"too little")


def test_an_address_is_downloaded_and_evaluated(model, pictures, tmp_path, capsys):
    lists = dict(classes=NAMES, templates=PROMPTS)
    labels = [i % 7 for i in range(14)]
    for name in ("wds_one", "wds_cut"):
        write_wds(tmp_path / "web" / name, pictures[:14], labels, **lists)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=tmp_path / "web"))
    Thread(target=server.serve_forever, daemon=True).start()
    base, out = f"http://127.0.0.1:{server.server_port}", tmp_path / "out"
    try:
        values, _ = evaluate(model[1], out, f"{base}/wds_one")
        assert f"{base}/wds_one is downloaded" in capsys.readouterr().out
        again, _ = evaluate(model[1], tmp_path / "local", tmp_path / "web/wds_one")
        assert values == again
        assert evaluate(model[1], out, f"{base}/wds_one")[0] == values
        front = ["evaluate", "--checkpoint", str(model[1]), "--workers", "0", "--out"]
        probe = [*front, str(out), "--data", f"{base}/wds_one", "--probe"]
        assert main(probe) == 3  # the set has no split train
        assert "wds_one: missing. wds_one: not found in" in capsys.readouterr().out
        files = pictures[:14], labels
        write_wds(tmp_path / "web/wds_one", *files, **lists, split="train")
        assert main(probe) == 0
        assert {*pd.read_csv(out / "probes.csv")["validation"]} == {"fifth of train"}
        write_wds(tmp_path / "web/wds_one", *files, **lists, split="val")
        assert main(probe) == 0
        assert {*pd.read_csv(out / "probes.csv")["validation"]} == {"val"}
        capsys.readouterr()
        front += [str(tmp_path / "cut")]
        assert main([*front, "--data", f"{base}/wds_cut"]) == 2
        output = capsys.readouterr().err
        assert "wds_cut/test/0.tar cannot be downloaded: cut short after 10 bytes" in output
        assert not list((tmp_path / "cut").rglob("*.tar"))
    finally:
        server.shutdown()


@pytest.mark.data
@torch.no_grad()
def test_real_photographs(model, tmp_path):
    model, saved = model
    pack = Path(os.environ["HYPVL_DATA"])
    with tarfile.open(pack / "cifar10/cifar10.tar") as tar:
        tar.extractall(tmp_path / "cifar10", filter="data")
    files = sorted(next((tmp_path / "cifar10").rglob("test")).glob("*/*"))
    classes = sorted({file.parent.name for file in files})
    labels = [classes.index(file.parent.name) for file in files]
    sets = tmp_path / "sets"
    cifar = write_wds(sets / "wds_cifar10", files, labels, "classification", classes, PROMPTS)

    with tarfile.open(pack / "flickr8k/text.tar.gz") as tar:
        lines = tar.extractfile(_member(tar, "Flickr8k.token.txt")).read().decode().splitlines()
    texts = {}
    for line in lines:
        name, _, text = line.partition("\t")
        texts.setdefault(name.partition("#")[0], []).append(text)
    chosen = []
    with tarfile.open(pack / "flickr8k/images.tar") as tar:
        for info in tar:
            name = Path(info.name).name
            if name in texts and len(chosen) < 100:
                path = tmp_path / name
                path.write_bytes(tar.extractfile(info).read())
                chosen.append(path)
    captions = [texts[path.name] for path in chosen]
    flickr = write_wds(sets / "wds_flickr8k", chosen, captions, "retrieval")
    values, _ = evaluate(saved, tmp_path / "out", cifar, flickr)

    shown, target = read(cifar, "cls")
    scores = class_scores(model, cifar, shown)
    target = torch.tensor([int(label) for label in target])
    assert (len(target), np.bincount(target).tolist()) == (600, [60] * 10)
    for metric, value in classification_rules(scores, target).items():
        assert values["wds_cifar10", metric] == pytest.approx(value, abs=1e-9), metric
    shown, captions = read(flickr, "txt")
    captions = [text.splitlines() for text in captions]
    owner = torch.tensor([i for i, of_image in enumerate(captions) for _ in of_image])
    flat = text_features(model, [text for of_image in captions for text in of_image])
    for metric, value in retrieval_rules(flat @ image_features(model, shown).T, owner).items():
        assert values["wds_flickr8k", metric] == pytest.approx(value, abs=1e-9), metric


def _member(tar, ending):
    return next(name for name in tar.getnames() if name.endswith(ending))
