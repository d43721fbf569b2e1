"""A collector of traces on loopback: what an OTLP exporter has sent it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class Collector:
    """What has come."""

    def __init__(self) -> None:
        self.url = ""
        self.headers: list[dict[str, str]] = []
        self.resources: list[ResourceSpans] = []
        self.bodies = b""

    @property
    def spans(self) -> dict[str, Span]:
        """The latest span of each name."""
        found = (scope.spans for sent in self.resources for scope in sent.scope_spans)
        return {span.name: span for spans in found for span in spans}


def attributes(span: Span) -> dict[str, object]:
    """What a span is told to have."""
    values = ((item.key, item.value) for item in span.attributes)
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values}


@contextmanager
def a_collector() -> Iterator[Collector]:
    """Run one."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            collector.bodies += body
            collector.resources += ExportTraceServiceRequest.FromString(body).resource_spans
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Be silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield collector
        server.shutdown()
        thread.join()
