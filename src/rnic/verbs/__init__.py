# SPDX-License-Identifier: Apache-2.0
"""The verbs: libibverbs' objects and records, one object in each file. Import them from `rnic`."""
