from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_agent.worker import channel
from latfarm_agent.worker.channel import ChannelError, Decoder

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), max_size=5)


@given(messages=MESSAGES, cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_messages_survive_any_chopping(messages: list[channel.Message], cuts: list[int]) -> None:
    stream = b"".join(channel.encode(message) for message in messages)
    decoder = Decoder()
    found: list[channel.Message] = []
    position = turn = 0
    while position < len(stream):
        step = cuts[turn % len(cuts)]
        found += decoder.feed(stream[position : position + step])
        position, turn = position + step, turn + 1
    assert found == messages
    assert not decoder.pending


@given(noise=st.binary(min_size=6, max_size=200))
def test_noise_is_refused_or_waits_but_is_never_a_message(noise: bytes) -> None:
    decoder = Decoder()
    if noise.startswith(b"lf"):
        return
    with pytest.raises(ChannelError):
        decoder.feed(noise)


def test_a_pipe_carries_messages_one_by_one() -> None:
    read, write = os.pipe()
    try:
        for number in range(3):
            channel.send(write, {"number": number})
        os.close(write)
        write = -1
        assert [channel.receive(read) for _ in range(4)] == [
            {"number": 0},
            {"number": 1},
            {"number": 2},
            None,
        ]
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


@pytest.mark.parametrize("kept", [1, 5, 8])
def test_a_stream_that_ends_early_says_so(kept: int) -> None:
    read, write = os.pipe()
    os.write(write, channel.encode({"number": 1})[:kept])
    os.close(write)
    with pytest.raises(ChannelError, match="within a message"):
        channel.receive(read)
    os.close(read)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"lf\xff\xff\xff\xff", "something else"),
        (b"lf\x00\x00\x00\x01{", "not JSON"),
        (b"lf\x00\x00\x00\x02[]", "not a JSON object"),
    ],
)
def test_bad_frames(frame: bytes, says: str) -> None:
    with pytest.raises(ChannelError, match=says):
        Decoder().feed(frame)


def test_a_message_has_a_bound() -> None:
    with pytest.raises(ChannelError, match="over"):
        channel.encode({"text": "x" * (channel.MAX_MESSAGE_BYTES + 1)})
