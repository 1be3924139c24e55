from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finesight.nn.queue import PAPER_QUEUE, Queue, automatic_queue


def numbered(first: int, count: int, dim: int = 2) -> torch.Tensor:
    """Keys that say which they are."""
    return torch.arange(first, first + count, dtype=torch.float32)[:, None].repeat(1, dim)


@given(size=st.integers(1, 12), batches=st.lists(st.integers(0, 30), max_size=8))
@settings(max_examples=150, deadline=None)
def test_queue_holds_the_newest_keys_whatever_the_sizes(size: int, batches: list[int]) -> None:
    queue = Queue(size, 2)
    begun = queue.vectors.clone()
    newest: deque[float] = deque(maxlen=size)
    slots: list[float | None] = [None] * size  # what a ring written one key at a time holds
    first = 0
    for count in batches:
        queue.push(numbered(first, count))
        for key in range(first, first + count):
            newest.append(key)
            slots[key % size] = key
        first += count
    assert int(queue.pointer) == first % size
    for place, key in enumerate(slots):
        expected = begun[place] if key is None else torch.full((2,), float(key))
        assert torch.equal(queue.vectors[place], expected)
    assert sorted(newest) == sorted(key for key in slots if key is not None)


@pytest.mark.parametrize(("size", "batch"), [(7, 3), (5, 5), (3, 8), (1, 4), (64, 48)])
def test_oldest_goes_first_across_the_wrap(size: int, batch: int) -> None:
    queue = Queue(size, 2)
    for step in range(9):
        queue.push(numbered(step * batch, batch))
    oldest_first = torch.roll(queue.vectors[:, 0], -int(queue.pointer))
    assert oldest_first.tolist() == [float(key) for key in range(9 * batch - size, 9 * batch)]


def test_begins_with_unit_vectors_from_its_generator() -> None:
    first, again, other = (Queue(50, 16, torch.Generator().manual_seed(seed)).vectors for seed in (0, 0, 1))
    torch.testing.assert_close(first.norm(dim=1), torch.ones(50))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first @ first.T - torch.eye(50)).abs().max() < 0.95


def test_is_in_the_state_and_is_not_trained() -> None:
    queue = Queue(5, 3)
    queue.push(torch.randn(7, 3))
    restored = Queue(5, 3)
    restored.load_state_dict(queue.state_dict())
    assert torch.equal(restored.vectors, queue.vectors)
    assert int(restored.pointer) == 2
    assert list(queue.parameters()) == []
    keys = torch.randn(2, 3)
    queue.push(keys)
    restored.push(keys)
    assert torch.equal(restored.vectors, queue.vectors)


def test_keeps_no_graph_and_its_own_precision() -> None:
    queue = Queue(4, 3)
    queue.push(torch.randn(2, 3, dtype=torch.float64, requires_grad=True))
    assert queue.vectors.dtype == torch.float32
    assert not queue.vectors.requires_grad


@pytest.mark.parametrize(
    ("images", "batch", "size"),
    [(5994, 128, 2997), (100, 64, 128), (256, 64, 128), (257, 64, 128), (260, 64, 130), (10**6, 128, PAPER_QUEUE)],
)
def test_automatic_size(images: int, batch: int, size: int) -> None:
    assert automatic_queue(images, batch) == size
