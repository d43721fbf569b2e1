"""What of the gateway is compiled to machine code when a wheel is built.

The same sources run either way: mypyc compiles what mypy has checked. An editable install is not
compiled, so that what is edited is what runs; `make compiled` makes a tree of its own.
"""

from glob import glob

from mypyc.build import mypycify
from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext

# What computes for every call or piece of one, and does not wait: no coroutine is in here.
COMPILED = (
    "gateway/core/*.py",
    "gateway/core/policies/*.py",
    "gateway/sim/*.py",
    "gateway/api/calls.py",
    "gateway/api/explain.py",
    "gateway/api/prompts.py",
    "gateway/api/said.py",
    "gateway/backends/headers.py",
    "gateway/backends/plain.py",
    "gateway/backends/relay.py",
    "gateway/backends/shapes.py",
    "gateway/backends/sse.py",
    "gateway/telemetry/counters.py",
    "gateway/telemetry/histogram.py",
    "gateway/telemetry/requests.py",
    "gateway/telemetry/timelines.py",
    "gateway/telemetry/trends.py",
    "gateway/telemetry/watch.py",
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
        # Without the libraries' own types, which a build has no need to install.
        options = ["--config-file=", "--ignore-missing-imports"]
        self.distribution.ext_modules = mypycify(
            [*options, *(path for path in modules if not path.endswith("__init__.py"))],
            group_name="hexsage",
            opt_level="3",
            debug_level="0",
        )
        self.reinitialize_command("build_ext")  # itself: now there are extensions
        self.ensure_finalized()
        super().run()


class CompiledDistribution(Distribution):
    """A wheel of it is for one kind of machine."""

    def has_ext_modules(self) -> bool:
        """Return whether there is machine code: known before it is built."""
        return True


setup(cmdclass={"build_ext": BuildCompiled}, distclass=CompiledDistribution)
