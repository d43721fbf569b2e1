"""FormUpload: a form on its way through, of which only the beginning is kept."""

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Message, Receive, Scope

from gateway.api.asgi import BODY_S, BodyGone, stalled, too_large
from gateway.api.errors import ApiError, bad_request
from gateway.api.multipart import Field, FormError, FormScanner, boundary_of

HELD_BYTES = 1024 * 1024
"""A form that ends within this is held whole: it can be sent twice and holds no slot on its way."""
_MODEL, _STREAM = b"model", b"stream"


class FormUpload:
    """One upload. `read_head` comes first; then the form is whole, or `receive` pumps the rest."""

    def __init__(self, scope: Scope, receive: Receive, limit_bytes: int) -> None:
        headers = dict(scope["headers"])
        boundary = boundary_of(headers.get(b"content-type", b""))
        if boundary is None:
            raise bad_request("The body must be multipart/form-data with a boundary.")
        length = headers.get(b"content-length", b"")
        self._told_length = int(length) if length.isdigit() else None
        if (self._told_length or 0) > limit_bytes:
            raise too_large(limit_bytes)
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._scanner = FormScanner(boundary, frozenset({_MODEL, _STREAM}))
        self._model: Field | None = None
        """What the call was routed by."""
        self._held: list[bytes] = []
        self._size = 0
        self._grown = 0
        """Bytes that a model's other name has added."""
        self._pieces: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue(maxsize=1)
        """Of the rest, and whether each is the last: the last one may still wait to get in."""
        self.is_whole = False
        """All of it is here."""
        self.is_begun = False
        self.failure: ApiError | None = None
        """Why it could not be sent to its end."""

    @property
    def length(self) -> int | None:
        """Its length as it goes upstream."""
        return None if self._told_length is None else self._told_length + self._grown

    @property
    def wants_stream(self) -> bool:
        """The form asks for a streamed answer."""
        field = self._scanner.fields.get(_STREAM)
        return field is not None and field.value.strip().lower() in (b"true", b"1")

    async def read_head(self, most_bytes: int) -> str | None:
        """Read until the model is known, and a little more; return its name, if there is one."""
        while not self.is_whole and (_MODEL not in self._scanner.fields or self._size < HELD_BYTES):
            if self._size > most_bytes:
                raise bad_request(
                    f"`model` must come within the form's first {most_bytes} bytes: put it before "
                    "the file.",
                    param="model",
                    code="missing_field",
                )
            try:
                async with asyncio.timeout(BODY_S):
                    message = await self._receive()
            except TimeoutError:
                raise stalled() from None
            piece = self._taken(message)
            self._held.append(piece)
            self._scan(piece)
        field = self._model = self._scanner.fields.get(_MODEL)
        return field.value.decode("utf-8", "replace").strip() or None if field else None

    def head(self, renamed: str | None) -> bytes:
        """Return what is here; `renamed`: with another model in it."""
        head = b"".join(self._held)
        field = self._model
        if renamed is not None and field is not None:
            name = renamed.encode()
            self._grown = len(name) - len(field.value)
            head = head[: field.begin] + name + head[field.end :]
        self._held = [head]
        return head

    async def receive(self) -> Message:
        """Receive for whoever watches the client; the form's pieces go to `pieces` on the way."""
        message = await self._receive()
        if not self.is_whole and message["type"] == "http.request":
            try:
                piece = self._taken(message)
                self._scan(piece)
                self._refuse_another_model()
            except ApiError as error:
                self.failure = error
                piece = b""
            await self._pieces.put((piece, self.is_whole))
        return message

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the form. A client that stops sending ends it; so does one that sends too much."""
        self.is_begun = True
        for piece in self._held:
            yield piece
        self._held = []
        is_last = False
        while not is_last:
            try:
                async with asyncio.timeout(BODY_S):
                    piece, is_last = await self._pieces.get()
            except TimeoutError:
                self.failure = stalled()
            else:
                if piece:
                    yield piece
            if self.failure is not None:
                raise self.failure

    def _taken(self, message: Message) -> bytes:
        if message["type"] == "http.disconnect":
            raise BodyGone
        piece: bytes = message.get("body", b"")
        self._size += len(piece)
        if self._size > self._limit_bytes:
            raise too_large(self._limit_bytes)
        self.is_whole = not message.get("more_body")
        return piece

    def _scan(self, piece: bytes) -> None:
        try:
            self._scanner.feed(piece)
        except FormError as error:
            raise bad_request(str(error)) from None

    def _refuse_another_model(self) -> None:
        """Engines take the last one, and the key may not."""
        if self._scanner.fields.get(_MODEL) is not self._model:
            raise bad_request("`model` comes twice: name it once.", param="model")
