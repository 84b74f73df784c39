# SPDX-License-Identifier: Apache-2.0
"""What programs of libibverbs and librdmacm find: libraries, variables, files of sysfs, a server."""
