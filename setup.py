"""What of the gateway is compiled to machine code when a wheel is built.

The same sources run either way: mypyc compiles what mypy has checked. An editable install is not
compiled, so that what is edited is what runs; `make compiled` makes a tree of its own.
"""

import ast
import shutil
from collections.abc import Iterator
from contextlib import chdir
from glob import glob
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext

# What every call or piece of one passes.
COMPILED = (
    "gateway/core/*.py",
    "gateway/core/policies/*.py",
    "gateway/sim/*.py",
    "gateway/api/asgi.py",
    "gateway/api/calls.py",
    "gateway/api/cycle.py",
    "gateway/api/desk.py",
    "gateway/api/disconnect.py",
    "gateway/api/door.py",
    "gateway/api/explain.py",
    "gateway/api/front.py",
    "gateway/api/guard.py",
    "gateway/api/lesson.py",
    "gateway/api/limits.py",
    "gateway/api/openai.py",
    "gateway/api/prompts.py",
    "gateway/api/protocol.py",
    "gateway/api/said.py",
    "gateway/api/tenants.py",
    "gateway/backends/answers.py",
    "gateway/backends/base.py",
    "gateway/backends/connection.py",
    "gateway/backends/connections.py",
    "gateway/backends/deadlines.py",
    "gateway/backends/gathering.py",
    "gateway/backends/headers.py",
    "gateway/backends/http_client.py",
    "gateway/backends/lenient_json.py",
    "gateway/backends/plain.py",
    "gateway/backends/relay.py",
    "gateway/backends/shapes.py",
    "gateway/backends/sse.py",
    "gateway/backends/whole.py",
    "gateway/predictor/levels.py",
    "gateway/predictor/prediction.py",
    "gateway/predictor/predictor.py",
    "gateway/predictor/repeats.py",
    "gateway/runtime/driver.py",
    "gateway/runtime/run.py",
    "gateway/telemetry/counters.py",
    "gateway/telemetry/decisions.py",
    "gateway/telemetry/digest.py",
    "gateway/telemetry/histogram.py",
    "gateway/telemetry/requests.py",
    "gateway/telemetry/timelines.py",
    "gateway/telemetry/trends.py",
    "gateway/telemetry/watch.py",
    "gateway/workers/hub.py",
    "gateway/workers/link.py",
    "gateway/workers/remote.py",
    "gateway/workers/wire.py",
)
INTERPRETED = {
    # Names types that are imported for the checker alone, because they import it in turn.
    "gateway/core/events.py",
    # Once a run: nothing to win.
    "gateway/sim/experiment.py",
    "gateway/sim/scorecard.py",
    "gateway/sim/trace.py",
}


class BuildCompiled(build_ext):
    """Builds the extension modules, unless the sources themselves are what is installed."""

    def run(self) -> None:
        """Compile to C, and that to machine code."""
        if self.editable_mode:
            return
        modules = sorted({path for pattern in COMPILED for path in glob(pattern)} - INTERPRETED)
        modules = [path for path in modules if not path.endswith("__init__.py")]
        prepared = Path(self.build_temp, "prepared")
        shutil.rmtree(prepared, ignore_errors=True)
        shutil.copytree("gateway", prepared / "gateway")
        for path in modules:
            source = Path(path).read_text(encoding="utf-8")
            (prepared / path).write_text(with_initializers(source), encoding="utf-8")
        # Without the libraries' own types, which a build has no need to install.
        options = ["--config-file=", "--ignore-missing-imports"]
        with chdir(prepared):
            extensions = mypycify(
                [*options, *modules], group_name="hexsage", opt_level="3", debug_level="0"
            )
        for extension in extensions:
            extension.sources = [str(prepared / source) for source in extension.sources]
        self.distribution.ext_modules = extensions
        self.reinitialize_command("build_ext")  # itself: now there are extensions
        self.ensure_finalized()
        super().run()


def with_initializers(source: str) -> str:
    """Return a module whose dataclasses have their `__init__` written out.

    mypyc leaves the one that `dataclass` makes at run time to the interpreter, which takes far
    longer: to make a request's records cost more than to schedule it.
    """
    lines = source.splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.ClassDef) and (written := _initializer(node)):
            decorator, text = written
            lines.insert(node.end_lineno or 0, text)
            at = decorator.lineno - 1
            lines[at] = lines[at].replace("@dataclass(", "@dataclass(init=False, ", 1)
            if lines[at].strip() == "@dataclass":
                lines[at] = "@dataclass(init=False)\n"
    return "".join(lines)


def _initializer(node: ast.ClassDef) -> tuple[ast.expr, str] | None:
    """Return a dataclass's decorator and `__init__`; None if it is none, or has others' fields."""
    decorator = next((one for one in node.decorator_list if _name(one) == "dataclass"), None)
    if decorator is None or any(_name(base) != "Record" for base in node.bases):
        return None
    options = {key.arg for key in getattr(decorator, "keywords", ())}
    parameters, body = [], []
    for name, kind, default in _fields(node):
        if default is not None and _name(default) == "field":
            given = {key.arg: ast.unparse(key.value) for key in getattr(default, "keywords", ())}
            if given.get("init") == "False":
                continue
            if "default" in given or given.get("default_factory", "").startswith("lambda"):
                raise NotImplementedError(f"{node.name}.{name}: write its default another way")
            if "default_factory" in given:
                parameters.append(f"{name}: {kind} | None = None")
                made = f"{given['default_factory']}()"
                body.append(f"self.{name} = {made} if {name} is None else {name}")
                continue
            default = None
        parameters.append(f"{name}: {kind}" + (f" = {ast.unparse(default)}" if default else ""))
        body.append(f"self.{name} = {name}")
    if any(isinstance(one, ast.FunctionDef) and one.name == "__post_init__" for one in node.body):
        body.append("self.__post_init__()")
    if not body:
        return None
    star = ["*"] if "kw_only" in options else []
    head = f"\n    def __init__(self, {', '.join([*star, *parameters])}) -> None:\n"
    return decorator, head + "".join(f"        {line}  # type: ignore\n" for line in body)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, ast.expr | None]]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            kind = ast.unparse(one.annotation)
            if kind.startswith(("ClassVar", "KW_ONLY", "InitVar")):
                raise NotImplementedError(f"{node.name}.{one.target.id}: {kind} is not known here")
            yield one.target.id, kind, one.value


def _name(node: ast.expr) -> str:
    """Return what a decorator, a base or a call names."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.id if isinstance(node, ast.Name) else ""


class CompiledDistribution(Distribution):
    """A wheel of it is for one kind of machine."""

    def has_ext_modules(self) -> bool:
        """Return whether there is machine code: known before it is built."""
        return True


if __name__ == "__main__":
    setup(cmdclass={"build_ext": BuildCompiled}, distclass=CompiledDistribution)
