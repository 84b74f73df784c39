# SPDX-License-Identifier: Apache-2.0
"""A package: its conftest.py imports from it."""
