"""What one API key may use: requests and tokens a minute, and calls at once. `now` is an argument.

A call is admitted or refused in one step, without an await: all limits are looked at before
any is charged, so a burst cannot slip through and a refusal by one limit costs nothing of another.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil

from gateway.api.codes import OwnCode
from gateway.api.errors import ApiError
from gateway.backends.base import Header

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """None: without limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and answers together."""
    concurrency: int | None = None


NO_LIMITS = KeyLimits()


class TokenBucket:
    """Holds at most a minute's worth, filled steadily. It may be overdrawn by corrections."""

    __slots__ = ("_at", "_level", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """Return what there is now."""
        filled = self._level + (now - self._at) * self.per_minute / MINUTE_S
        return min(filled, self.per_minute)

    def wait_s(self, amount: float, now: float) -> float:
        """Return in how many seconds that much will be there; 0: it is.

        More than the bucket can ever hold is there when it is full.
        """
        missing = min(amount, self.per_minute) - self.level(now)
        return max(missing, 0.0) * MINUTE_S / self.per_minute

    def take(self, amount: float, now: float) -> None:
        """Take so much out; a negative amount gives it back."""
        self._level = min(self.level(now) - amount, self.per_minute)
        self._at = now

    def resized(self, per_minute: int, now: float) -> "TokenBucket":
        """Return a bucket of another size that is as full."""
        new = TokenBucket(per_minute, now)
        new.take(per_minute * (1 - self.level(now) / self.per_minute), now)
        return new


class Account:
    """What one key uses right now."""

    def __init__(self, limits: KeyLimits, now: float) -> None:
        self.in_flight = 0
        self.refused: Counter[str] = Counter()
        """Calls turned away, by the code of the limit."""
        self._limits = limits
        self._requests = _bucket(None, limits.requests_per_minute, now)
        self._tokens = _bucket(None, limits.tokens_per_minute, now)

    def change(self, limits: KeyLimits, now: float) -> None:
        """From now on these limits hold; what is used already counts."""
        self._limits = limits
        self._requests = _bucket(self._requests, limits.requests_per_minute, now)
        self._tokens = _bucket(self._tokens, limits.tokens_per_minute, now)

    def enter(self, prompt_tokens: int, now: float) -> "Permit":
        """Charge a call that begins; ApiError 429 if a limit forbids it."""
        limits = self._limits
        if limits.concurrency is not None and self.in_flight >= limits.concurrency:
            raise self._over("concurrency_limit", f"calls at once ({limits.concurrency})", 1.0, now)
        if self._requests is not None and (wait_s := self._requests.wait_s(1, now)):
            raise self._over(
                "request_rate_limit",
                f"requests a minute ({limits.requests_per_minute})",
                wait_s,
                now,
            )
        self.check_tokens(prompt_tokens, now)
        self.in_flight += 1
        self.take(1, prompt_tokens, now)
        return Permit(self, prompt_tokens)

    def check_tokens(self, amount: float, now: float) -> None:
        """Raise ApiError 429 if the tokens are not there."""
        if self._tokens is not None and (wait_s := self._tokens.wait_s(amount, now)):
            limit = self._limits.tokens_per_minute
            raise self._over("token_rate_limit", f"tokens a minute ({limit})", wait_s, now)

    def take(self, requests: int, tokens: float, now: float) -> None:
        """Charge so much; negative amounts are given back."""
        if requests and self._requests is not None:
            self._requests.take(requests, now)
        if tokens and self._tokens is not None:
            self._tokens.take(tokens, now)

    def headers(self, now: float) -> list[Header]:
        """Return OpenAI's `x-ratelimit-*` headers for the limits that there are."""
        headers: list[Header] = []
        for name, bucket in ((b"requests", self._requests), (b"tokens", self._tokens)):
            if bucket is not None:
                left = max(int(bucket.level(now)), 0)
                full_in_s = bucket.wait_s(bucket.per_minute, now)
                headers += [
                    (b"x-ratelimit-limit-" + name, b"%d" % bucket.per_minute),
                    (b"x-ratelimit-remaining-" + name, b"%d" % left),
                    (b"x-ratelimit-reset-" + name, b"%dms" % ceil(full_in_s * 1000)),
                ]
        return headers

    def _over(self, code: OwnCode, what: str, retry_after_s: float, now: float) -> ApiError:
        self.refused[code] += 1
        return ApiError(
            status=HTTPStatus.TOO_MANY_REQUESTS,
            message=f"Your API key's limit of {what} is reached.",
            type="rate_limit_error",
            code=code,
            should_retry=True,
            retry_after_s=retry_after_s,
            headers=tuple(self.headers(now)),
        )


class Permit:
    """One admitted call's charges, and its place among the calls at once, until it is closed."""

    __slots__ = ("_account", "_requests", "_tokens")

    def __init__(self, account: Account, prompt_tokens: int) -> None:
        self._account = account
        self._requests = 1
        self._tokens = float(prompt_tokens)

    def expect(self, output_tokens: float, now: float) -> None:
        """Charge the predicted answer; ApiError 429, and nothing charged at all, if it is too much.

        Beyond what the bucket holds when full nothing more is asked.
        """
        try:
            self._account.check_tokens(output_tokens, now)
        except ApiError:
            self.refund(now)
            raise
        self.settle(self._tokens + output_tokens, now)

    def settle(self, tokens: float, now: float) -> None:
        """The call has used so many tokens in all: correct what was charged."""
        self._account.take(0, tokens - self._tokens, now)
        self._tokens = tokens

    def close(self) -> None:
        """The call is over."""
        self._account.in_flight -= 1

    def refund(self, now: float) -> None:
        """The call was turned away: it costs nothing."""
        self.settle(0, now)
        self._account.take(-self._requests, 0, now)
        self._requests = 0


def without_limit_headers(headers: Iterable[Header]) -> list[Header]:
    """Return an engine's headers without its own limits, which are not the client's."""
    return [header for header in headers if not header[0].startswith(b"x-ratelimit-")]


def _bucket(old: TokenBucket | None, per_minute: int | None, now: float) -> TokenBucket | None:
    if per_minute is None:
        return None
    return TokenBucket(per_minute, now) if old is None else old.resized(per_minute, now)
