"""Door and Exchange: every call of an engine's API, from what was asked to the last byte."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.types import Receive, Scope, Send

from gateway.api import errors
from gateway.api.access import NOTE, Note
from gateway.api.asgi import BodyGone, RequestIds, kept_request_id, send_error, send_whole
from gateway.api.calls import Asked, missing_model
from gateway.api.desk import Desk, Turn, arrival_of
from gateway.api.disconnect import PRESENCE, ClientLeft, client_present
from gateway.api.endpoints import Endpoint
from gateway.api.errors import ApiError
from gateway.api.explain import server_timing
from gateway.api.kept import Keeper, Keepers
from gateway.api.lesson import Outlines
from gateway.api.limits import without_limit_headers
from gateway.api.tenants import Caller, TenantResolver
from gateway.api.uploads import FormUpload
from gateway.backends.base import BackendError, Call, Header, Shape
from gateway.core.outcomes import RejectReason
from gateway.core.types import BackendId, TenantId
from gateway.runtime.clock import Clock
from gateway.runtime.run import Refused

STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Nothing between here and the client may gather events."""
ABORT = "abort"
"""Where the server leaves, in the scope's state, the way to cut a connection."""
WRITE = "write"
"""And the way to write a piece of an answer that has begun at once; it says if there is room."""

log = logging.getLogger(__name__)

Offers = Callable[[str], frozenset[BackendId]]
"""The backends that offer a path."""


class Door:
    """What all endpoints share: who asks, what there is, and the desk."""

    def __init__(
        self,
        desk: Desk,
        clock: Clock,
        *,
        tenants: TenantResolver,
        kept: Keepers,
        aliases: Mapping[str, str],
        offers: Offers,
        models: Callable[[frozenset[BackendId]], frozenset[str]],
        max_body_bytes: int,
        max_upload_bytes: int,
        max_json_depth: int,
        body_timeout_s: float,
        patience_s: float,
        timeouts: Mapping[str, Mapping[str, float]],
        queue_timeouts: Mapping[str, float],
    ) -> None:
        self.desk = desk
        self.clock = clock
        self.tenants = tenants
        self.kept = kept
        self.offers = offers
        self.max_body_bytes = max_body_bytes
        self.max_upload_bytes = max_upload_bytes
        self.max_json_depth = max_json_depth
        self.body_timeout_s = body_timeout_s
        self.patience_s = patience_s
        self.timeouts = timeouts
        """Limits of attempts by public model name, as a Call has them."""
        self.queue_timeouts = queue_timeouts
        self.ids = RequestIds()
        self.outlines = Outlines()
        self._aliases = aliases
        self._models = models

    def model_of(
        self, named: str | None, endpoint: Endpoint, able: frozenset[BackendId]
    ) -> tuple[str, str]:
        """Return a model's public name and the one that backends serve.

        Who names none means the only one that is served there.
        """
        if named is not None:
            return named, self._aliases.get(named, named)
        if not able:
            raise not_offered(endpoint)
        only = self._models(able)
        if len(only) != 1:
            raise missing_model()
        (model,) = only
        return model, model

    async def answer(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        request_id: bytes | None,
        serve: "Callable[[Exchange], Awaitable[None]]",
        shape: Shape,
    ) -> None:
        """Serve one request; whatever goes wrong, its client is told what, once."""
        exchange = Exchange(self, scope, receive, send, self.ids.next(), shape)
        exchange.request_id = kept_request_id(request_id, exchange.own_id)
        try:
            await serve(exchange)
        except ApiError as error:
            await exchange.fail(error)
        except (BodyGone, ClientLeft):
            pass
        except asyncio.CancelledError:
            # The server stops and has waited long enough for this request to end by itself.
            await exchange.fail(errors.refusal(Refused(RejectReason.SHUTTING_DOWN)))
        except Exception:
            log.exception("request failed", extra={"request_id": exchange.own_id})
            await exchange.fail(errors.INTERNAL)


class Exchange:
    """One request and its answer."""

    def __init__(
        self, door: Door, scope: Scope, receive: Receive, send: Send, own_id: str, shape: Shape
    ) -> None:
        self.own_id = own_id
        self.request_id = b""
        self._door = door
        self._scope = scope
        self._receive = receive
        self._send = send
        self._shape = shape
        self._has_status = False
        self._is_event_stream = False

    async def serve(
        self,
        endpoint: Endpoint,
        asked: Asked,
        call: Call,
        upload: FormUpload | None,
        *,
        caller: Caller,
        able: frozenset[BackendId],
        raw: bytes,
    ) -> None:
        """Have the call scheduled and relay its answer, within what its key may use."""
        door = self._door
        now = door.clock.now()
        tenant = caller.tenant
        outline = door.outlines.of(endpoint, asked, tenant, raw)
        arrival = arrival_of(
            self.own_id,
            self.request_id.decode(),
            asked,
            outline,
            tenant,
            able=able,
            began_at=now,
            body=raw,
            queue_timeout_s=door.queue_timeouts.get(asked.public_model),
        )
        note: Note | None = self._scope.get(NOTE)
        if note is not None:
            note.tenant, note.model = tenant, asked.public_model
        try:
            async with self._client(upload) as client:

                async def relay(turn: Turn) -> None:
                    if note is not None:
                        note.backend, note.answer = turn.backend_id, turn.answer
                    await self._keep(turn, tenant, asked)
                    await self._relay(turn, client, now)

                await door.desk.serve(arrival, caller, call, raw, relay)
        except ClientLeft:
            await self._cut()
            raise
        except Refused as refused:
            await self.fail(_refusal(refused, asked, endpoint))
            _let_go(refused)
        except BackendError as error:
            # If the client's own upload broke, that is what the engine broke on.
            own = upload.failure if upload is not None else None
            await self.fail(own or errors.failure(error), is_told=error.is_told)
            _let_go(error)

    def _client(self, upload: FormUpload | None) -> client_present:
        patience_s = self._door.patience_s
        if upload is not None:
            # Who watches takes the pieces of the form in, on the way.
            return client_present(upload.receive, patience_s)
        presence = self._scope.get("state", {}).get(PRESENCE)
        return client_present(self._receive, patience_s, presence)

    async def fail(self, error: ApiError, *, is_told: bool = False) -> None:
        """Tell the client what went wrong, in the form that is still open."""
        if not self._has_status:
            await send_error(self._send, error, self.request_id, self._shape)
        elif self._is_event_stream:
            event = b"" if is_told else error.event(self._shape)
            await self._send({"type": "http.response.body", "body": event})
        else:
            # There is no telling inside other bytes: only an end that is none.
            await self._cut()

    async def _relay(self, turn: Turn, client: client_present, began_at: float) -> None:
        answer = turn.answer
        now = self._door.clock.now()
        headers: list[Header] = [
            *without_limit_headers(answer.headers),
            *turn.headers,
            (b"x-request-id", self.request_id),
            (b"server-timing", server_timing(turn.decided_at, turn.queue_s, began_at, now)),
        ]
        if answer.whole is not None:
            client.answered()
            await send_whole(self._send, answer.status, headers, answer.whole)
            return
        told = dict(headers)
        self._is_event_stream = told.get(b"content-type", b"").startswith(b"text/event-stream")
        if self._is_event_stream:
            headers += [header for header in STREAM_HEADERS if header[0] not in told]
        self._has_status = True
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await self._send(start)
        write = self._scope.get("state", {}).get(WRITE)
        while True:
            events = await answer.read()
            ended = answer.ended
            if ended:
                client.answered()
            await client.send(
                self._send, {"type": "http.response.body", "body": events, "more_body": not ended}
            )
            if ended:
                return
            if write is not None:
                await answer.flow(write)

    async def _keep(self, turn: Turn, tenant: TenantId, asked: Asked) -> None:
        made_id = turn.answer.made_id
        if made_id is not None:
            keeper = Keeper(tenant, turn.backend_id, asked.model, asked.public_model)
            await self._door.kept.remember(made_id, keeper)

    async def _cut(self) -> None:
        await cut(self._scope, self._receive)


async def cut(scope: Scope, receive: Receive) -> None:
    """Cut a connection, with whatever lies on it unread, where the server lets us."""
    abort = scope.get("state", {}).get(ABORT)
    if abort is not None:
        abort()
        while (await receive())["type"] != "http.disconnect":
            pass


def not_offered(endpoint: Endpoint) -> ApiError:
    """Return the refusal of a call that no backend takes."""
    return errors.refusal(Refused(RejectReason.NOT_SUPPORTED)).saying(
        f"No backend offers {endpoint.path}."
    )


def _let_go(error: Exception) -> None:
    """Part an error that was told from who raised it and who keeps it: they hold each other."""
    error.__traceback__ = error.__context__ = None


def _refusal(refused: Refused, asked: Asked, endpoint: Endpoint) -> ApiError:
    error = errors.refusal(refused)
    model = asked.public_model[:100]
    if refused.reason is RejectReason.MODEL_NOT_FOUND:
        return error.saying(f"The model `{model}` does not exist.")
    if refused.reason is RejectReason.NOT_SUPPORTED:
        return error.saying(f"No backend of the model `{model}` offers {endpoint.path}.")
    return error
