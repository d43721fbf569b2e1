"""One workflow's calls to the model. All that is particular to HexSage is in `_headers`."""

from dataclasses import dataclass, field
from time import perf_counter
from uuid import uuid4

from langchain_openai import ChatOpenAI

NAME = "text2sql"


@dataclass(frozen=True, slots=True)
class CallTime:
    """When a call ran, in seconds since its workflow began."""

    stage: str
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Workflow:
    """The calls that together answer one question."""

    model: ChatOpenAI
    deadline_ms: int
    id: str = field(default_factory=lambda: f"{NAME}-{uuid4()}")
    began_at: float = field(default_factory=perf_counter)
    calls: list[CallTime] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return perf_counter() - self.began_at

    async def ask(self, stage: str, prompt: str, *, max_tokens: int, final: bool = False) -> str:
        """Return the model's answer to a prompt."""
        began_s = self.elapsed_s
        try:
            answer = await self.model.ainvoke(
                prompt, max_tokens=max_tokens, extra_headers=self._headers(stage, final)
            )
        finally:
            self.calls.append(CallTime(stage, began_s, self.elapsed_s))
        return answer.text

    def _headers(self, stage: str, final: bool) -> dict[str, str]:
        """Return what the gateway is told: which workflow, which step of it, until when."""
        headers = {
            "x-workflow-id": self.id,
            "x-workflow-name": NAME,
            "x-workflow-stage": stage,
            "x-workflow-deadline-ms": str(self.deadline_ms),
        }
        return headers | {"x-workflow-final": "true"} if final else headers

    def seconds_by_stage(self) -> dict[str, tuple[int, float]]:
        """Return calls and seconds by stage, from its first call's start to its last one's end."""
        spans: dict[str, tuple[int, float, float]] = {}
        for call in self.calls:
            count, began_s, ended_s = spans.get(call.stage, (0, call.began_s, call.ended_s))
            spans[call.stage] = (
                count + 1,
                min(began_s, call.began_s),
                max(ended_s, call.ended_s),
            )
        return {stage: (count, ended - began) for stage, (count, began, ended) in spans.items()}
