"""Downloads of published checkpoints from a server on this machine.

Whole, cut, changed, slow, redirected, killed in the middle, with a wrong hash, gated, and from a
repository laid out as the hub's.
"""

import hashlib
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from hypvl.models import create_model, export_official
from hypvl.models.published import fetch_published, find_published, published_place

COMMIT = "5ed05c5c128248e9521d767ce443ebe10f72df07"


class Files(BaseHTTPRequestHandler):
    "Serves `server.content`, in the way that the path says; notes every request."

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        server = self.server
        server.requests.append((self.command, self.path, self.headers.get("Range")))
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/moved"))
            self.end_headers()
            return
        if self.path.startswith("/gated/"):
            self.send_response(401)
            self.send_header("X-Error-Code", "GatedRepo")
            self.end_headers()
            return
        if self.path.startswith("/missing/"):
            self.send_error(404)
            return
        self.send(server.content, server.etag, body)

    def send(self, content, etag, body):
        start, asked = 0, self.headers.get("Range")
        same = self.headers.get("If-Range") in (None, etag)
        if asked and same:
            start = int(asked.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", etag)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not body:
            return
        rest = content[start:]
        if self.path.startswith("/cut/") and self.server.cuts:
            self.server.cuts -= 1
            self.wfile.write(rest[: len(rest) // 2])
            self.close_connection = True
            return
        if not self.path.startswith("/slow/"):
            self.wfile.write(rest)
            return
        for at in range(0, len(rest), self.server.piece):
            self.wfile.write(rest[at : at + self.server.piece])
            self.wfile.flush()
            time.sleep(0.05)


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    server.content, server.etag = bytes(range(256)) * 2000, '"first"'
    server.requests, server.cuts, server.piece = [], 0, 200_000
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    "The folders of torch and of the hub, empty."
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 8_000)
    return tmp_path


def row_at(address, **changes):
    return replace(find_published("meru_vit_s", "redcaps"), address=address, **changes)


def gets(server):
    return [(path, asked) for command, path, asked in server.requests if command == "GET"]


@pytest.mark.parametrize("way", ["whole", "slow", "moved/whole"])
def test_download(server, way, capsys):
    row = row_at(f"{server.address}/{way}/meru.pth")
    place = fetch_published(row)
    assert place == published_place(row) and place.read_bytes() == server.content
    output = capsys.readouterr().out
    assert "licence CC BY-NC; Desai et al. (2023)" in output and row.address in output
    assert "checked against the SHA-256 of the first download; none is published" in output
    seen = len(server.requests)
    assert fetch_published(row) == place and len(server.requests) == seen  # no network again
    assert "licence" not in capsys.readouterr().out
    assert not list(place.parent.glob("*.part"))


def test_cut_connection_is_resumed(server):
    server.cuts = 2
    place = fetch_published(row_at(f"{server.address}/cut/meru.pth"))
    assert place.read_bytes() == server.content
    half = len(server.content) // 2
    assert [asked for _, asked in gets(server)] == [
        None,
        f"bytes={half}-",
        f"bytes={half * 3 // 2}-",
    ]


def test_killed_download_is_resumed(server, cache):
    server.piece = 20_000
    row = row_at(f"{server.address}/slow/meru.pth")
    program = (
        "import torch, huggingface_hub.constants\n"
        "huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 8_000\n"
        f"torch.hub.get_dir = lambda: {str(cache / 'torch')!r}\n"
        "from dataclasses import replace\n"
        "from hypvl.models.published import fetch_published, find_published\n"
        f"row = replace(find_published('meru_vit_s', 'redcaps'), address={row.address!r})\n"
        "fetch_published(row)\n"
    )
    folder = published_place(row).parent
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    started = time.monotonic()
    while not any(part.stat().st_size > 40_000 for part in folder.glob("*.part")):
        assert time.monotonic() - started < 120 and child.poll() is None
        time.sleep(0.02)
    child.kill()
    child.wait()
    (part,) = folder.glob("*.part")
    done, server.piece = part.stat().st_size, 200_000
    assert 0 < done < len(server.content)
    assert fetch_published(row).read_bytes() == server.content
    assert gets(server)[-1][1] == f"bytes={done}-"


def test_changed_file_starts_anew(server):
    row = row_at(f"{server.address}/whole/meru.pth")
    place = published_place(row)
    place.parent.mkdir(parents=True)
    tag = hashlib.sha256(server.etag.encode()).hexdigest()[:8]
    (place.parent / f"{place.name}.{tag}.part").write_bytes(server.content[:1000])
    server.content, server.etag = b"other" * 3000, '"second"'
    assert fetch_published(row).read_bytes() == server.content
    assert gets(server)[-1][1] is None
    place.write_bytes(b"damaged")  # the hash of the first download is remembered
    with pytest.raises(ValueError, match=r"the SHA-256 of '.*meru.pth' is .*delete it"):
        fetch_published(row)


def test_wrong_hash(server):
    right = hashlib.sha256(server.content).hexdigest()
    assert fetch_published(row_at(f"{server.address}/whole/a.pth", sha256=right)).is_file()
    with pytest.raises(ValueError, match=f"is {right}, expected {'0' * 64}"):
        fetch_published(row_at(f"{server.address}/whole/b.pth", sha256="0" * 64))


@pytest.mark.parametrize("way", ["missing", "closed"])
def test_unreachable(server, way):
    address = "http://127.0.0.1:9" if way == "closed" else server.address
    row = row_at(f"{address}/{way}/meru.pth")
    message = r"meru_vit_s \(redcaps\) was not downloaded: .*put it at '.*redcaps/meru.pth'"
    with pytest.raises(ConnectionError, match=message):
        fetch_published(row)
    place = published_place(row)
    place.write_bytes(b"by hand")
    assert fetch_published(row) == place


def test_full_disk(server, monkeypatch):
    row = row_at(f"{server.address}/whole/meru.pth")

    class Usage:
        free = 10

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage)
    with pytest.raises(ConnectionError, match="no space left on the disk; make room; try again"):
        fetch_published(row)
    assert gets(server) == []


def on_hub(server, monkeypatch, prefix=""):
    "Calls of the hub's library go to this server; the row's address stays the hub's."
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address + prefix)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        server.address + prefix + "/{repo_id}/resolve/{revision}/{filename}",
    )


def test_hub_file(server, monkeypatch, capsys):
    on_hub(server, monkeypatch)
    server.etag = f'"{hashlib.sha256(server.content).hexdigest()}"'
    row = find_published("uncha_vit_s")
    path = fetch_published(row)
    assert path.read_bytes() == server.content and "licence not stated" in capsys.readouterr().out
    seen = len(server.requests)
    assert fetch_published(row) == path and len(server.requests) == seen
    path.resolve().write_bytes(b"damaged")  # its name in the cache is its hash
    with pytest.raises(ValueError, match="the SHA-256 of"):
        fetch_published(row)


def test_gated_hub_file(server, monkeypatch):
    on_hub(server, monkeypatch, "/gated")
    with pytest.raises(
        (PermissionError, ConnectionError), match="put it at '.*uncha_vit_s.pth'"
    ) as e:
        fetch_published(find_published("uncha_vit_s"))
    assert e.type is PermissionError and "hf auth login" in str(e.value)


def test_create_model(server, tmp_path, monkeypatch):
    "From the name to a model that scores, through a file of the published layout."
    heads = {"vision.heads": 2, "text.heads": 2}  # of 64 dimensions, as in published files
    small = create_model("meru_tiny_vit", seed=0, **heads).eval()
    file = export_official(small, tmp_path / "meru.pth")
    server.content = file.read_bytes()
    row = row_at(f"{server.address}/whole/meru.pth")
    find = "hypvl.models.registry.find_published"
    monkeypatch.setattr(find, lambda name, tag: row)
    with pytest.raises(ValueError, match="is not meru_vit_s .redcaps.: image_tower.*_small_16"):
        create_model("meru_vit_s", pretrained="redcaps")
    monkeypatch.setattr(find, lambda name, tag: replace(row, architecture="meru_tiny_vit"))
    model = create_model("meru_vit_s", pretrained="redcaps")
    images = torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.encode_image(images, True), small.encode_image(images, True))
    assert model.official.family == "meru" and not model.training
