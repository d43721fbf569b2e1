"""What each process of `hexsage serve --workers N` runs: a worker, or the scheduler process."""

import sys

from gateway.mistakes import ConfigError
from gateway.telemetry.logs import set_up
from gateway.workers.launch import Launch, Role
from gateway.workers.sockets import shared


def main() -> int:
    """Be what the parent wants; return 0 after a clean stop."""
    launch = Launch.read(sys.stdin.fileno())
    set_up(launch.settings.log.format, launch.settings.log.level, launch.role)
    try:
        # Only what is needed is imported: a worker has no scheduler and no predictor.
        if launch.role is Role.SCHEDULER:
            from gateway.cli import scheduler

            server = scheduler.server_of(launch)
            server.run()
            return server.exit_code
        from gateway.cli import worker

        worker.server_of(launch).run(shared(launch.settings.host, launch.port))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
