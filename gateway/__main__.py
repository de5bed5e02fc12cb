"""`python -m gateway`, the same as `tierline`."""

import sys

from gateway.cli import main

# Worker processes import this module by another name, to find what they were spawned from.
if __name__ == "__main__":
    sys.exit(main())
