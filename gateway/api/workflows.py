"""/v1/workflows: declare a workflow, look at it, end it."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gateway.api import snapshots
from gateway.api.errors import ApiError, bad_request
from gateway.api.responses import Json
from gateway.api.said import MAX_DEADLINE_MS
from gateway.api.tenants import TenantResolver
from gateway.core.commands import Command, WorkflowEnded
from gateway.core.events import Event, WorkflowCancelled, WorkflowCompleted, WorkflowDeclared
from gateway.core.scheduler import Scheduler
from gateway.core.specs import StageSpec, WorkflowSpec
from gateway.core.types import TenantId, WorkflowKey
from gateway.runtime.clock import Clock
from gateway.runtime.driver import Driver

MAX_ENDED = 10_000
MAX_STAGES = 256
MAX_METADATA_ENTRIES = 16
MAX_TEXT = 512
Text = Annotated[str, Field(max_length=MAX_TEXT)]


class StageWish(BaseModel):
    """One declared stage."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=256)
    depends_on: list[str] = Field(default_factory=list, max_length=MAX_STAGES)
    fan_out: int = Field(default=1, ge=1, le=10_000)
    max_repeats: int | None = Field(default=None, ge=1)


class WorkflowWish(BaseModel):
    """A declaration: a configured template by its name, or stages of its own."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = Field(default=None, min_length=1, max_length=256)
    name: str | None = Field(default=None, min_length=1, max_length=256)
    stages: list[StageWish] | None = Field(default=None, max_length=MAX_STAGES)
    deadline_ms: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_MS)
    strict: bool = False
    metadata: dict[Text, Text] = Field(default_factory=dict, max_length=MAX_METADATA_ENTRIES)


class EndedWorkflows:
    """The last workflows that ended, so that one can still ask how. Bounded; an observer."""

    def __init__(self) -> None:
        self._ended: OrderedDict[WorkflowKey, WorkflowEnded] = OrderedDict()

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Keep those that end."""
        del now, event
        for command in commands:
            if isinstance(command, WorkflowEnded):
                self._ended[command.key] = command
                self._ended.move_to_end(command.key)
                if len(self._ended) > MAX_ENDED:
                    self._ended.popitem(last=False)

    def get(self, key: WorkflowKey) -> WorkflowEnded | None:
        """Return how it ended."""
        return self._ended.get(key)


class _Views:
    """Workflows as their owners see them, with the metadata they gave. Bounded."""

    def __init__(self, scheduler: Scheduler, clock: Clock, ended: EndedWorkflows) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._ended = ended
        self._metadata: OrderedDict[WorkflowKey, dict[str, str]] = OrderedDict()

    def note(self, key: WorkflowKey, metadata: dict[str, str]) -> None:
        """Keep a declaration's metadata."""
        if metadata:
            self._metadata[key] = metadata
            if len(self._metadata) > MAX_ENDED:
                self._metadata.popitem(last=False)

    def of(self, key: WorkflowKey) -> dict[str, object]:
        """Return the workflow; ApiError 404 if there is none of that key."""
        workflows = self._scheduler.workflows
        run = workflows.get(key)
        metadata = self._metadata.get(key, {})
        if run is not None:
            expected_s = workflows.expected_total_s(run)
            return {
                **snapshots.workflow(run, self._clock.now(), expected_s),
                "metadata": metadata,
            }
        over = self._ended.get(key)
        if over is None:
            raise ApiError(
                status=404, message="There is no such workflow.", code="workflow_not_found"
            )
        return {
            "id": key.id,
            "object": "workflow",
            "name": over.name,
            "state": over.state,
            "elapsed_ms": snapshots.ms(over.ended_at - over.opened_at),
            "late": over.is_late,
            "total_calls": over.calls,
            "metadata": metadata,
        }


def workflows_router(
    scheduler: Scheduler,
    driver: Driver,
    clock: Clock,
    *,
    tenants: TenantResolver,
    ended: EndedWorkflows,
    specs: Mapping[str, WorkflowSpec],
) -> APIRouter:
    """Build the routes. Someone else's workflow and one that never was are the same 404."""
    router = APIRouter(prefix="/v1/workflows")
    views = _Views(scheduler, clock, ended)

    def tenant_of(request: Request) -> TenantId:
        return tenants.resolve(request.scope["headers"]).tenant

    @router.post("")
    async def declare(wish: WorkflowWish, request: Request) -> Json:
        key = WorkflowKey(tenant_of(request), wish.id or f"wf-{token_hex(8)}")
        deadline_s = None if wish.deadline_ms is None else wish.deadline_ms / 1000
        driver.feed(WorkflowDeclared(key, _spec(wish, specs), deadline_s, wish.strict))
        views.note(key, wish.metadata)
        return Json(views.of(key), status_code=201)

    @router.get("")
    async def list_open(request: Request) -> Json:
        tenant = tenant_of(request)
        runs = [run.key for run in scheduler.workflows if run.key.tenant == tenant]
        return Json({"object": "list", "data": [views.of(key) for key in runs]})

    @router.get("/{workflow_id}")
    async def get(workflow_id: str, request: Request) -> Json:
        return Json(views.of(WorkflowKey(tenant_of(request), workflow_id)))

    @router.post("/{workflow_id}/complete")
    async def complete(workflow_id: str, request: Request) -> Json:
        key = WorkflowKey(tenant_of(request), workflow_id)
        views.of(key)
        driver.feed(WorkflowCompleted(key))
        return Json(views.of(key))

    @router.delete("/{workflow_id}")
    async def cancel(workflow_id: str, request: Request) -> Response:
        key = WorkflowKey(tenant_of(request), workflow_id)
        views.of(key)
        driver.feed(WorkflowCancelled(key))
        return Json(views.of(key))

    return router


def _spec(wish: WorkflowWish, specs: Mapping[str, WorkflowSpec]) -> WorkflowSpec:
    if wish.stages is None:
        if wish.name is not None and wish.name in specs:
            return specs[wish.name]
        return WorkflowSpec(name=wish.name or "")
    stages = tuple(
        StageSpec(
            name=stage.name,
            depends_on=tuple(stage.depends_on),
            fan_out=stage.fan_out,
            max_repeats=stage.max_repeats,
        )
        for stage in wish.stages
    )
    try:
        return WorkflowSpec(name=wish.name or "", stages=stages)
    except ValueError as error:
        raise bad_request(f"{error}.", param="stages") from None
