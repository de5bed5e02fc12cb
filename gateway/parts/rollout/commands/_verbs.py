"""Run the changes of a surface in force: `tierline policy promote`, `pause`, `resume`, `rollback` and `remove`.

Each is one call of the registry, with the revision that it was decided on, and takes a surface, who and why.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.cli.commands import CommandError
from gateway.parts.access.author import add_change_flags, author_of
from gateway.parts.rollout.commands._registry import change, deployment_of

if TYPE_CHECKING:
    from gateway.parts.rollout.registry.records import InForce
    from gateway.parts.rollout.registry.registry import PolicyRegistry


class _Make(Protocol):
    def __call__(
        self, args: argparse.Namespace, registry: PolicyRegistry, state: InForce, *, by: str, message: str
    ) -> Awaitable[InForce]: ...


@dataclass(frozen=True, slots=True)
class Verb:
    """A change of one surface: `done` is how its report begins, `removed` whether it takes a removed surface too."""

    done: str
    make: _Make
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Its own options, and what argparse is told of each."""
    removed: bool = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the surface, its own options, and those of every change."""
        parser.add_argument("surface", metavar="SURFACE", help="the surface")
        for name, how in self.options.items():
            parser.add_argument(name, **how)
        add_change_flags(parser, "`policy history` and `policy blame`")

    def run(self, args: argparse.Namespace) -> int:
        """Make the change and report it."""
        author = author_of(args)
        make: Callable[[PolicyRegistry, InForce], Awaitable[InForce]] = lambda registry, state: self.make(  # noqa: E731
            args, registry, state, by=author, message=args.message
        )
        return change(args, make, self.done, removed=self.removed)


async def _roll_back(
    args: argparse.Namespace, registry: PolicyRegistry, state: InForce, *, by: str, message: str
) -> InForce:
    prefix = args.to and args.to.removeprefix(f"{args.surface}@")
    to = await registry.version(args.surface, prefix) if prefix else None
    return await registry.rollback(args.surface, state.revision, by=by, message=message, to=to)


async def _remove(
    args: argparse.Namespace, registry: PolicyRegistry, state: InForce, *, by: str, message: str
) -> InForce:
    # Workers say themselves what their default surface is; where none runs, the config does.
    if (args.config is not None or not await registry.replicas()) and (
        deployment_of(args).default_surface == args.surface
    ):
        raise CommandError(
            f"{args.surface} is the config's default surface: what asks for `auto` goes there. Name another as "
            "`default_surface` first"
        )
    return await registry.remove(
        args.surface, state.revision, by=by, message=message, with_candidate=args.with_candidate
    )


PROMOTE: Final = Verb(
    "promoted",
    lambda args, registry, state, **why: (registry.promote if args.full else registry.step)(
        args.surface, state.revision, **why
    ),
    {"--full": {"action": "store_true", "help": "for all at once, whatever steps are left"}},
)
PAUSE: Final = Verb(
    "paused",
    lambda args, registry, state, **why: registry.pause(args.surface, state.revision, **why),
)
RESUME: Final = Verb(
    "resumed",
    lambda args, registry, state, **why: registry.resume(args.surface, state.revision, **why),
)
ROLLBACK: Final = Verb(
    "rolled back",
    _roll_back,
    {"--to": {"metavar": "VERSION", "help": "the version to put in force, by a prefix of its hash"}},
    removed=True,
)
REMOVE: Final = Verb(
    "removed",
    _remove,
    {"--with-candidate": {"action": "store_true", "help": "drop the candidate that is being tried, too"}},
)
