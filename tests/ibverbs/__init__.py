# SPDX-License-Identifier: Apache-2.0
"""A package, so that it is found ahead of PyPI's of the same name."""
