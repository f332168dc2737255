"""`python -m infinicore`: the same as the command `infinicore`."""

import sys

try:
    from .cli import main

    status = main()
except KeyboardInterrupt:  # before or after `main`
    status = 130
sys.exit(status)
