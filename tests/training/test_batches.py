import threading
import time
from collections.abc import Callable
from dataclasses import fields
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from finesight.data.cache import DecodedCache, open_cache
from finesight.data.sources import open_source
from finesight.training.batches import Batches, step_generator

IMAGES = 23
Maker = Callable[..., Batches]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> DecodedCache:
    """Pictures of different shapes, each of one color that says which it is."""
    root = tmp_path_factory.mktemp("pictures")
    for i in range(IMAGES):
        Image.new("RGB", (10 + i % 5, 10 + i % 3), (10 * i, 255 - 10 * i, i)).save(root / f"{i:02d}.png")
    return open_cache(open_source(root), 8, cache_dir=tmp_path_factory.mktemp("cache"), workers=1, progress=False)


@pytest.fixture(scope="module")
def make(cache: DecodedCache) -> Maker:
    def batches(images: int = IMAGES, **options: int) -> Batches:
        return Batches(cache, np.arange(images), **{"batch_size": 5, "epochs": 3, "seed": 7, **options})

    return batches


def who(canvas: torch.Tensor) -> list[int]:
    """Which pictures these are, by their pixels."""
    return canvas[:, 2, 0, 0].tolist()


@given(images=st.integers(1, IMAGES), batch=st.integers(1, 8), epochs=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_every_image_at_most_once_an_epoch_in_full_batches(
    make: Maker, images: int, batch: int, epochs: int, seed: int
) -> None:
    batches = make(images, batch_size=batch, epochs=epochs, seed=seed)
    assert batches.steps_per_epoch == images // batch
    assert len(batches) == epochs * (images // batch)
    for epoch in range(epochs):
        steps = range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch)
        seen = [int(i) for step in steps for i in batches.indices(step)]
        assert len(seen) == len(set(seen)) == (images // batch) * batch
        assert set(seen) <= set(range(images))
    assert images >= batch or list(batches) == []


def test_who_waits_and_the_order_change_from_epoch_to_epoch_and_with_the_seed(make: Maker) -> None:
    def epochs(seed: int) -> list[list[int]]:
        batches = make(seed=seed)
        return [np.concatenate([batches.indices(4 * e + s) for s in range(4)]).tolist() for e in range(3)]

    assert len({tuple(order) for order in epochs(7) + epochs(8)}) == 6
    assert len({frozenset(order) for order in epochs(7)}) > 1
    assert epochs(7) == epochs(7)


@given(
    seed=st.integers(0, 99),
    steps=st.lists(st.integers(0, 40), max_size=12),
    per_epoch=st.sampled_from([None, 1, 3, 9]),  # the last takes images twice
)
@settings(max_examples=50, deadline=None)
def test_batches_are_those_of_an_order_drawn_anew_for_each_step(
    make: Maker, seed: int, steps: list[int], per_epoch: int | None
) -> None:
    batches = make(seed=seed, steps_per_epoch=per_epoch)
    for step in steps:
        epoch, position = divmod(step, per_epoch or IMAGES // 5)
        order = np.random.default_rng([seed, epoch]).permutation(np.arange(IMAGES))
        order = np.concatenate([order, order])
        found = batches.indices(step)
        np.testing.assert_array_equal(found, order[position * 5 : position * 5 + 5])
        found[:] = -1  # what a caller does to them changes no other step


def test_an_order_is_drawn_once_an_epoch(cache: DecodedCache) -> None:
    """A million images take 10 ms and more to be shuffled."""
    batches = Batches(cache, np.arange(1_000_000), batch_size=8, epochs=1, seed=7)
    start = time.thread_time()
    batches.indices(0)
    first = time.thread_time() - start
    start = time.thread_time()
    for step in range(1, 100):
        batches.indices(step)
    assert time.thread_time() - start < 10 * first


def test_pixels_sizes_and_steps_are_those_of_the_indices(make: Maker, cache: DecodedCache) -> None:
    batches = make()
    listed = list(batches)
    assert [batch.step for batch in listed] == list(range(12))
    for batch in listed:
        chosen = batches.indices(batch.step)
        canvas, sizes = cache.batch(chosen)
        assert torch.equal(batch.canvas, canvas)
        assert torch.equal(batch.all_sizes, sizes.long())
        assert who(batch.canvas) == chosen.tolist()
        assert batch.share == slice(0, 5)
        assert batch.canvas.dtype == torch.uint8


def test_one_batch_is_read_while_another_trains(make: Maker, cache: DecodedCache) -> None:
    class Watched(DecodedCache):
        def batch(self, indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
            reads.append(len(reads))
            if len(reads) == 2:
                second.set()
            return super().batch(indices)

    reads: list[int] = []
    second = threading.Event()
    batches = make()
    batches.cache = Watched(**{field.name: getattr(cache, field.name) for field in fields(cache)})
    steps = iter(batches)
    next(steps)
    assert second.wait(60), "nobody asked for the second batch yet"
    assert [step.step for step in steps] == list(range(1, 12))
    assert len(reads) == 12
    beginning = iter(batches)
    next(beginning)
    beginning.close()
    assert len(reads) <= 14, "not more than one ahead"


@pytest.mark.parametrize("start", [0, 1, 4, 7, 11, 12, 40])
def test_a_later_start_gives_the_same_remaining_batches(make: Maker, start: int) -> None:
    whole, rest = list(make()), list(make(start=start))
    assert len(rest) == len(make(start=start)) == max(0, 12 - start)
    for expected, batch in zip(whole[start:], rest, strict=True):
        assert batch.step == expected.step
        assert torch.equal(batch.canvas, expected.canvas)
        assert torch.equal(batch.all_sizes, expected.all_sizes)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_shares_of_the_ranks_join_to_the_whole_batch(make: Maker, processes: int) -> None:
    whole = list(make(batch_size=6))
    ranks = [list(make(batch_size=6, rank=rank, processes=processes)) for rank in range(processes)]
    for step, expected in enumerate(whole):
        parts = [rank[step] for rank in ranks]
        assert list(chain(*(who(part.canvas) for part in parts))) == who(expected.canvas)
        for part in parts:
            assert torch.equal(part.all_sizes, expected.all_sizes)
            assert who(expected.canvas)[part.share] == who(part.canvas)


def test_randomness_of_a_step_depends_on_seed_and_step_alone() -> None:
    def draw(seed: int, step: int) -> tuple[float, ...]:
        torch.manual_seed(step)
        torch.rand(3)
        return tuple(torch.rand(4, generator=step_generator(seed, step)).tolist())

    draws = {(seed, step): draw(seed, step) for seed in range(6) for step in range(6)}
    assert len(set(draws.values())) == 36
    assert all(draw(*key) == value for key, value in draws.items())


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> DecodedCache:
    """One folder per class; each picture's color says which it is."""
    root = tmp_path_factory.mktemp("classes")
    for i in range(12):
        folder = root / f"species-{i % 3}"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (10, 10), (0, 20 * (i % 3), i)).save(folder / f"{i:02d}.png")
    return open_cache(open_source(root), 8, cache_dir=tmp_path_factory.mktemp("cache"), workers=1, progress=False)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_labels_are_those_of_this_ranks_images(labeled: DecodedCache, processes: int) -> None:
    seen: set[int] = set()
    for rank in range(processes):
        for batch in Batches(labeled, np.arange(12), batch_size=6, epochs=2, seed=1, rank=rank, processes=processes):
            assert batch.labels is not None
            assert batch.labels.dtype == torch.int64
            assert len(batch.labels) == len(batch.canvas) == 6 // processes
            assert batch.labels.tolist() == [picture % 3 for picture in who(batch.canvas)]
            seen |= set(batch.labels.tolist())
    assert seen == {0, 1, 2}


def test_labels_of_chosen_images_and_of_none(labeled: DecodedCache, make: Maker) -> None:
    """Indices are into the cache, not into the images that were chosen of it."""
    chosen = np.array([1, 5, 6, 11])
    source = labeled.source.labels
    assert source is not None
    (batch,) = Batches(labeled, chosen, batch_size=4, epochs=1, seed=0)
    assert batch.labels is not None
    assert sorted(batch.labels.tolist()) == sorted(source[chosen].tolist())
    assert batch.labels.tolist() == [picture % 3 for picture in who(batch.canvas)]
    assert all(batch.labels is None for batch in make())
