"""An engine that costs next to nothing, for runs in which an emulator would be the bottleneck.

    python -m tests.chaos.light_engine --port 25101 --slots 32 --step-ms 5 --tokens 20

It serves `--slots` calls at a time, first come first served; each takes a number of steps drawn by
the seed around `--tokens`. Streams get their tokens in a few pieces.
"""

import argparse
import asyncio
import json
import re
from collections import deque
from random import Random
from typing import cast

import uvloop

PIECES = 4
METRICS = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100000"} 1.0\n'
MODELS = b'{"object":"list","data":[{"id":"m1","object":"model","max_model_len":131072}]}'
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_CAP = re.compile(rb'"max_tokens":\s*(\d+)')
_STREAM = re.compile(rb'"stream":\s*true')
_USAGE = re.compile(rb'"include_usage":\s*true')
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: "


class Engine:
    """The slots, and who waits for one."""

    def __init__(self, slots: int, step_s: float, tokens: int, seed: int) -> None:
        self.step_s = step_s
        self._free = slots
        self._tokens = tokens
        self._random = Random(seed)
        self._waiting: deque[Connection] = deque()

    def draw(self, cap: int) -> int:
        """Return an answer's length."""
        return max(1, min(cap, round(self._tokens * self._random.uniform(0.5, 1.5))))

    def ask(self, connection: "Connection") -> None:
        """Begin now, or when there is a slot."""
        if self._free:
            self._free -= 1
            connection.begin()
        else:
            self._waiting.append(connection)

    def leave(self, connection: "Connection", *, began: bool) -> None:
        """A call is over; the next one begins."""
        if not began:
            self._waiting.remove(connection)
        elif self._waiting:
            self._waiting.popleft().begin()
        else:
            self._free += 1


class Connection(asyncio.Protocol):
    """One connection, one call at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._got = b""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._has_call = False
        self._began = False
        self._streams = self._tells_usage = False
        self._tokens = self._sent = self._prompt_tokens = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop working on its call."""
        del exc
        if self._timer is not None:
            self._timer.cancel()
        if self._has_call:
            self._has_call = False
            self._engine.leave(self, began=self._began)

    def data_received(self, data: bytes) -> None:
        """Take in a request."""
        self._got += data
        end = self._got.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._got[:end]
        told = _LENGTH.search(head)
        length = int(told[1]) if told else 0
        if len(self._got) < end + 4 + length:
            return
        body, self._got = self._got[end + 4 : end + 4 + length], self._got[end + 4 + length :]
        if head.startswith(b"POST"):
            self._take(body)
        else:
            path = head.split(b" ", 2)[1]
            said = {b"/v1/models": MODELS, b"/metrics": METRICS}.get(path, b"")
            self._whole(said, b"text/plain" if path == b"/metrics" else b"application/json")

    def begin(self) -> None:
        """The call has a slot."""
        self._began = True
        if self._streams:
            self._transport.write(
                _HEAD + b"text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self._later(max(self._tokens // PIECES, 1))
        else:
            self._later(self._tokens)

    def _take(self, body: bytes) -> None:
        cap = _CAP.search(body)
        self._has_call, self._began = True, False
        self._streams = _STREAM.search(body) is not None
        self._tells_usage = _USAGE.search(body) is not None
        self._tokens = self._engine.draw(int(cap[1]) if cap else 1 << 20)
        self._prompt_tokens = max(len(body) // 4, 1)
        self._sent = 0
        self._engine.ask(self)

    def _later(self, tokens: int) -> None:
        delay_s = tokens * self._engine.step_s
        self._timer = self._loop.call_later(delay_s, self._made, tokens)

    def _made(self, tokens: int) -> None:
        self._sent += tokens
        if not self._streams:
            self._end()
            message = {"role": "assistant", "content": "word " * self._tokens}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            said = {"id": "x", "model": "m1", "choices": [choice], "usage": self._usage()}
            self._whole(json.dumps(said).encode(), b"application/json")
            return
        ends = self._sent >= self._tokens
        choice = {
            "index": 0,
            "delta": {"content": "word " * tokens},
            "finish_reason": "stop" if ends else None,
        }
        events = _event({"id": "x", "model": "m1", "choices": [choice]})
        if ends:
            if self._tells_usage:
                events += _event({"id": "x", "model": "m1", "choices": [], "usage": self._usage()})
            events += b"data: [DONE]\n\n"
        chunk = b"%x\r\n%b\r\n" % (len(events), events)
        if not ends:
            self._transport.write(chunk)
            self._later(min(tokens, self._tokens - self._sent))
            return
        self._end()
        self._transport.write(chunk + b"0\r\n\r\n")

    def _end(self) -> None:
        self._has_call = False
        self._timer = None
        self._engine.leave(self, began=True)

    def _whole(self, said: bytes, content_type: bytes) -> None:
        head = _HEAD + content_type + b"\r\ncontent-length: %d\r\n\r\n" % len(said)
        self._transport.write(head + said)

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._tokens,
            "total_tokens": self._prompt_tokens + self._tokens,
        }


def _event(said: object) -> bytes:
    return b"data: " + json.dumps(said).encode() + b"\n\n"


async def main(options: argparse.Namespace) -> None:
    """Serve until killed."""
    engine = Engine(options.slots, options.step_ms / 1000, options.tokens, options.seed)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(engine), "127.0.0.1", options.port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--tokens", type=int, default=20, help="mean length of an answer")
    parser.add_argument("--seed", type=int, default=1)
    uvloop.run(main(parser.parse_args()))
