"""Searching by words: scores are open_clip's own, other networks are refused, and the server and its page offer it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from browsing import opened, violations
from playwright.sync_api import Browser, expect
from typer.testing import CliRunner

from finesight.cli.main import app
from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.features.preprocess import picture_view
from finesight.features.text_tower import TextTower
from finesight.search.by_words import search_words
from finesight.search.engines import open_index
from finesight.server.config import ServerConfig
from finesight.server.service import SearchService
from serving import Gallery, Web, drawn, in_thread, indexed, web_for

WORDS = "a bird on water"
needs_open_clip = pytest.mark.skipif(find_spec("open_clip") is None, reason="open_clip is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from clips import make_clip

    return make_clip(tmp_path_factory.mktemp("clip") / "model")


@pytest.fixture(scope="module")
def pictures(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Seven drawn pictures, four of them in a folder, indexed by the image side of the model."""
    from clips import clip_run

    folder = tmp_path_factory.mktemp("words")
    (folder / "images" / "lake").mkdir(parents=True)
    for number in range(7):
        place = "lake/" if number < 4 else ""
        (folder / "images" / f"{place}{number}.png").write_bytes(drawn(size=(44, 40), seed=number))
    return Gallery(indexed(clip_run(folder / "run", model), folder / "images"), folder / "images")


def finesight(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output + str(done.exception or "")


def expected(model: Path, pictures: Gallery, words: str) -> dict[str, float]:
    """The cosines by open_clip alone, path -> score."""
    import open_clip
    import torch

    name = f"local-dir:{model}"
    clip, tokenizer = open_clip.create_model(name).eval(), open_clip.get_tokenizer(name)
    framing = TorchEmbedder.load(pictures.index.parent).framing
    scores = {}
    with torch.no_grad():
        text = clip.encode_text(tokenizer([words]), normalize=True)[0]
        for file in pictures.images.rglob("*.png"):
            pixels = torch.from_numpy(picture_view(file, framing).pixels.copy()).float() / 255
            config = open_clip.get_model_preprocess_cfg(clip)
            image = ((pixels - torch.tensor(config["mean"])) / torch.tensor(config["std"])).permute(2, 0, 1)
            scores[str(file.relative_to(pictures.images))] = float(
                clip.encode_image(image[None], normalize=True)[0] @ text
            )
    return scores


@needs_open_clip
def test_scores_are_those_of_the_model_itself(model: Path, pictures: Gallery) -> None:
    right = expected(model, pictures, WORDS)
    assert np.ptp(list(right.values())) > 0.01  # there is something to confuse
    with contextlib.closing(open_index(pictures.index)) as index:
        tower = TextTower.load(model, TorchEmbedder.load(pictures.index.parent))
        hits = search_words(index, tower, f"  {WORDS}\n", 10).hits
        assert [hit.path for hit in hits] == sorted(right, key=lambda path: -right[path])
        assert [hit.score for hit in hits] == pytest.approx(sorted(right.values(), reverse=True), abs=1e-4)
        third = sorted(right.values())[-3]
        assert len(search_words(index, tower, WORDS, 10, min_score=third - 1e-4).hits) == 3
        assert [hit.id for hit in search_words(index, tower, WORDS, 2).hits] == [hit.id for hit in hits[:2]]
        last = np.array([hits[-1].id])
        assert [hit.id for hit in search_words(index, tower, WORDS, 5, among=last).hits] == last.tolist()
        for words, count in (("  ", 5), (WORDS, 0)):
            with pytest.raises(FineSightError):
                search_words(index, tower, words, count)


@needs_open_clip
def test_only_the_image_side_of_the_model_will_do(model: Path, pictures: Gallery, tmp_path: Path) -> None:
    from clips import clip_run, make_clip

    other = make_clip(tmp_path / "other", seed=1)
    with pytest.raises(FineSightError, match="is not the image side of"):
        TextTower.load(other, TorchEmbedder.load(pictures.index.parent))
    average = TorchEmbedder.load(clip_run(tmp_path / "average", model, "average"))
    with pytest.raises(FineSightError, match="test_pooling=class-token"):
        TextTower.load(model, average)
    (other / "open_clip_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(FineSightError, match="open_clip cannot open"):
        TextTower.load(other, average)
    with pytest.raises(FineSightError, match=r"open_clip_config\.json"):
        TextTower.load(tmp_path / "average", average)


@needs_open_clip
def test_the_command(model: Path, pictures: Gallery) -> None:
    right = expected(model, pictures, WORDS)
    code, said = finesight("search", pictures.index, "--words", WORDS, "--text-model", model, "-k", "3", "--json")
    assert code == 0, said
    result = json.loads(said.splitlines()[-1])["results"][0]
    assert result["words"] == WORDS
    assert [hit["path"] for hit in result["hits"]] == sorted(right, key=lambda path: -right[path])[:3]
    code, said = finesight("search", pictures.index, "--words", WORDS, "--text-model", model, "--box", "0,0,1,1")
    assert code != 0
    assert "are for pictures" in said


@pytest.mark.skipif(find_spec("open_clip") is not None, reason="open_clip is installed")
def test_without_open_clip_it_says_what_to_install(gallery: Gallery) -> None:
    code, said = finesight("search", gallery.index, "--words", WORDS, "--text-model", "model")
    assert code != 0
    assert "finesight[text]" in said


def test_words_need_a_model_and_something_must_be_asked(gallery: Gallery) -> None:
    for options, sentence in (((), "nothing to look for"), (("--words", WORDS), "--text-model")):
        code, said = finesight("search", gallery.index, *options)
        assert code != 0
        assert sentence in said


def test_a_server_without_a_model_says_so(gallery: Gallery, tmp_path: Path) -> None:
    with web_for(gallery.index, tmp_path) as web:
        assert web.ask("health")["words"] is False
        web.refuses(404, "words", "--text-model", words=WORDS)


@pytest.fixture
def service(model: Path, pictures: Gallery) -> Iterator[SearchService]:
    embedder = TorchEmbedder.load(pictures.index.parent)
    service = SearchService(open_index(pictures.index), embedder, tower=TextTower.load(model, embedder))
    yield service
    service.close(5)


@needs_open_clip
def test_the_server(service: SearchService, model: Path, pictures: Gallery) -> None:
    right = expected(model, pictures, WORDS)
    web = Web(service)
    assert web.ask("health")["words"] is True
    found = web.ask("words", words=WORDS, k=2)
    assert [hit["path"] for hit in found["hits"]] == sorted(right, key=lambda path: -right[path])[:2]
    lake = web.ask("words", words=WORDS, folder="lake")["hits"]
    assert sorted(hit["path"] for hit in lake) == [f"lake/{number}.png" for number in range(4)]
    web.refuses(422, "words", "words", words="   ")
    web.refuses(422, "words", "words", words="x" * 201)


@needs_open_clip
def test_an_index_of_another_network_is_not_searched_by_words(
    service: SearchService, gallery: Gallery, tmp_path: Path
) -> None:
    settings = ServerConfig(cache_dir=tmp_path)
    embedder = TorchEmbedder.load(gallery.index.parent)
    other = SearchService(open_index(gallery.index), embedder, settings, tower=service.tower)
    try:
        assert Web(other).ask("health")["words"] is False
        Web(other).refuses(404, "words", "--text-model", words=WORDS)
    finally:
        other.close(5)


@needs_open_clip
@pytest.mark.slow
def test_the_page(browser: Browser, service: SearchService, model: Path, pictures: Gallery) -> None:
    right = expected(model, pictures, WORDS)
    with in_thread(service) as (url, _), opened(browser, url) as tab:
        page = tab.go()
        page.wait_for_selector("#samples .card")
        assert violations(page) == []
        page.get_by_label("Or say in words what you look for").fill(WORDS)
        page.keyboard.press("Enter")
        expect(page.locator("#browse-title")).to_have_text(f"7 pictures that fit “{WORDS}” best")
        shown = [node.get_attribute("title") for node in page.locator("#all .name").all()]
        assert shown == sorted(right, key=lambda path: -right[path])
        expect(page.locator("#all .score").first).to_have_text(f"{max(right.values()):.2f}")
        assert violations(page) == []
        page.locator('#browse [data-filter="folder"]').select_option("lake")
        expect(page.locator("#all .card")).to_have_count(4)
        page.reload()  # the address has the words and the filter
        expect(page.locator("#all .card")).to_have_count(4)
        expect(page.get_by_label("Search by words")).to_have_value(WORDS)
        page.get_by_role("link", name="All pictures").click()
        expect(page.locator("#browse-title")).to_have_text("4 pictures")
        expect(page.get_by_label("Search by words")).to_have_value("")


@pytest.mark.slow
def test_the_page_offers_no_words_without_a_model(browser: Browser, gallery: Gallery, tmp_path: Path) -> None:
    with web_for(gallery.index, tmp_path) as web, in_thread(web.service) as (url, _), opened(browser, url) as tab:
        page = tab.go("?view=browse")
        page.wait_for_selector("#all .card")
        expect(page.locator("#browse form.words")).to_be_hidden()
