"""Files that are broken, cut, of another version, or made to do harm."""

import io
import json
import logging
import os
import shutil
import sqlite3
import struct
import threading
import time
import zipfile
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from PIL import Image

from hypvl.config import load_config
from hypvl.data.batches import Loader
from hypvl.data.grit.prepare import prepare
from hypvl.data.grit.shard_dataset import ShardDataset
from hypvl.data.grit.shards import Faults, TooManyFaults, read_shard, write_shard
from hypvl.data.jobs import write_once
from hypvl.data.records import read_json
from hypvl.geometry.spaces import Lorentz
from hypvl.models.adapters import find_tower
from hypvl.models.hub import read_checkpoint, read_model_config
from hypvl.papers.h2em.metadata import convert_metadata, load_records
from hypvl.papers.recipe_names import read_recipe
from hypvl.search import build_index, load_index, save_index
from hypvl.search.gallery import Refused, Store, read_annotations, read_picture
from hypvl.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from hypvl.training.config import TrainConfig


def jpeg(side=40):
    "A picture."
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 30)).save(buffer, "JPEG")
    return buffer.getvalue()


def sample(number):
    "A training sample with one box."
    return {
        "__key__": f"{number:05d}",
        "child.jpg": jpeg(),
        "child.txt": "a cat",
        "numparents.txt": "1",
        "parent000.jpg": jpeg(),
        "parent000.txt": "cat",
    }


def tokens(texts):
    return torch.zeros(len(texts), 4, dtype=torch.long)


@pytest.fixture
def shards(tmp_path):
    "Three shards of eight samples."
    names = []
    for i in range(3):
        names.append(tmp_path / f"{i:05d}.tar")
        write_shard(names[-1], [sample(8 * i + j) for j in range(8)])
    return names


# --- shards that vanish in the middle of an epoch


def loader(shards, batch_size=1, **settings):
    "One pass of 32 pixels."
    return Loader(ShardDataset(shards, tokens, 32, train=False, **settings), batch_size)


@pytest.mark.parametrize("vanished", [1, 2])
def test_a_shard_that_vanishes_costs_its_samples_and_is_named(shards, vanished, caplog):
    reading = loader(shards, 4, max_bad=1.0)
    found, batches = [], iter(reading)
    found += next(batches)["key"]
    shards[vanished].unlink()
    with caplog.at_level(logging.WARNING):
        for batch in batches:
            found += batch["key"]
    lost = {f"{8 * vanished + j:05d}" for j in range(8)}
    assert set(found) == {f"{i:05d}" for i in range(24)} - lost
    assert reading.faults == {"broken shard": 8} and shards[vanished].name in caplog.text


@pytest.mark.parametrize("vanished", [1, 2])
def test_a_command_whose_shard_is_missing_costs_its_samples(shards, vanished):
    names = [f"pipe:cat {name}" for name in shards]
    shards[vanished].unlink()  # a command is not looked for beforehand
    faults, found = Faults(), []
    for name in names:
        found += [raw["__key__"] for raw in read_shard(name, faults.add)]
    lost = {f"{8 * vanished + j:05d}" for j in range(8)}
    assert set(found) == {f"{i:05d}" for i in range(24)} - lost
    assert faults.counts == {"broken shard": 1} and shards[vanished].name in faults.last
    with pytest.raises(TooManyFaults, match="1 x broken shard"):
        faults.check(final=True)


class Quiet(SimpleHTTPRequestHandler):
    "Gives out files and writes no log."

    def log_message(self, *_):
        "Nothing."


@pytest.mark.skipif(shutil.which("curl") is None, reason="webdataset reads addresses by curl")
def test_shards_come_from_a_server_and_one_that_it_lacks_is_named(shards, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names = [f"http://127.0.0.1:{server.server_port}/{shard.name}" for shard in shards]
    found = [raw["__key__"] for name in names for raw in read_shard(name)]
    assert sorted(found) == [f"{i:05d}" for i in range(24)]
    shards[1].unlink()
    faults, found = Faults(), []
    for name in names:
        found += [raw["__key__"] for raw in read_shard(name, faults.add)]
    assert sorted(found) == [f"{i:05d}" for i in (*range(8), *range(16, 24))]
    assert faults.counts == {"broken shard": 1} and shards[1].name in faults.last
    server.shutdown()
    server.server_close()


# --- pickles that run code


class Malicious:
    "Makes a folder when it is unpickled."

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def read_state(path):
    "The state of a checkpoint whose sizes fit."
    folder = save_checkpoint(path.parent / "checkpoints", 1, {"model": {"w": torch.ones(1)}}, {})
    content = path.read_bytes()
    (folder / "state.pt").write_bytes(content)
    meta = json.loads((folder / "meta.json").read_text())
    meta["sizes"]["state.pt"] = len(content)
    (folder / "meta.json").write_text(json.dumps(meta))
    return load_checkpoint(folder)


READERS = {
    "state of a run": read_state,
    "published checkpoint": read_checkpoint,
    "weights of a tower": lambda path: find_tower(path, "image_tower"),
    "records of compositions": load_records,
    "rewriting of such records": lambda path: convert_metadata(path),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_code_in_a_pickle_is_not_run(tmp_path, reader, wrapped, zipped):
    path, owned = tmp_path / "evil.pt", tmp_path / "owned"
    content = Malicious(owned)
    if wrapped:
        content = {"model": {"w": torch.ones(2), "more": content}}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(Exception) as e:
        READERS[reader](path)
    assert not owned.exists(), reader
    words = str(e.value)
    known = ("mkdir", "tensor", "may hold code", "Weights only", "weights_only")
    assert any(one in words for one in known), words


@pytest.mark.parametrize("reader", READERS)
def test_an_archive_that_is_compressed_is_refused(tmp_path, reader):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"]" * 2**22 + b".")
        archive.writestr("archive/version", b"3\n")
    with pytest.raises(Exception) as e:
        READERS[reader](path)
    words, error = "", e.value
    while error is not None:
        words, error = words + str(error), error.__cause__ or error.__context__
    assert "is compressed: " in words, words


def read_index(path):
    "An index whose facts are the file."
    folder = path.parent / "index"
    folder.mkdir()
    shutil.copy(path, folder / "index.json")
    return load_index(folder, Lorentz(4))


def read_meta(path):
    "A checkpoint whose facts are the file."
    folder = save_checkpoint(path.parent / "checkpoints", 1, {"model": {"w": torch.ones(1)}}, {})
    shutil.copy(path, folder / "meta.json")
    return load_checkpoint(folder)


JSON_READERS = {
    "config": lambda path: load_config(TrainConfig, path),
    "description of a model": read_model_config,
    "boxes of a gallery": read_annotations,
    "recipe": read_recipe,
    "records": read_json,
    "index": read_index,
    "checkpoint": read_meta,
}


@pytest.mark.parametrize("reader", JSON_READERS)
@pytest.mark.parametrize("signs", ["[]", ('{"a":', "}")])
def test_deeply_nested_json_is_an_error_that_names_the_file(tmp_path, reader, signs):
    path = tmp_path / "deep.json"
    path.write_text(signs[0] * 100_000 + ("1" if len(signs[0]) > 1 else "") + signs[1] * 100_000)
    with pytest.raises((ValueError, OSError), match="deep.json|index.json|checkpoint is damaged"):
        JSON_READERS[reader](path)


# --- names that lead out of a folder, pictures that fill the memory


@pytest.mark.parametrize("key", ["../evil", "/evil", "a/../../evil"])
def test_a_name_that_leads_out_of_the_folder_is_left_out(tmp_path, key, caplog):
    write_shard(tmp_path / "0.tar", [sample(0), sample(1) | {"__key__": key}, sample(2)])
    reading = loader(tmp_path / "0.tar", max_bad=1.0)
    assert [k for batch in reading for k in batch["key"]] == ["00000", "00002"]
    assert "leads out of the folder" in caplog.text


def bomb(side):
    "A PNG of few bytes that claims to be `side` pixels wide and high."
    head = b"IHDR" + struct.pack(">2I5B", side, side, 1, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + chunk + b"\0\0\0\0IDAT"


@pytest.mark.parametrize("side", [8_000, 20_000, 60_000])
def test_a_picture_that_would_fill_the_memory_is_refused_by_its_header(tmp_path, side):
    with pytest.raises(Refused, match="too large|broken"):
        read_picture(bomb(side))
    (tmp_path / "raw").mkdir()
    meta = json.dumps(dict(caption="a cat", noun_chunks=[[0, 5, 0, 0, 1, 1, 1]], ref_exps=[]))
    raw = [{"__key__": "0", "jpg": bomb(side), "json": meta}]
    raw.append({"__key__": "1", "jpg": jpeg(100), "json": meta})
    write_shard(tmp_path / "raw/0.tar", raw)
    counts = prepare(tmp_path / "raw", tmp_path / "out", progress=False, max_bad=1.0)
    assert counts["samples: kept"] == 1 and counts["faults: broken image"] == 1
    write_shard(tmp_path / "0.tar", [sample(0), sample(1) | {"child.jpg": bomb(side)}])
    reading = loader(tmp_path / "0.tar", max_bad=1.0)
    assert [k for batch in reading for k in batch["key"]] == ["00000"]
    assert reading.faults == {"broken image": 1}


# --- preparations side by side, and folders of another version


def fill(folder, number):
    "One of several preparations of a folder: the first one writes, slowly."
    with write_once(folder, {"seed": 1}) as missing:
        if missing:
            (folder / f"writer_{number}").touch()
            for i in range(20):
                (folder / f"{i}.bin").write_bytes(bytes([number % 256]) * 1000)
                time.sleep(0.01)
                if number < 0:
                    os._exit(9)  # killed after its first file


def test_of_preparations_side_by_side_one_writes_and_the_others_wait(tmp_path):
    context = get_context("forkserver")
    dead = context.Process(target=fill, args=(tmp_path / "data", -1))
    dead.start()
    dead.join()
    processes = [context.Process(target=fill, args=(tmp_path / "data", i)) for i in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    (writer,) = [p for p in (tmp_path / "data").glob("writer_*") if not p.name.endswith("_-1")]
    number = int(writer.name.removeprefix("writer_"))
    for i in range(20):
        assert (tmp_path / f"data/{i}.bin").read_bytes() == bytes([number]) * 1000


def test_a_folder_that_was_made_otherwise_is_refused(tmp_path):
    fill(tmp_path / "data", 0)
    note = tmp_path / "data/made_of.json"
    for content in ({"config": "of another version"}, {"version": 7}):
        note.write_text(json.dumps(content))
        before = sorted((tmp_path / "data").iterdir())
        with pytest.raises(ValueError, match="'data' holds other data; choose another one"):
            fill(tmp_path / "data", 1)
        assert sorted((tmp_path / "data").iterdir()) == before


def test_an_index_of_another_version_is_refused(tmp_path):
    geometry = Lorentz(4)
    points = geometry.lift(torch.randn(20, 4)).detach()
    save_index(build_index(geometry, points), tmp_path / "index")
    about = json.loads((tmp_path / "index/index.json").read_text())
    (tmp_path / "index/index.json").write_text(json.dumps(about | {"version": 99}))
    with pytest.raises(ValueError, match="is of version 99, this code reads"):
        load_index(tmp_path / "index", geometry)


def test_a_store_of_another_version_is_refused(tmp_path):
    Store(tmp_path / "mine.db")
    Store(tmp_path / "mine.db")  # again
    for name, say in {"later": "pragma user_version = 99", "other": "create table a (b)"}.items():
        base = sqlite3.connect(tmp_path / f"{name}.db")
        base.execute(say)
        base.commit()
        base.close()
        with pytest.raises(ValueError, match=f"cache: '{name}.db' is of version .*; delete it"):
            Store(tmp_path / f"{name}.db")
    (tmp_path / "text.db").write_text("no database")
    with pytest.raises(ValueError, match="cache: 'text.db' is no store"):
        Store(tmp_path / "text.db")


def test_an_array_with_objects_is_not_unpickled(tmp_path):
    path, owned = tmp_path / "rows.npy", tmp_path / "owned"
    np.save(path, np.array([Malicious(owned)], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        np.load(path, mmap_mode="r")  # as indices are read
    assert not owned.exists()


def test_a_folder_of_checkpoints_is_not_fooled_by_links(tmp_path):
    folder = tmp_path / "checkpoints"
    save_checkpoint(folder, 3, {"model": {"w": torch.ones(2)}}, {})
    (folder / "latest").unlink()
    (folder / "latest").symlink_to(tmp_path)  # somebody else's
    assert latest_checkpoint(folder).name == "step_0000003"
    save_checkpoint(folder, 4, {"model": {"w": torch.ones(2)}}, {}, keep=1)
    assert tmp_path.is_dir() and (folder / "latest").resolve().name == "step_0000004"
