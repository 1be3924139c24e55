"""Wrong tokens are counted by client."""

from __future__ import annotations

from finesight.server.sign_in import WrongTokens


def test_wrong_words_are_counted_by_client() -> None:
    wrong = WrongTokens()
    for _ in range(30):
        wrong.add("10.0.0.1")
        wrong.add("2001:db8::1")
    assert wrong.wait("10.0.0.1") == 60
    assert wrong.wait("10.0.0.2") == 0
    assert wrong.wait("2001:db8::ffff") == 60  # the same network
    assert wrong.wait("2001:db8:1::1") == 0
    wrong.forget("10.0.0.1")
    assert wrong.wait("10.0.0.1") == 0
