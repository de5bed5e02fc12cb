"""`python -m gateway` is `tierline`."""

from gateway.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
