"""Tierline in a Python program: `from tierline import Tierline`; see gateway/README.md.

This is the whole package of a checkout; the wheel carries it as `tierline/__init__.py`, with everything else below it
(hatch_build.py). Importing it imports nothing more: a name's module is imported when the name is first asked for.
"""

TYPE_CHECKING = False  # type checkers take it for True; `typing` takes longer to import than all of this

if TYPE_CHECKING:
    from gateway.parts.local.embedded import Answer, AnswerStream, Fields, RequestFailed, Tierline
else:

    def __getattr__(name):
        """Return one of the names above. Raises ImportError where this installation lacks the part that has them."""
        if name not in __all__:
            raise AttributeError(f"module 'tierline' has no attribute {name!r}")
        try:
            from gateway.parts.local import embedded
        except ModuleNotFoundError as error:
            from gateway.parts.standard import absent, part_missing_of

            if (part := part_missing_of(error.name or "")) is None:
                raise
            raise ImportError(absent(name, part)) from None
        return getattr(embedded, name)


__all__ = ["Answer", "AnswerStream", "Fields", "RequestFailed", "Tierline"]


def main() -> int:
    """Run the command line, which is `tierline` and `python -m tierline`, and return its exit code."""
    from gateway.cli.main import main

    return main()


if __name__ == "__main__":
    raise SystemExit(main())
