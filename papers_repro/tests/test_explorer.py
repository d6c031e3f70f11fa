"""The explorer as it is served: its endpoint, its bounds, and the page in a browser."""

import http.client
import io
import json
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import uvicorn
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

from hypvl.models import create_model
from hypvl.search.explorer_page import explore, make_app
from hypvl.search.explorer_queries import Explorer, View, find, from_address, query_point
from hypvl.search.gallery import WHOLE, FolderPictures, Store, WorldPictures, open_gallery

SECRET = "what lies outside is nobody's business"


class Served:
    "An explorer behind a port of this machine."

    def __init__(self, explorer):
        self.explorer = explorer
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = uvicorn.Config(
            make_app(explorer), port=self.port, log_level="error", timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.05)
        self.url = f"http://127.0.0.1:{self.port}"

    def get(self, path, **headers):
        "Status, headers and body; the path is sent as it is written."
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        link.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            link.putheader(name, value)
        link.endheaders()
        answer = link.getresponse()
        body = answer.read()
        link.close()
        return answer.status, dict(answer.getheaders()), body

    def close(self):
        self.server.should_exit = True
        self.thread.join(10)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    "The synthetic dataset, seen by the shipped model and by a product that has learnt nothing."
    store = Store(tmp_path_factory.mktemp("cache") / "explorer.sqlite")
    gallery = open_gallery(WorldPictures(30, workers=0), store)
    models = {"clip_world": partial(create_model, "clip_world", pretrained=True)}
    models["phyclip"] = lambda: create_model("phyclip_tiny_s", seed=0).eval()
    served = Served(Explorer(gallery, models))
    yield served
    served.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "Photographs beside a file that is none of the explorer's business, and a link to it."
    place = tmp_path_factory.mktemp("photos")
    (place / "in").mkdir()
    (place / "secret.txt").write_text(SECRET)
    for name in ("red", "blue", "green"):
        Image.new("RGB", (40, 30), name).save(place / "in" / f"{name}.png")
    Image.new("RGB", (8, 8), "black").save(place / "outside.png")
    (place / "in" / "link.png").symlink_to(place / "outside.png")
    (place / "in" / "text.jpg").symlink_to(place / "secret.txt")
    store = Store(tmp_path_factory.mktemp("cache") / "explorer.sqlite")
    gallery = open_gallery(FolderPictures(place / "in"), store)
    model = partial(create_model, "clip_world", pretrained=True)
    served = Served(Explorer(gallery, {"clip_world": model}))
    served.place = place
    yield served
    served.close()


def picture(path, image, **how):
    image.save(path, **how)
    return str(path)


def test_the_endpoint_finds_what_the_functions_find(world, tmp_path):
    searcher = world.explorer.searcher()
    gallery = searcher.gallery
    scene = picture(tmp_path / "scene.png", gallery.load(0, WHOLE))
    ask = partial(Client(world.url, verbose=False).predict, api_name="/search")
    hits = ask(handle_file(scene), "nearest", 5, 0)
    here = find(searcher, View(k=5), searcher.points[0]).hits
    assert [hit["key"] for hit in hits] == here["key"].tolist()
    assert hits[0]["picture"] == "train 0" and hits[0]["distance"] < 1e-3
    limit = hits[3]["distance"] + 1e-6
    within = ask(handle_file(scene), "threshold", 50, limit)
    assert {hit["key"] for hit in within} == {hit["key"] for hit in hits[:4]}
    norms = [hit["norm"] for hit in within]
    assert norms == sorted(norms)  # general before specific
    assert ask(handle_file(scene), "threshold", 5, -1.0) == []
    with pytest.raises(AppError, match="Did you mean 'nearest'"):
        ask(handle_file(scene), "nearst", 5, 0)
    with pytest.raises(AppError, match="k must be a whole number from 1 to 200, got None"):
        ask(handle_file(scene), "nearest", None)
    with pytest.raises(AppError, match="score: unit sphere, 64 dimensions has no angle"):
        ask(handle_file(scene), "nearest", 5, None, "angle", "parts")


def test_uploads_are_bounded(world, tmp_path):
    red, blue = Image.new("RGB", (9, 9), "red"), Image.new("RGB", (9, 9), "blue")
    claims = io.BytesIO()
    Image.new("1", (9000, 9000)).save(claims, "PNG")  # 10 kB on disk, 81 million pixels
    (tmp_path / "bomb.png").write_bytes(claims.getvalue())
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    (tmp_path / "drawing.png").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    picture(tmp_path / "film.webp", red, save_all=True, append_images=[blue], duration=50)
    picture(tmp_path / "film.gif", red, save_all=True, append_images=[blue])
    (tmp_path / "heavy.png").write_bytes(bytes(21_000_000))
    ask = partial(Client(world.url, verbose=False).predict, api_name="/search")
    for name, why in (
        ("bomb.png", "81,000,000 pixels"),
        ("cut.jpg", "broken"),
        ("drawing.png", "broken"),
        ("film.webp", "animated: 2 frames"),
        ("film.gif", "broken: no readable picture .JPEG, PNG, WEBP"),
    ):
        with pytest.raises(AppError, match=why):
            ask(handle_file(tmp_path / name), "nearest", 5, 0)
    with pytest.raises(Exception, match="413|[Ff]ile size|[Tt]oo [Ll]arge"):
        ask(handle_file(tmp_path / "heavy.png"), "nearest", 5, 0)


def test_no_file_leaves_the_machine(folder):
    named = [picture.name for picture in folder.explorer.gallery.pictures]
    assert sorted(named) == ["blue.png", "green.png", "red.png"]
    reasons = dict(folder.explorer.gallery.faults)
    assert reasons["link.png"] == reasons["text.jpg"] == "link: it leads out of the folder"
    inside, secret = folder.place / "in", folder.place / "secret.txt"
    up = "%2e%2e/" * 12
    tries = [str(secret), f"{inside}/../secret.txt", f"{inside}/%2e%2e/secret.txt"]
    tries += [f"{inside}/..%2fsecret.txt", f"{inside}/%252e%252e%252fsecret.txt"]
    tries += [f"{inside}/text.jpg", f"{inside}/link.png", f"{inside}/red.png", f"{up}{secret}"]
    for route in ("/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/", "/"):
        for path in tries:
            status, _, body = folder.get(route + path)
            assert SECRET.encode() not in body, route + path
            assert not body.startswith(b"\x89PNG"), route + path
            assert status >= 300 or b"<html" in body, (status, route + path)
    ask = Client(folder.url, verbose=False)
    stolen = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
    with pytest.raises(Exception) as refused:
        ask.predict(stolen, "nearest", 5, 0, api_name="/search")
    assert SECRET not in str(refused.value)


def test_only_this_machine_is_answered_and_only_it_is_asked(world):
    status, headers, body = world.get("/")
    assert status == 200 and b"gradio" in body
    policy = {k.lower(): v for k, v in headers.items()}["content-security-policy"]
    assert "default-src 'self'" in policy and "http" not in policy
    assert world.get("/", Host="evil.example")[0] == 400
    status, _, body = world.get("/gradio_api/info")
    described = json.loads(body)["named_endpoints"]
    assert [*described] == ["/search"]
    names = [parameter["label"] for parameter in described["/search"]["parameters"]]
    assert names == ["image", "mode", "k", "threshold", "score", "direction"]
    page = json.loads(world.get("/config")[2])
    assert page["analytics_enabled"] is False
    assert explore.__defaults__[explore.__code__.co_varnames.index("host")] == "127.0.0.1"


# --- in a browser


def chromium():
    "A Chromium of the system, or the one that Playwright brought."
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return shutil.which(name)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    if not Path(path).exists():
        pytest.fail("no browser was found; `apt-get install chromium` brings one")
    return path


@contextmanager
def open_tab(url):
    "A new tab; whatever it asks of another address is blocked and noted."
    program = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, accept_downloads=True
        )
        context.set_default_timeout(180_000)
        asked, wrong = [], []

        def only_here(route):
            if route.request.url.startswith((url, "data:", "blob:")):
                return route.continue_()
            asked.append(route.request.url)
            return route.abort()

        context.route("**/*", only_here)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(url)
        page.wait_for_selector("#answers .card")
        yield page
        browser.close()
        assert (asked, wrong) == ([], [])


@pytest.fixture
def tab(world):
    with open_tab(world.url) as page:
        yield page


def view_of(page, **wanted):
    "The view in the address, once it is what is wanted."
    for _ in range(300):
        view = from_address(page.url.partition("?")[2])
        if all(getattr(view, name) == value for name, value in wanted.items()):
            return view
        page.wait_for_timeout(100)
    raise AssertionError(f"{view} is not {wanted}")


def keys(page):
    cards = page.locator("#answers .card")
    return [cards.nth(i).get_attribute("data-key") for i in range(cards.count())]


def choose(page, place):
    "Click on a card; its key, once the page asks with it."
    key = keys(page)[place]
    page.locator("#answers .card").nth(place).click()
    view_of(page, item=key)
    return key


@pytest.mark.chromium
def test_choose_draw_and_go_back(world, tab):
    searcher = world.explorer.searcher()
    first = choose(tab, 2)
    row = searcher.gallery.rows[first]
    tab.wait_for_function("document.querySelectorAll('#answers .card').length == 12")
    expected = find(searcher, View(), searcher.points[row], row).hits["key"].tolist()
    assert keys(tab) == expected
    frame = tab.locator("#picture .draw .frame").bounding_box()
    x, y, wide, high = (frame[name] for name in ("x", "y", "width", "height"))
    tab.mouse.click(x + 0.5 * wide, y + 0.5 * high)  # no box
    assert tab.locator("#picture .box").count() == 0
    tab.mouse.move(x + 0.25 * wide, y + 0.25 * high)
    tab.mouse.down()
    tab.mouse.move(x + 0.75 * wide, y + 0.5 * high, steps=4)
    tab.mouse.up()
    for _ in range(300):
        if "box=" in tab.url:
            break
        tab.wait_for_timeout(100)
    view = view_of(tab, item=first)
    assert view.box == pytest.approx((0.25, 0.25, 0.75, 0.5), abs=0.02)
    tab.click("#back")
    view_of(tab, item=first, box=())
    tab.reload()  # the address is the state
    tab.wait_for_selector("#answers .card")
    assert keys(tab) == expected
    tab.locator("#show").get_by_role("radio", name="Results").check()
    second = choose(tab, 5)
    tab.go_back()  # the browser's way back is one of the page's
    view_of(tab, item=first)
    tab.wait_for_function(
        f"document.querySelector('#answers .card').dataset.key == '{expected[0]}'"
    )
    tab.go_forward()
    row = searcher.gallery.rows[second]
    shows(tab, find(searcher, View(), searcher.points[row], row).hits["key"].tolist())
    tab.get_by_role("button", name="Other pictures").click()
    view_of(tab, item=second, show="pictures")
    tab.click("#back")  # one way back, the browser's and the page's
    view_of(tab, item=second, show="hits")
    tab.click("#back")
    view_of(tab, item=first)
    tab.go_forward()
    view_of(tab, item=second)


@pytest.mark.chromium
def test_the_first_page_offers_only_what_can_be_done(world, tab):
    chosen = tab.locator("#show").get_by_role("radio", name="Choose a picture")
    assert chosen.is_checked()
    assert tab.get_by_role("button", name="Save CSV").count() == 0
    assert "Draw a box" not in tab.inner_text("#asks")
    offered = tab.locator("#show label").all_inner_texts()
    assert "Factors" not in offered  # the model has one
    tab.locator("#answers .card").nth(1).focus()
    tab.keyboard.press("Enter")
    tab.wait_for_function("document.querySelectorAll('#answers .card').length == 12")
    tab.wait_for_function("document.activeElement.matches('#answers .card')")
    assert tab.get_by_role("button", name="Save CSV").count() == 1
    assert "Draw a box" in tab.inner_text("#asks")
    tab.evaluate("scrollTo(0, document.body.scrollHeight)")  # to the controls below
    tab.wait_for_timeout(300)
    assert (
        0 <= tab.locator("#status").bounding_box()["y"] < 200
    )  # what is said stays in object_scale


@pytest.mark.chromium
def test_type_sort_and_follow_to_the_root(world, tab):
    words = tab.locator("#text input, #text textarea")
    words.fill("a photo of a dog")
    words.press("Enter")
    view_of(tab, text="a photo of a dog")
    tab.wait_for_selector("#answers .card")
    by_distance = keys(tab)
    tab.locator("#score").get_by_role("radio", name="cosine").check()
    view_of(tab, score="cosine")
    tab.wait_for_timeout(500)
    assert sorted(keys(tab)) == sorted(by_distance)  # on a sphere both rank alike
    tab.locator("#show").get_by_role("radio", name="Traversal to the root").check()
    view_of(tab, show="way")
    tab.wait_for_selector("#answers .strip .card")
    tab.locator("#show").get_by_role("radio", name="Map").check()
    tab.wait_for_selector("#answers svg .hit")
    spot = tab.locator("#answers svg .hit").first
    key = spot.get_attribute("data-key")
    spot.focus()
    tab.keyboard.press("Enter")  # the map is reached without a mouse
    view_of(tab, item=key, text="")
    words.fill("a zygote")
    words.press("Enter")
    tab.wait_for_selector("#status .wrong")
    output = tab.inner_text("#status")
    assert "zy" in output and "It reads, for example: " in output
    assert words.input_value() == "a zygote"  # what was typed can be mended


@pytest.mark.chromium
def test_two_models_factors_and_exports(world, tab):
    key = choose(tab, 1)
    tab.goto(f"{world.url}/?item={key}&beside=phyclip&k=4")
    tab.wait_for_selector("#answers .beside")
    assert tab.locator("#answers h3").all_inner_texts() == ["clip_world", "phyclip"]
    tab.goto(f"{world.url}/?item={key}&model=phyclip&show=factors")
    tab.wait_for_selector("#answers .factors")
    assert tab.locator("#answers .factors button").count() == 8
    tab.goto(f"{world.url}/?item={key}&model=phyclip&score=angle&direction=wholes&k=4")
    tab.wait_for_selector("#answers .card")
    saved = {}
    for kind in ("CSV", "JSON"):
        with tab.expect_download() as download:
            tab.get_by_role("button", name=f"Save {kind}").click()
        saved[kind] = Path(download.value.path()).read_bytes()
    assert len(saved["CSV"].decode().splitlines()) == 5
    output = json.loads(saved["JSON"])
    assert from_address(output["address"]).direction == "wholes"
    assert [found["model"] for found in output["lists"]] == ["phyclip"]
    assert [hit["key"] for hit in output["lists"][0]["hits"]] == keys(tab)


def shows(page, wanted):
    "Wait until the cards are these."
    for _ in range(300):
        if keys(page) == wanted:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{keys(page)} are not {wanted}")


@pytest.mark.chromium
def test_hide_what_is_in_the_picture_and_what_has_the_label(world, tab):
    searcher = world.explorer.searcher()
    gallery = searcher.gallery
    row = int((gallery.items["level"] == "object").to_numpy().nonzero()[0][0])
    key, picture_of = gallery.items["key"][row], gallery.items["picture"]
    tab.goto(f"{world.url}/?item={key}&k=40")
    shows(tab, find(searcher, View(k=40), searcher.points[row], row).hits["key"].tolist())
    assert picture_of[[gallery.rows[k] for k in keys(tab)]].eq(picture_of[row]).any()
    tab.get_by_role("button", name="Filters").click()
    for words, view in (
        ("hide items of the same picture", View(k=40, hide_image=True)),
        ("hide the same label", View(k=40, hide_image=True, hide_label=True)),
    ):
        tab.get_by_label(words).check()
        shows(tab, find(searcher, view, searcher.points[row], row).hits["key"].tolist())
    left = gallery.items.iloc[[gallery.rows[k] for k in keys(tab)]]
    assert len(left) and not left["picture"].eq(picture_of[row]).any()
    assert not left["label"].eq(gallery.items["label"][row]).any()


@pytest.mark.chromium
def test_two_texts_ask_a_product_together(world, tab):
    searcher = world.explorer.searcher("phyclip")
    tab.goto(f"{world.url}/?model=phyclip&text=a+dog")
    one = query_point(searcher, View(text="a dog")).point
    shows(tab, find(searcher, View(), one).hits["key"].tolist())
    second = tab.get_by_label("second text (each factor takes the larger norm)")
    second.fill("a red car")
    second.press("Enter")
    view_of(tab, text="a dog", also="a red car")
    other = query_point(searcher, View(text="a red car")).point
    first, second = (point.view(8, -1) for point in (one, other))  # eight factors
    larger = torch.where(first.norm(dim=1) >= second.norm(dim=1), 1.0, 0.0)[:, None]
    both = (larger * first + (1 - larger) * second).flatten()
    shows(tab, find(searcher, View(), both).hits["key"].tolist())


@pytest.mark.chromium
def test_new_pictures_are_seen(folder):
    with open_tab(folder.url) as page:
        before = page.locator("#answers .card").count()
        fresh = Image.new("RGB", (40, 30), "yellow")
        fresh.save(folder.place / "in" / "yellow.png")
        page.get_by_role("button", name="Look for new pictures").click()
        page.wait_for_function(
            f"document.querySelectorAll('#answers .card').length == {before + 1}"
        )
        names = page.locator("#answers .file").all_inner_texts()
        assert "yellow.png" in names
        (folder.place / "in" / "yellow.png").unlink()
        page.get_by_role("button", name="Look for new pictures").click()
        page.wait_for_function(f"document.querySelectorAll('#answers .card').length == {before}")


@pytest.mark.chromium
def test_uploads_right_and_wrong_and_a_narrow_screen(world, tab, tmp_path):
    tab.set_viewport_size({"width": 390, "height": 844})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    scene = picture(tmp_path / "scene.png", world.explorer.gallery.load(0, WHOLE))
    (tmp_path / "cut.png").write_bytes(Path(scene).read_bytes()[:60])
    tab.get_by_role("button", name="Upload").click()
    sent = tab.locator("#upload input[type=file]")
    sent.set_input_files(str(tmp_path / "cut.png"))
    tab.wait_for_selector("#status .wrong")
    assert "upload: broken: image file is truncated" in tab.inner_text("#status")
    tab.locator("#upload input[type=file]").set_input_files(scene)
    tab.wait_for_selector("#picture .draw .frame")
    tab.wait_for_function("document.querySelector('#answers .file')?.innerText == 'train 0'")
    for image in tab.locator("#answers img").all():
        assert image.get_attribute("alt")
    tab.goto(f"{world.url}/?k=many")
    tab.wait_for_selector("#status .wrong")
    assert "k cannot be 'many'" in tab.inner_text("#status")
    words = tab.locator("#text input, #text textarea")
    words.fill("a photo of a dog")
    words.press("Enter")
    tab.wait_for_function("document.querySelectorAll('#answers .card').length == 12")
    tab.goto(f"{tab.url}&level=obj")  # what can be read of an address is shown
    tab.wait_for_selector("#status .wrong")
    assert "level: unknown 'obj'" in tab.inner_text("#status")
    view_of(tab, text="a photo of a dog", level="")
