# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: small wrong changes of the sources, each of which some test must notice.

`make mutants` draws a seeded sample.  A mutant is killed when a test fails or does not end; one that survives
is a change that no test sees.  known.toml lists survivors that are no loss, each with the reason.
"""
