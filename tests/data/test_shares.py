import os
import sys
import threading

import pytest

from finesight.data.shares import in_shares
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
