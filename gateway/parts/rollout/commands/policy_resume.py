"""Run `tierline policy resume`."""

from gateway.parts.rollout.commands._verbs import RESUME

add_options, run = RESUME.add_options, RESUME.run
