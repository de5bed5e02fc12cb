"""Run the command line: `python -m gateway` is the same as `tierline`."""

from gateway.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
