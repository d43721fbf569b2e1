"""Workloads by name: seed -> workflows, all decided before the first call is sent.

A new workload is a module with such a function, and a line here.
"""

from collections.abc import Callable, Mapping
from random import Random

from gateway.sim.trace import TraceWorkflow
from loadgen.workloads.agentic import agentic
from loadgen.workloads.chat import chat
from loadgen.workloads.text2sql import text2sql

Workload = Callable[[Random, int], list[TraceWorkflow]]

WORKLOADS: Mapping[str, Workload] = {"text2sql": text2sql, "chat": chat, "agentic": agentic}
