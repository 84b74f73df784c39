# SPDX-License-Identifier: Apache-2.0
"""What programs find that are linked with libibverbs and librdmacm: libraries, environment, files of sysfs."""
