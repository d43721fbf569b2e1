"""The `hexsage` command: one subcommand for each thing it can do."""

import argparse
import sys
from importlib import import_module

from gateway import __version__

COMMANDS = {
    "serve": ("gateway.cli.serve", "run the gateway"),
    "check": ("gateway.cli.check", "say everything that is wrong with a configuration"),
    "keys": ("gateway.cli.keys", "make, list and revoke API keys"),
    "emulate": ("gateway.emulator.command", "run engines that are not there"),
    "simulate": ("gateway.cli.simulate", "run the scheduler against a trace"),
    "tune": ("gateway.cli.tune", "find the policy settings that a trace asks for"),
    "profile": ("gateway.cli.profile", "measure a running server"),
    "why": ("gateway.cli.why", "say why a request went where it went"),
    "top": ("gateway.cli.top", "watch a running gateway"),
}
"""Each module has `add_arguments(parser)` and `run(arguments) -> exit code`."""


class _Version(argparse.Action):
    """Tells the version, and whether the inner loops are machine code."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from gateway.compiled import form  # the core, which most commands need not

        sys.stdout.write(f"hexsage {__version__} ({form()})\n")
        parser.exit()


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    given = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="hexsage",
        description="An OpenAI-compatible gateway that schedules agent workflows over mixed GPUs.",
        epilog="example: hexsage serve --config backends.yaml --port 8080",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="tell it and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in given if not word.startswith("-")), None)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        # Only what is asked for is imported: `hexsage check` needs no web server.
        if name == chosen:
            import_module(module).add_arguments(command)
    arguments = parser.parse_args(given)
    module, _ = COMMANDS[arguments.command]
    code: int = import_module(module).run(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
