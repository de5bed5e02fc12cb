"""Run `tierline policy rollback`."""

from gateway.parts.rollout.commands._verbs import ROLLBACK

add_options, run = ROLLBACK.add_options, ROLLBACK.run
