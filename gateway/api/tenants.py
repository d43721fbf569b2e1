"""TenantResolver: who is charged for a call, and what they may do."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from gateway.api.errors import ApiError
from gateway.api.limits import NO_LIMITS, Account, KeyLimits
from gateway.backends.base import Header
from gateway.core.types import ANONYMOUS, TenantId
from gateway.keys_file import KeyEntry, hash_of


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    tenant: TenantId
    account: Account
    models: frozenset[str] | None = None
    """Public names of the models that it may use; None: all."""
    key: str = ""
    """The hash of its key; empty: it has none."""

    def may_use(self, model: str) -> bool:
        """Return whether it may use a model, by its public name."""
        return self.models is None or model in self.models

    def check_model(self, model: str) -> None:
        """Raise ApiError 403 for a model that it may not use, whether there is one or not."""
        if not self.may_use(model):
            raise ApiError(
                status=HTTPStatus.FORBIDDEN,
                message=f"Your API key may not use the model `{model[:100]}`.",
                type="permission_error",
                code="model_not_allowed",
                param="model",
            )


class TenantResolver(Protocol):
    """Tells from a request's headers whose it is."""

    def resolve(self, headers: Iterable[Header]) -> Caller:
        """Return the caller; ApiError 401 without a valid key."""

    def holder(self, key: str) -> Caller:
        """Return the caller with a key of this hash; ApiError 401 if there is none any more."""


class EverybodyAnonymous:
    """One tenant for all. The configuration allows this on loopback or by explicit consent only."""

    def __init__(self) -> None:
        self._anybody = Caller(ANONYMOUS, Account(NO_LIMITS, 0.0))

    def resolve(self, headers: Iterable[Header]) -> Caller:  # noqa: ARG002 - nobody has a key
        """Return the tenant."""
        return self._anybody

    def holder(self, key: str) -> Caller:  # noqa: ARG002 - nobody has a key
        """Return the tenant."""
        return self._anybody


class KeyHolders:
    """Tenants by API key. Keys may come, go and change while it runs."""

    def __init__(self, *, allow_anonymous: bool = False) -> None:
        anybody = Caller(ANONYMOUS, Account(NO_LIMITS, 0.0))
        self._anybody = anybody if allow_anonymous else None
        self._callers: dict[str, Caller] = {}
        """By the hash of the key."""
        self.entries: Sequence[KeyEntry] = ()
        """The keys that there are."""

    def replace(self, entries: Sequence[KeyEntry], now: float) -> None:
        """From now on these are the keys; accounts of those that stay go on."""
        callers: dict[str, Caller] = {}
        for entry in entries:
            limits = KeyLimits(
                requests_per_minute=entry.rpm,
                tokens_per_minute=entry.tpm,
                concurrency=entry.concurrency,
            )
            old = self._callers.get(entry.sha256)
            account = old.account if old else Account(limits, now)
            if old:
                account.change(limits, now)
            models = None if entry.models is None else frozenset(entry.models)
            callers[entry.sha256] = Caller(TenantId(entry.owner), account, models, entry.sha256)
        self._callers = callers
        self.entries = entries

    def refused(self) -> Counter[tuple[str, str]]:
        """Return how many calls the limits of keys have turned away, by tenant and code."""
        counted: Counter[tuple[str, str]] = Counter()
        for caller in self._callers.values():
            for code, count in caller.account.refused.items():
                counted[caller.tenant, code] += count
        return counted

    def resolve(self, headers: Iterable[Header]) -> Caller:
        """Return whose key it is."""
        given = {key for name, value in headers if (key := _key(name, value)) is not None}
        if not given and self._anybody is not None:
            return self._anybody
        if len(given) == 1:
            # Which hash is found says nothing of a key: nobody can choose what a key hashes to.
            return self.holder(hash_of(given.pop()))
        raise unauthorized("The API key is wrong." if given else "An API key is needed.")

    def holder(self, key: str) -> Caller:
        """Return whose key it is, by its hash."""
        caller = self._callers.get(key) if key else self._anybody
        if caller is None:
            raise unauthorized("The API key is wrong.")
        return caller


def unauthorized(message: str) -> ApiError:
    """Return the 401."""
    return ApiError(
        status=HTTPStatus.UNAUTHORIZED,
        message=message,
        type="authentication_error",
        code="invalid_api_key",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def _key(name: bytes, value: bytes) -> bytes | None:
    if name == b"authorization":
        scheme, _, key = value.strip().partition(b" ")
        return (key.strip() if scheme.lower() == b"bearer" else value) or None
    return value.strip() or None if name in (b"x-api-key", b"api-key") else None
