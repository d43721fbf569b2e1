"""The handlers of every path in `endpoints`: raw ASGI applications around the Door."""

from functools import partial
from http import HTTPStatus

from starlette.types import Receive, Scope, Send

from gateway.api.asgi import kept_request_id, read_body, send_error
from gateway.api.calls import Asked, check_depth, read_call, refuse_encoding
from gateway.api.door import Door, Exchange
from gateway.api.endpoints import Endpoint, is_id
from gateway.api.errors import ApiError
from gateway.api.kept import Keeper
from gateway.api.said import pick_headers, read_said
from gateway.api.uploads import FormUpload
from gateway.backends.base import Call
from gateway.backends.headers import to_engine
from gateway.core.types import ANONYMOUS, BackendId, TenantId

Picked = dict[bytes, bytes]
_JSON = "application/json"
_CREDENTIALS = (b"api_key=", b"api-key=", b"key=", b"token=", b"access_token=")


class Api:
    """One endpoint, as an ASGI application."""

    def __init__(self, door: Door, endpoint: Endpoint) -> None:
        self._door = door
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self.answer(scope, receive, send, "")

    async def answer(self, scope: Scope, receive: Receive, send: Send, kept_id: str) -> None:
        """Answer one request; `kept_id` is what its path names."""
        headers = pick_headers(scope["headers"])
        request_id = headers.get(b"x-request-id")
        methods = self._endpoint.methods
        if scope["method"] not in methods:
            told_id = kept_request_id(request_id, self._door.ids.next())
            await send_error(send, _not_allowed(methods), told_id)
            return
        serve = partial(self._serve, scope=scope, receive=receive, headers=headers, kept_id=kept_id)
        await self._door.answer(scope, receive, send, request_id, serve, self._endpoint.shape)

    async def _serve(
        self, exchange: Exchange, *, scope: Scope, receive: Receive, headers: Picked, kept_id: str
    ) -> None:
        door, endpoint = self._door, self._endpoint
        caller = door.tenants.resolve(scope["headers"])
        tenant = caller.tenant
        able = door.offers(endpoint.path)
        upload: FormUpload | None = None
        if kept_id:
            raw = await self._read_body(scope, receive)
            asked, able = await self._asked_of_kept(kept_id, raw, headers, tenant, able)
        elif endpoint.is_form:
            refuse_encoding(headers)
            upload = FormUpload(scope, receive, door.max_upload_bytes)
            raw, asked = await self._asked_of_form(upload, headers, tenant, able)
        else:
            raw = await self._read_body(scope, receive)
            asked = self._asked_of_body(scope, raw, headers, tenant, able)
            able = await self._able_to_continue(asked, tenant, able)
        caller.check_model(asked.public_model)
        exchange.request_id = kept_request_id(asked.said.request_id, exchange.own_id)
        content_type = _content_type(scope) if raw or upload else _JSON
        if upload is not None and upload.is_whole:
            upload = None
        call = Call(
            path=endpoint.with_id(kept_id),
            method=scope["method"],
            body=asked.upstream_body,
            content_type=content_type,
            shape=endpoint.shape,
            upload=upload,
            headers=to_engine(scope["headers"]),
            query=_engine_query(scope["query_string"]),
            upstream_id=exchange.own_id,
            stream=asked.stream,
            hide_usage=asked.hide_usage,
            form=asked.form,
            timeouts=door.timeouts.get(asked.public_model, {}),
            renamed=None
            if asked.public_model == asked.model
            else (asked.model, asked.public_model),
        )
        await exchange.serve(
            endpoint,
            asked,
            call,
            upload,
            caller=caller,
            able=able,
            raw=raw,
        )

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        door = self._door
        raw = await read_body(scope, receive, door.max_body_bytes, door.body_timeout_s)
        check_depth(raw, door.max_json_depth)
        return raw

    def _asked_of_body(
        self,
        scope: Scope,
        raw: bytes,
        headers: Picked,
        tenant: TenantId,
        able: frozenset[BackendId],
    ) -> Asked:
        door, endpoint = self._door, self._endpoint
        target_of = partial(door.model_of, endpoint=endpoint, able=able)
        is_known = endpoint.methods == ("POST",)
        if is_known or (raw and _content_type(scope).startswith(_JSON)):
            return read_call(raw, headers, tenant, target_of, endpoint)
        refuse_encoding(headers)
        return _asked(target_of(None), raw, headers, tenant)

    async def _asked_of_form(
        self, upload: FormUpload, headers: Picked, tenant: TenantId, able: frozenset[BackendId]
    ) -> tuple[bytes, Asked]:
        """Return what of the form is here, and what it asks for."""
        door = self._door
        named = await upload.read_head(door.max_body_bytes)
        public_model, model = door.model_of(named, self._endpoint, able)
        head = upload.head(None if model == named else model)
        whole = head if upload.is_whole else b""
        return head, _asked(
            (public_model, model), whole, headers, tenant, stream=upload.wants_stream
        )

    async def _asked_of_kept(
        self,
        kept_id: str,
        raw: bytes,
        headers: Picked,
        tenant: TenantId,
        able: frozenset[BackendId],
    ) -> tuple[Asked, frozenset[BackendId]]:
        """Return what a call asks of something kept, and who keeps it."""
        keeper = await self._keeper(kept_id, tenant, able)
        if keeper is not None:
            models = (keeper.public_model, keeper.model)
            return _asked(models, raw, headers, tenant), able & {keeper.backend}
        models = self._door.model_of(None, self._endpoint, able)
        return _asked(models, raw, headers, tenant), able

    async def _able_to_continue(
        self, asked: Asked, tenant: TenantId, able: frozenset[BackendId]
    ) -> frozenset[BackendId]:
        """Return who can go on from an earlier response, if the call does: who made that."""
        previous = asked.body.get("previous_response_id")
        if not isinstance(previous, str):
            return able
        keeper = await self._keeper(previous, tenant, able)
        return able if keeper is None else able & {keeper.backend}

    async def _keeper(
        self, kept_id: str, tenant: TenantId, able: frozenset[BackendId]
    ) -> Keeper | None:
        """Return who keeps something for a tenant; ApiError 404 if that cannot be known.

        An id from before the gateway's start is asked of the one backend there is, but only where
        nobody has a key: with keys it could be anybody's.
        """
        keeper = await self._door.kept.keeper(kept_id)
        if keeper is None and tenant == ANONYMOUS and len(able) == 1 and is_id(kept_id):
            return None
        if keeper is None or keeper.tenant != tenant:
            raise ApiError(
                status=HTTPStatus.NOT_FOUND,
                message="There is nothing with this id.",
                code="not_found",
            )
        return keeper


class ApiWithId:
    """The endpoints whose path names something that an engine keeps."""

    def __init__(self, api: Api, kept_id: str) -> None:
        self._api = api
        self._kept_id = kept_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._api.answer(scope, receive, send, self._kept_id)


def _asked(
    models: tuple[str, str],
    raw: bytes,
    headers: Picked,
    tenant: TenantId,
    *,
    stream: bool = False,
) -> Asked:
    """Return what a call asks for whose body is no JSON object."""
    public_model, model = models
    said, _ = read_said(headers, {}, tenant)
    return Asked(
        model=model,
        public_model=public_model,
        body={},
        upstream_body=raw,
        said=said,
        stream=stream,
    )


def _not_allowed(methods: tuple[str, ...]) -> ApiError:
    allowed = ", ".join(methods)
    return ApiError(
        status=HTTPStatus.METHOD_NOT_ALLOWED,
        message=f"Use {allowed}.",
        code="method_not_allowed",
        headers=((b"allow", allowed.encode()),),
    )


def _content_type(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"content-type":
            text: str = value.decode("latin-1")
            return text if text.isascii() and text.isprintable() else _JSON
    return _JSON


def _engine_query(query: bytes) -> str:
    """Return the query as it came, without what may be a credential of the gateway."""
    if not query:
        return ""
    pairs = [pair for pair in query.split(b"&") if not pair.lower().startswith(_CREDENTIALS)]
    return b"&".join(pairs).decode("latin-1")
