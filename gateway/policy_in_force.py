"""PolicyInForce: the configured policy, and what of it was changed since."""

from collections.abc import Mapping

from pydantic import ValidationError

from gateway.config.scheduling import PolicyEntry
from gateway.core.policies.base import Policy
from gateway.memory import Memory
from gateway.operations import first_mistake


class PolicyInForce:
    """What decides. Operators and the tuner change it; what is configured anew ends that."""

    def __init__(self, configured: PolicyEntry, memory: Memory | None) -> None:
        """`memory` keeps changes over restarts."""
        self._configured = configured
        self._memory = memory
        self._wish: Mapping[str, object] = {}

    @property
    def entry(self) -> PolicyEntry:
        """The policy as the configuration would write it."""
        return self._with(self._wish)

    def configure(self, configured: PolicyEntry) -> Policy:
        """Return the policy that is configured now; what was changed is forgotten."""
        self._configured, self._wish = configured, {}
        if self._memory is not None:
            self._memory.policy_configured(configured)
        return configured.to_core()

    def change(self, wish: dict[str, object]) -> Policy:
        """Return the configured policy with these changes; ValueError if that is none."""
        policy = self.recall(wish)
        if self._memory is not None:
            self._memory.policy_changed(wish)
        return policy

    def recall(self, wish: Mapping[str, object]) -> Policy:
        """Return it with changes that are remembered; ValueError if that is no policy any more."""
        policy = self._with(wish).to_core()
        self._wish = dict(wish)
        return policy

    def _with(self, wish: Mapping[str, object]) -> PolicyEntry:
        try:
            return PolicyEntry.model_validate({**self._configured.model_dump(), **wish})
        except ValidationError as error:
            raise ValueError(first_mistake(error)) from None
