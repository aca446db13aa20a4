"""`python -m fedping` is the `fedping` command; Ctrl-C is reported without a traceback even during imports."""

import os
import sys


def run() -> None:
    """Run the command line of this process and leave with its exit code."""
    from fedping.protocol import log

    log.choose(sys.argv[1:], os.environ)
    try:
        from fedping import main
    except KeyboardInterrupt:
        log.tell("interrupted")
        sys.exit(130)
    except ModuleNotFoundError as error:
        from fedping.extras import missing_package

        missing = missing_package(error)
        if missing is None:
            raise
        log.tell(str(missing))
        sys.exit(missing.exit_code)
    main.run()


if __name__ == "__main__":
    run()
