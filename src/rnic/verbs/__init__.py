# SPDX-License-Identifier: Apache-2.0
"""The verbs: libibverbs' objects and records, one object a file.  Import them from `rnic`."""
