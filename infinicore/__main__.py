"""`python -m infinicore`: the same as the command `infinicore`."""

import sys

from .cli import main

sys.exit(main())
