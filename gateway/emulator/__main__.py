"""`python -m gateway.emulator`: the same as `hexsage emulate`."""

import argparse
import sys

from gateway.emulator.command import add_arguments, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m gateway.emulator")
    add_arguments(parser)
    sys.exit(run(parser.parse_args()))
