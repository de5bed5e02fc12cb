"""Test the packages, and measure them (`tests.bench`), with other languages than English read as in a worker."""

from gateway.seams import read_other_languages

read_other_languages()
