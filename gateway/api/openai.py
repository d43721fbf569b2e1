"""/v1/chat/completions and /v1/completions: from a client's bytes to the driver and back."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus

from starlette.types import Receive, Scope, Send

from gateway.api import errors
from gateway.api.asgi import (
    BodyGone,
    RequestIds,
    kept_request_id,
    read_body,
    send_error,
    send_whole,
)
from gateway.api.calls import TTFT_DEADLINE_S_PER_TOKEN, Asked, pick_headers, read_call
from gateway.api.disconnect import ClientLeft, client_present
from gateway.api.errors import ApiError
from gateway.api.explain import explain, server_timing
from gateway.api.first_tries import FirstTries
from gateway.api.limits import Permit, without_limit_headers
from gateway.api.prompts import Prompt, SeenPrefixes, TokenRatios, estimate_tokens, read_prompt
from gateway.api.tenants import Caller, TenantResolver
from gateway.backends.base import Answer, BackendError, Call, Header
from gateway.backends.headers import to_engine
from gateway.core.lengths import LengthDistribution
from gateway.core.outcomes import RejectReason
from gateway.core.types import InferenceRequest, PromptSegment, RequestId, TenantId
from gateway.predictor.predictor import LengthPredictor
from gateway.predictor.prompt import query_of
from gateway.predictor.query import Ended, Prediction
from gateway.runtime.clock import Clock
from gateway.runtime.driver import Driver, Refused, Served

STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Nothing between here and the client may gather events."""

log = logging.getLogger(__name__)


class Door:
    """What both endpoints share: who asks, what is known of prompts, and the driver."""

    def __init__(
        self,
        driver: Driver,
        clock: Clock,
        *,
        tenants: TenantResolver,
        predictor: LengthPredictor,
        aliases: Mapping[str, str],
        alpha: Callable[[], float | None],
        max_body_bytes: int,
    ) -> None:
        self.driver = driver
        self.clock = clock
        self.tenants = tenants
        self.predictor = predictor
        self.aliases = aliases
        self.alpha = alpha
        self.max_body_bytes = max_body_bytes
        self.ids = RequestIds()
        self.ratios = TokenRatios()
        self.prefixes = SeenPrefixes()
        self.first_tries = FirstTries()

    def target_of(self, model: str) -> str:
        """Return the model that backends serve under a public name."""
        return self.aliases.get(model, model)


class Completions:
    """One of the two endpoints, as an ASGI application."""

    def __init__(self, door: Door, path: str) -> None:
        self._door = door
        self._path = path
        self._is_chat = path.endswith("/chat/completions")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        own_id = self._door.ids.next()
        headers = pick_headers(scope["headers"])
        exchange = _Exchange(self._door, send, own_id)
        exchange.request_id = kept_request_id(headers.get(b"x-request-id"), own_id)
        if scope["method"] != "POST":
            await send_error(send, METHOD_NOT_ALLOWED, exchange.request_id)
            return
        try:
            caller = self._door.tenants.resolve(scope["headers"])
            raw = await read_body(scope, receive, self._door.max_body_bytes)
            asked = read_call(
                raw, headers, caller.tenant, self._door.target_of, is_chat=self._is_chat
            )
            caller.check_model(str(asked.body["model"]))
            exchange.request_id = kept_request_id(asked.request_id, own_id)
            call = Call(
                path=self._path,
                body=asked.upstream_body,
                headers=to_engine(scope["headers"]),
                query=_engine_query(scope["query_string"]),
                upstream_id=own_id,
                stream=asked.stream,
                hide_usage=asked.hide_usage,
                renamed=_renamed(asked),
            )
            await exchange.serve(asked, call, raw, caller, receive)
        except ApiError as error:
            await send_error(send, error, exchange.request_id)
        except (BodyGone, ClientLeft):
            pass
        except asyncio.CancelledError:
            # The server stops and has waited long enough for this request to end by itself.
            await exchange.fail(errors.refusal(Refused(RejectReason.SHUTTING_DOWN)))
        except Exception:
            log.exception("request %s", own_id)
            await exchange.fail(errors.INTERNAL)


class _Exchange:
    """One request and its answer."""

    def __init__(self, door: Door, send: Send, own_id: str) -> None:
        self._door = door
        self._send = send
        self._own_id = own_id
        self._has_status = False
        self.request_id = b""

    async def serve(
        self, asked: Asked, call: Call, raw: bytes, caller: Caller, receive: Receive
    ) -> None:
        """Have the call scheduled and relay its answer, within what its key may use."""
        now = self._door.clock.now()
        lesson = _Lesson(self._door, asked, read_prompt(asked.body), now)
        with caller.account.enter(lesson.prompt_tokens, now) as permit:
            try:
                await self._serve(asked, call, raw, caller, receive, lesson, permit)
            finally:
                lesson.learn()

    async def _serve(
        self,
        asked: Asked,
        call: Call,
        raw: bytes,
        caller: Caller,
        receive: Receive,
        lesson: "_Lesson",
        permit: Permit,
    ) -> None:
        door, tenant, now = self._door, caller.tenant, lesson.began_at
        first_at = door.first_tries.of(tenant, raw, now) if asked.is_retry else None
        try:
            async with client_present(receive) as client:
                output = await lesson.forecast()
                permit.expect(output.mean_tokens, door.clock.now())
                request = self._request(asked, lesson, output, tenant, now, first_at, len(raw))
                async with door.driver.run(request, call) as served:
                    lesson.answer = served.answer
                    await self._relay(served, asked, client, now, caller)
        except Refused as refused:
            permit.refund(door.clock.now())
            door.first_tries.remember(tenant, raw, first_at or now)
            await self.fail(_refusal(refused, asked))
        except BackendError as error:
            permit.settle(0, door.clock.now())
            door.first_tries.remember(tenant, raw, first_at or now)
            await self.fail(errors.failure(error))
        finally:
            used = lesson.used_tokens()
            if used is not None:
                permit.settle(used, door.clock.now())

    async def fail(self, error: ApiError) -> None:
        """Tell the client what went wrong, in the form that is still open."""
        if self._has_status:
            await self._send({"type": "http.response.body", "body": error.event()})
        else:
            await send_error(self._send, error, self.request_id)

    def _request(
        self,
        asked: Asked,
        lesson: "_Lesson",
        output: LengthDistribution,
        tenant: TenantId,
        now: float,
        first_at: float | None,
        body_bytes: int,
    ) -> InferenceRequest:
        deadline_s = asked.deadline_s
        if deadline_s is None and asked.ttft_s is not None:
            deadline_s = asked.ttft_s + output.mean_tokens * TTFT_DEADLINE_S_PER_TOKEN
        began_at = now if first_at is None else first_at
        return InferenceRequest(
            id=RequestId(self._own_id),
            model=asked.model,
            prompt_tokens=lesson.prompt_tokens,
            output=output,
            tenant=tenant,
            flow=asked.flow,
            prefix=lesson.prefix(),
            workflow=asked.workflow,
            deadline_at=None if deadline_s is None else began_at + deadline_s,
            priority=asked.priority,
            first_seen_at=first_at,
            body_bytes=body_bytes,
            reports_first_token=asked.stream,
        )

    async def _relay(
        self,
        served: Served,
        asked: Asked,
        client: client_present,
        began_at: float,
        caller: Caller,
    ) -> None:
        answer, decision = served.answer, served.start.decision
        now = self._door.clock.now()
        headers: list[Header] = [
            *without_limit_headers(answer.headers),
            *caller.account.headers(now),
            (b"x-request-id", self.request_id),
            (b"server-timing", server_timing(decision, began_at, now)),
        ]
        if asked.explain:
            headers += explain(served.start, self._door.alpha())
        if answer.whole is not None:
            client.answered()
            await send_whole(self._send, answer.status, headers, answer.whole)
            return
        told = {name for name, _ in headers}
        headers += [header for header in STREAM_HEADERS if header[0] not in told]
        self._has_status = True
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await self._send(start)
        while True:
            events = await answer.read()
            if answer.ended:
                client.answered()
            await self._send(
                {"type": "http.response.body", "body": events, "more_body": not answer.ended}
            )
            if answer.ended:
                return


class _Lesson:
    """What is predicted of one call, and learned from its end."""

    def __init__(self, door: Door, asked: Asked, prompt: Prompt, began_at: float) -> None:
        self._door = door
        self._asked = asked
        self._prompt = prompt
        self.began_at = began_at
        self._prediction: Prediction | None = None
        self.prompt_tokens = estimate_tokens(prompt, door.ratios.of(asked.model))
        self.answer: Answer | None = None

    async def forecast(self) -> LengthDistribution:
        """Return how long the answer may be, the client's cap included."""
        asked = self._asked
        query = query_of(
            asked.body,
            model=asked.model,
            prompt_tokens=self.prompt_tokens,
            stage=asked.stage,
            hint_tokens=asked.hint_tokens,
        )
        self._prediction = await self._door.predictor.predict(query)
        return self._prediction.output

    def prefix(self) -> tuple[PromptSegment, ...]:
        """Return what the prompt has in common with earlier ones; its tokens fit the prompt's."""
        model, door = self._asked.model, self._door
        return door.prefixes.segments(model, self._prompt, door.ratios.of(model))

    def used_tokens(self) -> int | None:
        """Return what the engine has read and written for it; None if it did not answer."""
        if self.answer is None:
            return None
        usage = self.answer.usage
        prompt_tokens = self.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        return prompt_tokens + usage.output_tokens

    def learn(self) -> None:
        """Take in what the engine told of an answer, or what there was of one."""
        if self.answer is None or self._prediction is None:
            return
        usage = self.answer.usage
        if usage.prompt_tokens is not None:
            self._door.ratios.learn(self._asked.model, self._prompt, usage.prompt_tokens)
        if not self.answer.is_complete:
            ended = Ended.ABORTED
        elif self.answer.finish_reason == "length":
            ended = Ended.CAPPED
        else:
            ended = Ended.FINISHED
        elapsed_s = self._door.clock.now() - self.began_at
        if usage.output_tokens or ended is not Ended.FINISHED:
            self._door.predictor.observe(self._prediction, usage.output_tokens, ended, elapsed_s)


METHOD_NOT_ALLOWED = ApiError(
    status=HTTPStatus.METHOD_NOT_ALLOWED,
    message="Use POST.",
    code="method_not_allowed",
    headers=((b"allow", b"POST"),),
)

_CREDENTIALS = (b"api_key=", b"api-key=", b"key=", b"token=", b"access_token=")


def _engine_query(query: bytes) -> str:
    """Return the query as it came, without what may be a credential of the gateway."""
    if not query:
        return ""
    pairs = [pair for pair in query.split(b"&") if not pair.lower().startswith(_CREDENTIALS)]
    return b"&".join(pairs).decode("latin-1")


def _renamed(asked: Asked) -> tuple[str, str] | None:
    public = str(asked.body["model"])
    return None if public == asked.model else (asked.model, public)


def _refusal(refused: Refused, asked: Asked) -> ApiError:
    error = errors.refusal(refused)
    if refused.reason is RejectReason.MODEL_NOT_FOUND:
        error.message = f"The model `{str(asked.body['model'])[:100]}` does not exist."
    return error
