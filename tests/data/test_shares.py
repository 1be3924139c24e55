import os
import sys
import threading

import pytest
import torch

from finesight.data.shares import CACHED, blocks, in_shares
from small import torch_threads


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 64])
def test_every_image_is_in_one_share_of_fitting_size(threads: int, count: int) -> None:
    seen: list[range] = []
    with torch_threads(threads):
        in_shares(lambda rows: seen.append(range(count)[rows]), count)
    assert sorted(i for share in seen for i in share) == list(range(count))
    assert max(map(len, seen)) - min(map(len, seen)) <= 1
    assert len(seen) == max(1, min(threads, count))


@pytest.mark.parametrize("share", [None, slice(0, 0), slice(0, 7), slice(2, 9), slice(9, 10)])
@pytest.mark.parametrize("numbers", [CACHED // 20, CACHED // 3, CACHED, 2 * CACHED])
def test_blocks_join_to_the_share_and_stay_in_the_cache(share: slice | None, numbers: int) -> None:
    images = torch.empty(10, 1, 1, 1).expand(-1, -1, -1, numbers)
    parts = [range(10)[part] for part in blocks(images, share)]
    assert [i for part in parts for i in part] == list(range(10)[share or slice(None)])
    assert all(len(part) == 1 or len(part) * numbers <= CACHED for part in parts)
    assert numbers != CACHED // 3 or len(parts) <= 4


def test_threads_do_not_split_further_and_the_caller_keeps_its_number() -> None:
    inside: list[int] = []
    later: list[int] = []
    with torch_threads(3):
        in_shares(lambda _: inside.append(torch.get_num_threads()), 6)
        assert torch.get_num_threads() == 3
        other = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        other.start()
        other.join()
    assert inside == [1, 1, 1]
    assert later == [3], "a thread that is started afterwards has the number of the process"


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_thread_raises_reaches_the_caller(threads: int) -> None:
    def fail(rows: slice) -> None:
        if rows.stop == 4:
            raise ValueError("the last image")

    with torch_threads(threads), pytest.raises(ValueError, match="the last image"):
        in_shares(fail, 4)


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="needs a safe fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    with torch_threads(2):
        in_shares(lambda _: None, 2)
        child = os.fork()
        if child == 0:
            seen: list[slice] = []
            in_shares(seen.append, 2)
            os._exit(len(seen))
        deadline = threading.Timer(120, os.kill, (child, 9))
        deadline.start()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        deadline.cancel()
