"""Answers that come in one piece: read, undone of compression, and their facts taken."""

import zlib

from gateway.backends.answers import WholeAnswer
from gateway.backends.base import BadAnswer, Call, Listener, Shape
from gateway.backends.connection import Connection
from gateway.backends.dialect import Mender
from gateway.backends.headers import to_client
from gateway.backends.lenient_json import dumps, loads
from gateway.backends.relay import Renaming
from gateway.backends.shapes import made_id, read_whole


async def whole_answer(
    connection: Connection,
    call: Call,
    listener: Listener,
    renaming: Renaming | None,
    mender: Mender | None,
    limit_bytes: int,
) -> WholeAnswer:
    """Read an answer to its end; the listener hears of it."""
    body = await connection.read_all(limit_bytes)
    if len(body) > limit_bytes:
        raise BadAnswer(f"the engine's answer is longer than {limit_bytes} bytes")
    encoding = connection.header(b"content-encoding").strip().lower()
    if encoding not in ("", "identity"):
        body = _decoded(body, encoding, limit_bytes)
    try:
        said = loads(body)
    except ValueError:
        if call.shape is not Shape.ANY:
            raise BadAnswer("the engine's answer is not JSON") from None
        said = None
    counts, reason = read_whole(call.shape, said)
    if mender and isinstance(said, dict):
        mender.whole(said)
        try:
            body = dumps(said)
        except ValueError:
            raise BadAnswer("the engine's answer is nested too deeply") from None
    if renaming:
        body = renaming.apply(body)
    listener.finished(counts)
    return WholeAnswer(
        connection.status,
        to_client(connection.headers),
        body,
        counts,
        reason,
        made_id(call.shape, said),
    )


def _decoded(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Undo a compression that nobody asked for; a client that did not ask gets none."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadAnswer("the engine's answer is compressed in a way that nobody asked for")
    # 32: look whether a zlib or a gzip header leads.
    inflater = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(body, limit_bytes)
    except zlib.error:
        raise BadAnswer("the engine's compressed answer is broken") from None
    if not inflater.eof:
        raise BadAnswer("the engine's compressed answer is too long or cut short")
    return plain
